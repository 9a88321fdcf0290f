/* The fast pass over a chunk: load, subtract, count, merge, round, store; what definition.py says, bit for bit.

   A chunk is worked through in blocks of 4,096 elements, so that everything between the stored inputs and the stored
   output stays in the first two cache levels. Loops work on vectors of WIDTH elements in the vector types of GCC and
   Clang, which exist on every machine. The file is compiled once for each kind of machine (build.py), without
   contraction and without fast-math: every operation is one rounded IEEE operation, which is why the bits agree.

   Intrinsics stand where compilers find no good instructions: to widen and narrow, for the larger of two, and to pack
   what is not zero. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif
#ifdef __AVX512VBMI2__
#define WIDTH 16
#elif defined __AVX2__
#define WIDTH 8
#else
#define WIDTH 4
#endif

#ifndef MACHINE
#define MACHINE 1
#endif
#define JOINED(name, machine) name##_##machine
#define NAMED(name, machine) JOINED(name, machine)
#define ENTRY(name) __attribute__((visibility("default"))) NAMED(name, MACHINE)
#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

enum {
    BLOCK = 4096,         /* elements; counting.py's */
    LANES = 64,           /* columns of a block */
    WORDS = BLOCK / 64,   /* of a bit per element */
    ROWS = 4 * LANES,     /* elements of a group of rows, which a last block is filled up to */
    SPACED = BLOCK + 112, /* of rows, which would share cache sets if they lay a power of two apart */
    NEAR = 1024,          /* elements whose differences are packed while they are in the first cache level */
    PART = 512,           /* elements from draws to output, in the first cache level even where rows are many */
    COPIES = 4,           /* of counters: most elements share few bins, and each addition waits for the last one */
    SHORT = (1 << 15) + 16,
    LOW_BITS = 18, /* of a pattern, within a bin of histogram.py */
    BINS = 1 << 13,
    COUNT_SHIFT = 40, /* a long pattern's bin counts above, and sums offsets below */
    KEYS = (1 << 16) + 112,
    QUANTITIES = 6, /* of a result's sums; the first ALONE are of elements where one agent alone is active */
    ALONE = 4
};
enum { FLOAT32, BFLOAT16, FLOAT16 };
enum { CHANGED, ROUNDED, NONFINITE };

typedef float floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t uints __attribute__((vector_size(4 * WIDTH)));
typedef uint64_t longs __attribute__((vector_size(4 * WIDTH))); /* half as many */
typedef uint16_t halves __attribute__((vector_size(2 * WIDTH)));
typedef uint32_t half_words __attribute__((may_alias)); /* of bits that are read as uint64_t */

/* One chunk and what is to be done with it; fast.py has the same fields. */
struct call {
    int64_t agents, elements, start;    /* element 0 is `start` of its tensor */
    const void *const *rows;            /* agents + 1: elements as stored, the base's first */
    const int64_t *kinds;               /* how they are stored */
    const uint64_t *uniform_keys;       /* [agents][2], or NULL */
    const float *const *sensitivities;  /* agents, or NULL */
    void *workspace;                    /* `workspace_bytes`, aligned to a cache line */
    int64_t *counts;                    /* as `counted` says */
    double *sums;                       /* [3K + K(K+1)/2][blocks], NULL where inputs are not counted */
    double *result_sums;                /* [6K][blocks], NULL where nothing is merged */
    int64_t kernel;                     /* of KERNELS; -1: `given` is what it gave */
    const float *per_agent, *constants; /* [agents][columns] */
    int64_t columns;
    const float *given;                 /* from the first element of the call */
    void *out;                          /* [elements] */
    int64_t kind;                       /* how the output is stored */
    int64_t stochastic, both_roundings;
    uint64_t first, second;             /* the key of the rounding draws */
    double epsilon;
};

/* Where `counts` has what: the first of `by_overlap` [K][K+1], pairs [K][K] twice, … */
struct counted {
    int64_t *by_overlap, *pair_active, *pair_agree, *conflict, *identical, *nonfinite, *largest, *least, *result;
};

static struct counted counted(const struct call *call) {
    int64_t k = call->agents, *at = call->counts;
    struct counted to;
    to.by_overlap = at, at += k * (k + 1);
    to.pair_active = at, at += k * k;
    to.pair_agree = at, at += k * k;
    to.conflict = at, at += 1;
    to.identical = at, at += k;
    to.nonfinite = at, at += k + 1;
    to.largest = at, at += k;
    to.least = at, at += k;
    to.result = at;
    return to;
}

/* Scratch of one thread. Rows lie SPACED elements apart. */
struct work {
    float *base, *inputs, *scaled, *delta, *step, *other_step; /* `inputs`: deltas, draws, sensitivities */
    floats (*columns)[LANES / WIDTH]; /* sums of a block's result: [K][QUANTITIES] */
    uint64_t *active, *rising;        /* [K][WORDS]: bits, where an agent is active and its update positive besides */
    uint64_t *once;                   /* [WORDS]: where one agent alone is active */
    uint64_t *alone, *shared;         /* [WORDS]: where an agent is active alone and with others, a part at a time */
    uint16_t *patterns, *packed, *places;
    uint32_t *longs, *fine; /* fine[K][COPIES][SHORT]: by the upper half of patterns whose lower half is 0 */
    uint64_t *coarse;       /* [K][COPIES][BINS]: the other patterns */
    float *decoded;         /* models that are not all stored alike */
    char *tails;            /* [rows][BLOCK] of 4 bytes: a last block, filled up with zeros */
};

struct found { /* of one agent in one block */
    uint32_t largest; /* pattern of a magnitude */
    /* only where inputs are counted: whether the lower half of a pattern is not 0, in the last part; and of all parts
       how many patterns are in work->packed and work->longs */
    int has_long;
    int64_t short_patterns, long_patterns;
};

static int64_t laid_out(struct work *work, char *at, int64_t agents) {
    char *begin = at;
#define TAKE(name, size) (work->name = (void *)at, at += ((int64_t)(size) * (int64_t)sizeof *work->name + 63) / 64 * 64)
    TAKE(fine, agents * COPIES * SHORT); /* these two are zero between two passes */
    TAKE(coarse, agents * COPIES * BINS);
    TAKE(base, SPACED);
    TAKE(inputs, 3 * agents * SPACED);
    TAKE(scaled, agents * SPACED);
    TAKE(delta, SPACED);
    TAKE(step, SPACED);
    TAKE(other_step, SPACED);
    TAKE(patterns, SPACED);
    TAKE(packed, agents * SPACED);
    TAKE(places, SPACED);
    TAKE(longs, agents * SPACED);
    TAKE(decoded, (agents + 1) * SPACED);
    TAKE(tails, (2 * agents + 1) * BLOCK * 4);
    TAKE(columns, agents * QUANTITIES);
    TAKE(active, agents * WORDS);
    TAKE(rising, agents * WORDS);
    TAKE(once, WORDS);
    TAKE(alone, WORDS + 1);
    TAKE(shared, WORDS + 1);
#undef TAKE
    return at - begin;
}

int64_t ENTRY(workspace_bytes)(int64_t agents) {
    struct work work;
    return laid_out(&work, NULL, agents);
}

/* Vectors */

#define SPLAT(x) ((x) - (floats){0}) /* x - 0 is x, -0 too */
#define ZERO ((floats){0})

INLINE floats load(const float *at) {
    floats values;
    memcpy(&values, at, sizeof values);
    return values;
}
INLINE void store(float *at, floats values) { memcpy(at, &values, sizeof values); }
INLINE floats where(ints condition, floats yes, floats no) {
    return (floats)((condition & (ints)yes) | (~condition & (ints)no));
}
INLINE ints magnitude(floats x) { return (ints)x & 0x7FFFFFFF; }
INLINE floats absolute(floats x) { return (floats)magnitude(x); }
#if WIDTH == 16
INLINE uints load_halves(const uint16_t *at) {
    return (uints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)at));
}
INLINE void store_halves(uint16_t *at, uints values) {
    _mm256_storeu_si256((void *)at, _mm512_cvtepi32_epi16((__m512i)values));
}
INLINE uint32_t bits_above(floats a, floats b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
typedef __mmask16 mask;
INLINE mask mask_at(const uint64_t *bits, int64_t i) {
    mask loaded;
    memcpy(&loaded, (const char *)bits + i / 8, sizeof loaded);
    return loaded;
}
INLINE floats kept(mask mask, floats x) { return (floats)_mm512_maskz_mov_ps(mask, (__m512)x); }
INLINE ints larger_of(ints a, ints b) { return (ints)_mm512_max_epi32((__m512i)a, (__m512i)b); }
#elif WIDTH == 8
INLINE uints load_halves(const uint16_t *at) {
    return (uints)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)at));
}
INLINE void store_halves(uint16_t *at, uints values) {
    __m256i wide = (__m256i)values;
    _mm_storeu_si128((void *)at, _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
}
INLINE uint32_t bits_above(floats a, floats b) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ));
}
typedef ints mask;
INLINE mask mask_at(const uint64_t *bits, int64_t i) {
    const ints own = {1, 2, 4, 8, 16, 32, 64, 128};
    int32_t loaded;
    memcpy(&loaded, (const char *)bits + i / 8, sizeof loaded); /* more than it needs, of which there is enough */
    return (((ints){0} + loaded) & own) == own;
}
INLINE floats kept(mask mask, floats x) { return (floats)(mask & (ints)x); }
INLINE ints larger_of(ints a, ints b) { return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b); }
#else
INLINE uints load_halves(const uint16_t *at) {
    halves loaded;
    memcpy(&loaded, at, sizeof loaded);
    return __builtin_convertvector(loaded, uints);
}
INLINE void store_halves(uint16_t *at, uints values) {
    halves narrow = __builtin_convertvector(values, halves);
    memcpy(at, &narrow, sizeof narrow);
}
INLINE uint32_t bits_above(floats a, floats b) {
    ints above = (a > b) & (ints){1, 2, 4, 8};
    return (uint32_t)(above[0] | above[1] | above[2] | above[3]);
}
typedef ints mask;
INLINE mask mask_at(const uint64_t *bits, int64_t i) {
    const ints own = {1, 2, 4, 8};
    return (((ints){0} + (int32_t)(bits[i / 64] >> i % 64)) & own) == own;
}
INLINE floats kept(mask mask, floats x) { return (floats)(mask & (ints)x); }
INLINE ints larger_of(ints a, ints b) {
    ints larger = a > b;
    return (larger & a) | (~larger & b);
}
#endif
INLINE int64_t summed(ints counts) {
    int64_t total = 0;
    for (int i = 0; i < WIDTH; i++) total += counts[i];
    return total;
}

/* Stored elements */

INLINE floats from_half(uints half) {
    uints bits = (half & 0x7FFF) << 13, special = (uints)(bits >= 0x0F800000), subnormal = (uints)(bits < 0x00800000);
    /* exact, also in threads that take subnormal floats for 0 */
    uints small = (uints)((floats)(bits | 0x38800000) - 0x1p-14f), normal = bits + 0x38000000 + (special & 0x38000000);
    return (floats)((subnormal & small) | (~subnormal & normal) | ((half & 0x8000) << 16));
}

INLINE uints to_half(floats value) { /* to nearest, ties to even */
    uints sign = (uints)value & 0x80000000u, size = (uints)value ^ sign;
    uints normal = (size + 0xC8000FFFu + ((size >> 13) & 1)) >> 13;
    uints small = (uints)((floats)size + 0.5f) - 0x3F000000u; /* the addition rounds to steps of 2^-24 */
    uints special = ((uints)(size > 0x7F800000u) & 0x7E00) | 0x7C00;
    uints is_small = (uints)(size < 0x38800000u), is_special = (uints)(size >= 0x47800000u);
    uints rounded = (is_small & small) | (~is_small & normal);
    return ((is_special & special) | (~is_special & rounded)) | (sign >> 16);
}

INLINE floats stored_at(const void *row, const int kind, int64_t i) {
    if (kind == FLOAT32) return load((const float *)row + i);
    uints wide = load_halves((const uint16_t *)row + i);
    return kind == BFLOAT16 ? (floats)(wide << 16) : from_half(wide);
}

INLINE void prefetch(const void *row, const int kind, int64_t i) { /* what the next block has there */
    if (kind != FLOAT32) __builtin_prefetch((const uint16_t *)row + i + BLOCK, 0, 2);
}

#define BY_KIND(kind, call) /* call(kind) with a constant, so that no element asks for it */ \
    switch (kind) {                                                                         \
    case FLOAT32: call(FLOAT32); break;                                                     \
    case BFLOAT16: call(BFLOAT16); break;                                                   \
    default: call(FLOAT16);                                                                 \
    }

static void decode(const void *row, int64_t kind, int64_t n, float *out) {
#define DECODE(kind) \
    for (int64_t i = 0; i < n; i += WIDTH) store(out + i, stored_at(row, kind, i))
    BY_KIND(kind, DECODE)
}

/* Draws: counter_rng.py */

#define GOLDEN 0x9E3779B97F4A7C15u
#define FACTOR1 0xBF58476D1CE4E5B9u
#define FACTOR2 0x94D049BB133111EBu

INLINE uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * FACTOR1;
    x = (x ^ (x >> 27)) * FACTOR2;
    return x ^ (x >> 31);
}
INLINE uint64_t draw(uint64_t first, uint64_t second, uint64_t index) {
    return mixed(mixed(index * GOLDEN + first) ^ second);
}

struct draws {
    longs even, odd; /* counters of the next WIDTH elements */
    uint64_t second;
};

INLINE struct draws draws_from(uint64_t first, uint64_t second, uint64_t index) {
    uint64_t even[WIDTH / 2], odd[WIDTH / 2];
    for (uint64_t i = 0; i < WIDTH / 2; i++) {
        even[i] = (index + 2 * i) * GOLDEN + first;
        odd[i] = (index + 2 * i + 1) * GOLDEN + first;
    }
    struct draws draws = {.second = second};
    memcpy(&draws.even, even, sizeof even);
    memcpy(&draws.odd, odd, sizeof odd);
    return draws;
}
INLINE longs nearly_mixed(longs x, uint64_t second) { /* what the last step leaves out changes the lower 33 bits only */
    x = (x ^ (x >> 30)) * FACTOR1;
    x = (x ^ (x >> 27)) * FACTOR2;
    x = x ^ (x >> 31) ^ second;
    x = (x ^ (x >> 30)) * FACTOR1;
    return (x ^ (x >> 27)) * FACTOR2;
}
INLINE uints next(struct draws *draws) { /* upper halves of the next WIDTH draws, right but for the lowest bit */
    longs even = nearly_mixed(draws->even, draws->second), odd = nearly_mixed(draws->odd, draws->second);
    draws->even += WIDTH * GOLDEN;
    draws->odd += WIDTH * GOLDEN;
    return (uints)((even >> 32) | (odd & 0xFFFFFFFF00000000u)); /* little-endian */
}

static void draw_uniform(uint64_t first, uint64_t second, uint64_t index, int64_t n, float *out) {
    struct draws draws = draws_from(first, second, index);
    for (int64_t i = 0; i < n; i += WIDTH)
        store(out + i, __builtin_convertvector((ints)(next(&draws) >> 8), floats) * 0x1p-24f);
}

/* Packing what is not zero; up to 32 elements behind what is returned are written, too. */

#if defined __x86_64__
/* By which of eight elements are zero: the bytes of the others, in their order. */
extern uint8_t ORDERS[256][16] __attribute__((aligned(16)));
#if MACHINE == 1 /* it runs when the library is loaded, on whatever processor */
uint8_t ORDERS[256][16];
__attribute__((constructor)) static void fill_orders(void) {
    for (int zeros = 0; zeros < 256; zeros++)
        for (int element = 0, at = 0; element < 8; element++)
            if (!(zeros >> element & 1)) {
                ORDERS[zeros][at++] = (uint8_t)(2 * element);
                ORDERS[zeros][at++] = (uint8_t)(2 * element + 1);
            }
}
#endif
#endif
#if WIDTH == 8
INLINE int filled(__m128i eight, __m128i *order) { /* how many of eight are not zero */
    __m128i is_zero = _mm_cmpeq_epi16(eight, _mm_setzero_si128());
    int zeros = _mm_movemask_epi8(_mm_packs_epi16(is_zero, _mm_setzero_si128()));
    *order = _mm_load_si128((const void *)ORDERS[zeros]);
    return 8 - __builtin_popcount((unsigned)zeros);
}
#endif

/* Of uint16_t from[n], or of the upper halves of the patterns of float from[n], those that are not zero, packed, and
   their places unless that is NULL. */
INLINE int64_t pack_from(const void *from, const int floating, int64_t n, uint16_t *packed, uint16_t *places) {
    const uint16_t *values = from;
    const float *deltas = from;
    int64_t found = 0;
#if WIDTH == 16
    uint16_t numbers[32], upper[32];
    for (int i = 0; i < 32; i++) numbers[i] = (uint16_t)i, upper[i] = (uint16_t)(2 * i + 1);
    __m512i at = _mm512_loadu_si512(numbers), halves = _mm512_loadu_si512(upper), some;
    for (int64_t i = 0; i < n; i += 32) {
        if (!floating)
            some = _mm512_loadu_si512(values + i);
        else {
            __m512i first = _mm512_loadu_si512(deltas + i), second = _mm512_loadu_si512(deltas + i + 16);
            some = _mm512_permutex2var_epi16(first, halves, second);
            some = _mm512_and_si512(some, _mm512_set1_epi16(0x7FFF));
        }
        __mmask32 filled = _mm512_test_epi16_mask(some, some);
        _mm512_storeu_si512(packed + found, _mm512_maskz_compress_epi16(filled, some));
        if (places) {
            _mm512_storeu_si512(places + found, _mm512_maskz_compress_epi16(filled, at));
            at = _mm512_add_epi16(at, _mm512_set1_epi16(32));
        }
        found += __builtin_popcount(filled);
    }
#elif WIDTH == 8
    __m128i at = _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7), some, order;
    for (int64_t i = 0; i < n; i += 8) {
        if (!floating)
            some = _mm_loadu_si128((const void *)(values + i));
        else {
            __m128i first = _mm_srli_epi32(_mm_loadu_si128((const void *)(deltas + i)), 16);
            __m128i second = _mm_srli_epi32(_mm_loadu_si128((const void *)(deltas + i + 4)), 16);
            some = _mm_and_si128(_mm_packus_epi32(first, second), _mm_set1_epi16(0x7FFF));
        }
        int more = filled(some, &order);
        _mm_storeu_si128((void *)(packed + found), _mm_shuffle_epi8(some, order));
        if (places) {
            _mm_storeu_si128((void *)(places + found), _mm_shuffle_epi8(at, order));
            at = _mm_add_epi16(at, _mm_set1_epi16(8));
        }
        found += more;
    }
#else
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        if (floating) memcpy(&bits, deltas + i, 4);
        packed[found] = floating ? (uint16_t)(bits >> 16 & 0x7FFF) : values[i];
        if (places) places[found] = (uint16_t)i;
        found += packed[found] != 0;
    }
#endif
    return found;
}

static int64_t pack(const uint16_t *values, int64_t n, uint16_t *packed, uint16_t *places) {
    return pack_from(values, 0, n, packed, places);
}

/* Upper halves of the patterns of deltas[n] that are not zero and whose lower half is. */
static int64_t pack_short(
    const struct work *work, const float *deltas, int64_t n, int has_long, uint16_t *packed
) {
    if (!has_long) return pack_from(deltas, 1, n, packed, NULL);
    for (int64_t i = 0; i < n; i += WIDTH) {
        ints bits = magnitude(load(deltas + i)), is_short = (bits & 0xFFFF) == 0;
        store_halves(work->patterns + i, (uints)(is_short & (bits >> 16)));
    }
    return pack(work->patterns, n, packed, NULL);
}

/* Patterns of deltas[n] whose lower half is not zero. */
static int64_t pack_long(const float *deltas, int64_t n, uint32_t *packed) {
    int64_t found = 0;
#if WIDTH == 16
    for (int64_t i = 0; i < n; i += 16) {
        __m512i some = _mm512_and_si512(_mm512_loadu_si512(deltas + i), _mm512_set1_epi32(0x7FFFFFFF));
        __mmask16 filled = _mm512_test_epi32_mask(some, _mm512_set1_epi32(0xFFFF));
        _mm512_storeu_si512(packed + found, _mm512_maskz_compress_epi32(filled, some));
        found += __builtin_popcount(filled);
    }
#else
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, deltas + i, 4);
        packed[found] = bits & 0x7FFFFFFF;
        found += (bits & 0xFFFF) != 0;
    }
#endif
    return found;
}

/* Differences, and where they are active */

/* Of `together` agents from `first`, for whom all that the loop keeps fits the vector registers. */
INLINE void differences_of(
    const struct work *work, const void *const *rows, const int kind, const int together, const int counting,
    int64_t first, int64_t place, int64_t n, float epsilon, struct found *found
) {
    floats limit = SPLAT(epsilon);
    ints ored[3] = {{0}, {0}, {0}}, largest[3] = {{0}, {0}, {0}};
    const void *base_row = rows[0], *agent_rows[3];
    float *bases = work->base, *deltas[3];
    half_words *active[3], *rising[3]; /* little-endian */
    for (int k = 0; k < together; k++) {
        agent_rows[k] = rows[1 + first + k];
        deltas[k] = work->inputs + (first + k) * SPACED;
        active[k] = (half_words *)(work->active + (first + k) * WORDS);
        rising[k] = (half_words *)(work->rising + (first + k) * WORDS);
    }
    for (int64_t line = place; line < place + n; line += 32) {
        prefetch(base_row, kind, line);
#pragma GCC unroll 3
        for (int k = 0; k < together; k++) prefetch(agent_rows[k], kind, line);
        uint32_t active_bits[3] = {0}, rising_bits[3] = {0};
#pragma GCC unroll 8
        for (int64_t i = line; i < line + 32; i += WIDTH) {
            floats base = stored_at(base_row, kind, i);
            store(bases + i, base);
#pragma GCC unroll 3
            for (int k = 0; k < together; k++) {
                floats delta = stored_at(agent_rows[k], kind, i) - base;
                ints bits = magnitude(delta);
                store(deltas[k] + i, delta);
                active_bits[k] |= bits_above(absolute(delta), limit) << (i - line);
                if (counting) rising_bits[k] |= bits_above(delta, limit) << (i - line);
                if (counting)
                    ored[k] |= bits;
                else
                    largest[k] = larger_of(bits, largest[k]);
            }
        }
        for (int k = 0; k < together; k++) {
            active[k][line / 32] = active_bits[k];
            if (counting) rising[k][line / 32] = rising_bits[k];
        }
    }
    for (int k = 0; k < together; k++)
        for (int i = 0; i < WIDTH; i++) {
            if (found[first + k].largest < (uint32_t)largest[k][i]) found[first + k].largest = (uint32_t)largest[k][i];
            found[first + k].has_long = found[first + k].has_long || (ored[k][i] & 0xFFFF) != 0;
        }
}

static void differences(
    const struct work *work, const struct call *call, const void *const *rows, int counting, int64_t n,
    struct found *found
) {
    int64_t agents = call->agents, kind = call->kinds[0];
    const void *floats_at[agents + 1];
    for (int64_t k = 1; k <= agents; k++)
        if (call->kinds[k] != call->kinds[0]) kind = -1;
    if (kind < 0) { /* not all alike */
        for (int64_t k = 0; k <= agents; k++) {
            decode(rows[k], call->kinds[k], n, work->decoded + k * SPACED);
            floats_at[k] = work->decoded + k * SPACED;
        }
        rows = floats_at, kind = FLOAT32;
    }
    memset(found, 0, (size_t)agents * sizeof *found);
    for (int64_t place = 0; place < n; place += NEAR) {
        int64_t few = MIN(NEAR, n - place);
        for (int64_t k = 0; k < agents; k += 3) {
            float epsilon = (float)call->epsilon;
#define TOGETHER(kind, together)                                                                   \
    if (counting) differences_of(work, rows, kind, together, 1, k, place, few, epsilon, found);    \
    else differences_of(work, rows, kind, together, 0, k, place, few, epsilon, found)
#define UP_TO_THREE(kind)                                                                          \
    if (agents - k >= 3) { TOGETHER(kind, 3); }                                                    \
    else if (agents - k == 2) { TOGETHER(kind, 2); }                                               \
    else { TOGETHER(kind, 1); }
            BY_KIND(kind, UP_TO_THREE)
        }
        for (int64_t k = 0; counting && k < agents; k++) {
            const float *deltas = work->inputs + k * SPACED + place;
            uint16_t *packed = work->packed + k * SPACED + found[k].short_patterns;
            found[k].short_patterns += pack_short(work, deltas, few, found[k].has_long, packed);
            if (found[k].has_long)
                found[k].long_patterns += pack_long(deltas, few, work->longs + k * SPACED + found[k].long_patterns);
            found[k].has_long = 0;
        }
    }
}

/* Where one agent alone is active. */
static void find_once(const struct work *work, int64_t agents, int64_t n) {
    for (int64_t word = 0; word < n / 64; word++) {
        uint64_t some = 0, several = 0;
        for (int64_t k = 0; k < agents; k++) {
            uint64_t active = work->active[k * WORDS + word];
            several |= some & active;
            some |= active;
        }
        work->once[word] = some & ~several;
    }
}

/* Where an agent alone is active, and where with others, of a part of a block. */
static void mark_alone(const struct work *work, int64_t agent, int64_t place, int64_t n) {
    for (int64_t word = 0; word < n / 64; word++) {
        uint64_t active = work->active[agent * WORDS + place / 64 + word], once = work->once[place / 64 + word];
        work->alone[word] = active & once;
        work->shared[word] = active & ~once;
    }
}

/* Counting a block of the inputs */

INLINE void count_overlaps_of(const struct work *work, const int64_t agents, int64_t n, int64_t *by_overlap) {
    enum { DIGITS = 7 }; /* of how many agents are active */
    for (int64_t word = 0; word < n / 64; word++) {
        uint64_t digits[DIGITS] = {0};
        for (int64_t k = 0; k < agents; k++) {
            uint64_t carried = work->active[k * WORDS + word];
            for (int digit = 0; agents >> digit; digit++) {
                uint64_t sum = digits[digit] ^ carried;
                carried &= digits[digit];
                digits[digit] = sum;
            }
        }
        for (int64_t c = 1; c <= agents; c++) {
            uint64_t so_many = ~(uint64_t)0;
            for (int digit = 0; agents >> digit; digit++) so_many &= c >> digit & 1 ? digits[digit] : ~digits[digit];
            for (int64_t k = 0; k < agents; k++)
                by_overlap[k * (agents + 1) + c] += __builtin_popcountll(work->active[k * WORDS + word] & so_many);
        }
    }
}

static void count_overlaps(const struct work *work, int64_t agents, int64_t n, int64_t *by_overlap) {
    if (agents == 2)
        count_overlaps_of(work, 2, n, by_overlap);
    else if (agents == 3)
        count_overlaps_of(work, 3, n, by_overlap);
    else
        count_overlaps_of(work, agents, n, by_overlap);
}

static void count_pairs(const struct work *work, int64_t agents, int64_t n, const struct counted *to) {
    for (int64_t word = 0; word < n / 64; word++) {
        const uint64_t *active = work->active + word, *rising = work->rising + word;
        uint64_t rises = 0, falls = 0;
        for (int64_t a = 0; a < agents; a++) {
            rises |= rising[a * WORDS];
            falls |= active[a * WORDS] & ~rising[a * WORDS];
            for (int64_t b = a + 1; b < agents; b++) {
                uint64_t both = active[a * WORDS] & active[b * WORDS];
                to->pair_active[a * agents + b] += __builtin_popcountll(both);
                to->pair_agree[a * agents + b] += __builtin_popcountll(both & ~(rising[a * WORDS] ^ rising[b * WORDS]));
            }
        }
        *to->conflict += __builtin_popcountll(rises & falls);
    }
}

/* Counts values[n] in COPIES rows of counters that lie `stride` apart, and widens span[2] to the least and largest. */
INLINE void count_halves(const uint16_t *values, int64_t n, uint32_t *counters, const int64_t stride, int64_t span[2]) {
    uint16_t low = 0xFFFF, high = 0;
    int64_t i = 0;
    for (i = 0; i < n; i++) low = MIN(low, values[i]), high = MAX(high, values[i]);
    span[0] = MIN(span[0], low), span[1] = MAX(span[1], high);
    for (i = 0; i + 8 <= n; i += 8) {
        uint64_t four, more;
        memcpy(&four, values + i, 8);
        memcpy(&more, values + i + 4, 8);
        counters[four & 0xFFFF]++;
        counters[stride + ((four >> 16) & 0xFFFF)]++;
        counters[2 * stride + ((four >> 32) & 0xFFFF)]++;
        counters[3 * stride + (four >> 48)]++;
        counters[more & 0xFFFF]++;
        counters[stride + ((more >> 16) & 0xFFFF)]++;
        counters[2 * stride + ((more >> 32) & 0xFFFF)]++;
        counters[3 * stride + (more >> 48)]++;
    }
    for (; i < n; i++) counters[values[i]]++;
}

/* Returns how many magnitudes are not zero. */
static int64_t count_magnitudes(
    const struct work *work, int64_t agent, struct found *in, int64_t *largest, int64_t *least
) {
    uint64_t *coarse = work->coarse + agent * COPIES * BINS;
    int64_t found = in->short_patterns, span[2] = {0xFFFF, 0};
    count_halves(work->packed + agent * SPACED, found, work->fine + agent * COPIES * SHORT, SHORT, span);
    if (found) *least = MIN(*least, (span[0] << 16) - 1);
    in->largest = (uint32_t)span[1] << 16;
    for (int64_t i = 0; i < in->long_patterns; i++) {
        uint32_t bits = work->longs[agent * SPACED + i];
        in->largest = MAX(in->largest, bits);
        *least = MIN(*least, (int64_t)bits - 1);
        coarse[(i % COPIES) * BINS + (bits >> LOW_BITS)] += ((uint64_t)1 << COUNT_SHIFT) + (bits & ((1 << LOW_BITS) - 1));
    }
    *largest = MAX(*largest, (int64_t)in->largest);
    return found + in->long_patterns;
}

static void count_nonfinite(
    const struct work *work, const struct call *call, const void *const *rows, int64_t n, const struct counted *to
) {
    for (int64_t k = 0; k <= call->agents; k++) {
        float *values = work->step; /* which nobody has written yet */
        decode(rows[k], call->kinds[k], (n + ROWS - 1) / ROWS * ROWS, values);
        for (int64_t i = 0; i < n; i++) {
            to->nonfinite[k] += !(values[i] - values[i] == 0);
            /* two infinities are the same value, whose difference is none */
            if (k > 0) to->identical[k - 1] += values[i] == work->base[i] && values[i] - values[i] != 0;
        }
    }
}

/* counting.block_scales of one block */
static float scale_of(uint32_t pattern) {
    int64_t exponent = pattern >> 23;
    if (pattern == 0 || (103 <= exponent && exponent < 151)) return 1;
    int64_t inverse = 254 - exponent;
    uint32_t bits = (uint32_t)(inverse < 1 ? 1 : inverse > 254 ? 254 : inverse) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return scale;
}

static void scale(const float *values, float factor, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += WIDTH) store(out + i, load(values + i) * factor);
}

/* Sums over a block in counting.block_sums's order: LANES columns, groups of four rows, columns halved as a tree. */

static double total(floats lanes[LANES / WIDTH]) {
    float columns[LANES];
    memcpy(columns, lanes, sizeof columns);
#pragma GCC unroll 6
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) columns[i] += columns[i + half];
    return columns[0];
}

#define GROUPED(p) (((p)[0] + (p)[1]) + ((p)[2] + (p)[3]))

static void powers(const float *x, int64_t n, double out[4]) { /* Σx, Σx³, Σx⁴, Σx² */
    floats lanes[4][LANES / WIDTH];
    for (int column = 0; column < LANES / WIDTH; column++) {
        floats sums[4] = {ZERO, ZERO, ZERO, ZERO};
        for (int64_t i = column * WIDTH; i < n; i += ROWS) {
            floats own[4], cubes[4], fourths[4], squares[4];
#pragma GCC unroll 4
            for (int row = 0; row < 4; row++) {
                own[row] = load(x + i + row * LANES);
                squares[row] = own[row] * own[row];
                cubes[row] = squares[row] * own[row];
                fourths[row] = squares[row] * squares[row];
            }
            sums[0] += GROUPED(own), sums[1] += GROUPED(cubes), sums[2] += GROUPED(fourths);
            sums[3] += GROUPED(squares);
        }
        for (int quantity = 0; quantity < 4; quantity++) lanes[quantity][column] = sums[quantity];
    }
    for (int quantity = 0; quantity < 4; quantity++) out[quantity] = total(lanes[quantity]);
}

static double dot(const float *x, const float *y, int64_t n) {
    floats lanes[LANES / WIDTH] = {ZERO};
    for (int64_t i = 0; i < n; i += ROWS)
#pragma GCC unroll 16
        for (int column = 0; column < LANES / WIDTH; column++) {
            floats products[4];
#pragma GCC unroll 4
            for (int row = 0; row < 4; row++) {
                int64_t at = i + row * LANES + column * WIDTH;
                products[row] = load(x + at) * load(y + at);
            }
            lanes[column] += GROUPED(products);
        }
    return total(lanes);
}

/* Adds x² to the columns, and x · y of each of `others` to columns of its own, where there are bits. */
INLINE void add_where(const uint64_t *bits, const float *x, const float *const *others, const int count, int64_t n,
                      floats (*columns)[LANES / WIDTH]) {
    for (int64_t i = 0; i < n; i += ROWS)
        for (int column = 0; column < LANES / WIDTH; column++) {
            floats values[4], products[4];
            mask masks[4];
#pragma GCC unroll 4
            for (int row = 0; row < 4; row++) {
                int64_t at = i + row * LANES + column * WIDTH;
                values[row] = load(x + at);
                masks[row] = mask_at(bits, at);
                products[row] = kept(masks[row], values[row] * values[row]);
            }
            columns[0][column] += GROUPED(products);
#pragma GCC unroll 3
            for (int y = 0; y < count; y++) {
#pragma GCC unroll 4
                for (int row = 0; row < 4; row++) {
                    int64_t at = i + row * LANES + column * WIDTH;
                    products[row] = kept(masks[row], values[row] * load(others[y] + at));
                }
                columns[y + 1][column] += GROUPED(products);
            }
        }
}

static int64_t pair(int64_t a, int64_t b, int64_t agents) { /* where `sums` has agents a <= b */
    return 3 * agents + a * agents - a * (a - 1) / 2 + b - a;
}

static int is_safe(const struct found *found, int64_t agents) {
    for (int64_t k = 0; k < agents; k++)
        if (scale_of(found[k].largest) != 1) return 0;
    return 1;
}

static const float *scaled(const struct work *work, const struct found *found, int64_t agents, int64_t n) {
    if (is_safe(found, agents)) return work->inputs;
    for (int64_t k = 0; k < agents; k++)
        scale(work->inputs + k * SPACED, scale_of(found[k].largest), n, work->scaled + k * SPACED);
    return work->scaled;
}

static void count_inputs(
    const struct work *work, const struct call *call, const void *const *rows, struct found *found, int64_t block,
    int64_t n, int64_t padded
) {
    struct counted to = counted(call);
    int64_t agents = call->agents, blocks = (call->elements + BLOCK - 1) / BLOCK;
    double *sums = call->sums + block;
    int finite = 1;
    count_overlaps(work, agents, padded, to.by_overlap);
    count_pairs(work, agents, padded, &to);
    for (int64_t k = 0; k < agents; k++) {
        to.identical[k] += n - count_magnitudes(work, k, found + k, to.largest + k, to.least + k);
        finite &= found[k].largest < 0x7F800000u;
    }
    if (!finite) count_nonfinite(work, call, rows, n, &to);
    const float *values = scaled(work, found, agents, padded);
    for (int64_t a = 0; a < agents; a++) {
        double out[4], undo = 1 / (double)scale_of(found[a].largest);
        powers(values + a * SPACED, padded, out);
        sums[a * blocks] = out[0] * undo;
        sums[(agents + a) * blocks] = out[1] * (undo * undo * undo);
        sums[(2 * agents + a) * blocks] = out[2] * (undo * undo * (undo * undo));
        sums[pair(a, a, agents) * blocks] = out[3] * (undo * undo);
        for (int64_t b = a + 1; b < agents; b++) {
            double other = 1 / (double)scale_of(found[b].largest);
            sums[pair(a, b, agents) * blocks] =
                dot(values + a * SPACED, values + b * SPACED, padded) * (undo * other);
        }
    }
}

/* Adds a part of a block, while it is in the first cache level, to each agent's columns: Σx², Σx·merged, Σx·step and
   Σx·other step where it is active alone, then Σx² and Σx·merged where others are, too. `common`: a scale. */
static void add_result(
    const struct work *work, const float *values, int64_t agents, float common, int has_other, int64_t place, int64_t n
) {
    const float *merged = work->delta + place, *step = work->step + place, *other = work->other_step + place;
    if (common != 1) {
        scale(merged, common, n, work->delta + place);
        scale(step, common, n, work->step + place);
        if (has_other) scale(other, common, n, work->other_step + place);
    }
    for (int64_t k = 0; k < agents; k++) {
        const float *own = values + k * SPACED + place;
        floats(*columns)[LANES / WIDTH] = work->columns + k * QUANTITIES;
        mark_alone(work, k, place, n);
        if (has_other)
            add_where(work->alone, own, (const float *[]){merged, step, other}, 3, n, columns);
        else
            add_where(work->alone, own, (const float *[]){merged, step}, 2, n, columns);
        add_where(work->shared, own, (const float *[]){merged}, 1, n, columns + ALONE);
    }
}

/* The sums of a block's columns */
static void sum_result(
    const struct work *work, const struct call *call, const struct found *found, float common, int has_other,
    int64_t block
) {
    int64_t agents = call->agents, blocks = (call->elements + BLOCK - 1) / BLOCK;
    for (int64_t k = 0; k < agents; k++) {
        double undo = 1 / (double)scale_of(found[k].largest), both = undo / (double)common;
        for (int64_t quantity = 0; quantity < QUANTITIES; quantity++) {
            int64_t column = quantity == 3 && !has_other ? 2 : quantity;
            double sum = total(work->columns[k * QUANTITIES + column]);
            call->result_sums[(quantity * agents + k) * blocks + block] = sum * (quantity % ALONE == 0 ? undo * undo : both);
        }
    }
}

/* The methods' kernels: hubmerge/methods, operation by operation. */

#define IN(row) load(inputs + (row) * SPACED + i)
#define OF(k, column) SPLAT(per_agent[(k) * columns + (column)])
#define KERNEL(name)                                                                                           \
    INLINE floats name(const float *inputs, const float *per_agent, int64_t columns, const float *constants,   \
                       const int64_t agents, int64_t i)
#define ONE SPLAT(1.0f)
#define EACH_AGENT _Pragma("GCC unroll 3") for (int64_t k = 0; k < agents; k++)

KERNEL(linear) {
    floats total = IN(0) * OF(0, 0);
    for (int64_t k = 1; k < agents; k++) total += IN(k) * OF(k, 0);
    return total / constants[0];
}

KERNEL(task_arithmetic) {
    floats total = IN(0) * OF(0, 0);
    for (int64_t k = 1; k < agents; k++) total += IN(k) * OF(k, 0);
    return constants[0] * total;
}

KERNEL(dare_linear) {
    floats total = IN(0) * 0.0f;
    EACH_AGENT
        total += where(IN(agents + k) >= OF(k, 1), IN(k) * OF(k, 2), ZERO) * OF(k, 0);
    return constants[0] * total;
}

KERNEL(ram) {
    floats epsilon = SPLAT(constants[0]), count = IN(0) * 0.0f, shared = count, unique = count;
    EACH_AGENT {
        floats weighted = IN(k) * OF(k, 0);
        ints active = absolute(IN(k)) > epsilon;
        count += where(active, ONE, ZERO);
        shared += where(active, weighted, ZERO);
        unique += where(active, weighted * OF(k, 1), ZERO);
    }
    ints several = count > ONE;
    return where(several, shared / where(several, count, ONE), unique);
}

KERNEL(ram_quantile) {
    floats least = SPLAT(constants[2]), count = IN(0) * 0.0f, everyone = count, unique = count;
    EACH_AGENT {
        floats weighted = IN(k) * OF(k, 0), size = absolute(IN(k));
        ints active = where(size >= OF(k, 1), size, -ONE) > least;
        count += where(active, ONE, ZERO);
        everyone += weighted;
        unique += where(active, weighted, ZERO);
    }
    return where(count > ONE, everyone / constants[1], where(count > ZERO, unique * constants[0], ZERO));
}

INLINE floats of_elected(floats agreeing, floats weights, const float *constants) {
    floats mean = SPLAT(constants[1]), divisor = mean * weights + (ONE - mean);
    return constants[0] * (agreeing / where(divisor == ZERO, ONE, divisor));
}

INLINE floats trimmed(floats update, floats least, floats weight) {
    return where(absolute(update) >= least, update * weight, ZERO);
}

#define ELECTED(update)                                                                                        \
    floats total = IN(0) * 0.0f, agreeing = total, weights = total;                                            \
    EACH_AGENT total += trimmed(update, OF(k, 1), OF(k, 0));                                                   \
    floats sign = where(total >= ZERO, ONE, -ONE);                                                             \
    EACH_AGENT {                                                                                               \
        floats kept = trimmed(update, OF(k, 1), OF(k, 0));                                                     \
        ints agrees = kept * sign > ZERO;                                                                      \
        agreeing += where(agrees, kept, ZERO);                                                                 \
        weights += where(agrees, OF(k, 0), ZERO);                                                              \
    }                                                                                                          \
    return of_elected(agreeing, weights, constants)

KERNEL(ties) { ELECTED(IN(k)); }

KERNEL(dare_ties) { ELECTED(where(IN(agents + k) >= OF(k, 2), IN(k) * OF(k, 3), ZERO)); }

KERNEL(fisher) {
    floats information = IN(0) * 0.0f, plain = information;
    EACH_AGENT {
        information += IN(agents + k) * OF(k, 0);
        plain += IN(k) * OF(k, 0);
    }
    ints known = information > ZERO;
    floats divisor = where(known, information, ONE), mean = information * 0.0f;
    EACH_AGENT mean += IN(k) * (IN(agents + k) * OF(k, 0) / divisor);
    return constants[0] * where(known, mean, plain / constants[1]);
}

KERNEL(sar) {
    floats epsilon = SPLAT(constants[0]), p = SPLAT(constants[2]);
    floats count = IN(0) * 0.0f, sign = count, most = count - ONE, total = count;
    EACH_AGENT {
        ints active = absolute(IN(k)) > epsilon;
        count += where(active, ONE, ZERO);
        floats sensitivity = where(active, IN(2 * agents + k), -ONE);
        ints decides = where(active, sensitivity, -ONE - ONE) >= most;
        sign = where(decides, where(IN(k) > ZERO, ONE, -ONE), sign);
        most = where(decides, sensitivity, most);
    }
    EACH_AGENT {
        ints agrees = where(absolute(IN(k)) > epsilon, IN(k) * sign, ZERO) > ZERO;
        ints weak = where(count > ONE, ZERO, where(absolute(IN(k)) > OF(k, 1), ZERO, ONE)) > ZERO;
        floats thinned = where(IN(agents + k) >= p, IN(k) * constants[3], ZERO);
        total += where(agrees, where(weak, thinned, IN(k)) * OF(k, 0), ZERO);
    }
    return constants[1] * total;
}

#define EACH_KERNEL(DO) \
    DO(linear) DO(task_arithmetic) DO(dare_linear) DO(ram) DO(ram_quantile) DO(ties) DO(dare_ties) DO(fisher) DO(sar)

#define OVER_ELEMENTS(name, agents)                                                                            \
    for (int64_t i = 0; i < n; i += WIDTH)                                                                     \
        store(out + i, name(inputs, per_agent, columns, constants, agents, i))
#define LOOP(name)                                                                                             \
    static void each_##name(const float *inputs, const struct call *call, int64_t n, float *restrict out) {    \
        int64_t columns = call->columns, count = call->agents;                                                 \
        const float *per_agent = call->per_agent, *constants = call->constants;                                \
        if (count == 2) OVER_ELEMENTS(name, 2);                                                                \
        else if (count == 3) OVER_ELEMENTS(name, 3);                                                           \
        else OVER_ELEMENTS(name, count);                                                                       \
    }
EACH_KERNEL(LOOP)

static const struct {
    const char *module; /* of hubmerge/methods */
    void (*each)(const float *inputs, const struct call *call, int64_t n, float *restrict out);
} KERNELS[] = {
#define LISTED(name) {#name, each_##name},
    EACH_KERNEL(LISTED)};

/* The number of a module's kernel, -1 where there is none. */
int64_t ENTRY(kernel_number)(const char *module) {
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (!strcmp(KERNELS[i].module, module)) return (int64_t)i;
    return -1;
}

/* Rounding and storing */

INLINE uints rounded_bf16(floats value, const int stochastic, uints drawn) { /* lower halves are zero */
    uints bits = (uints)value, is_nan = (uints)(value != value);
    bits += stochastic ? drawn >> 16 : 0x7FFF + ((bits >> 16) & 1);
    return ((is_nan & 0x7FC00000u) | (~is_nan & bits)) & 0xFFFF0000u;
}

INLINE floats rounded_f16(
    floats value, const int stochastic, uint64_t first, uint64_t second, uint64_t index, uints *patterns
) {
    uints near = to_half(value);
    if (stochastic) { /* of the patterns of a sign, one less is one step toward zero */
        uints inner = near + (uints)(absolute(from_half(near)) > absolute(value));
        floats low = from_half(inner), high = from_half(inner + 1);
        for (int i = 0; i < WIDTH; i++) {
            double chance = (double)(draw(first, second, index + (uint64_t)i) >> 11) * 0x1p-53;
            uint32_t step = chance < ((double)value[i] - (double)low[i]) / ((double)high[i] - (double)low[i]);
            if ((near[i] & 0x7C00) != 0x7C00) near[i] = inner[i] + step;
        }
    }
    *patterns = near;
    return from_half(near);
}

INLINE void finish_as(
    const int kind, const int stochastic, const int has_other, const int recode, const struct work *work,
    const struct call *call, int64_t place, uint64_t index, int64_t n, void *out, int64_t *result
) {
    const float *bases = work->base + place, *deltas = work->delta + place;
    struct draws draws = draws_from(call->first, call->second, index);
    ints changed = {0}, moved = {0}, nonfinite = {0};
    for (int64_t i = 0; i < n; i += WIDTH) {
        floats base = load(bases + i), delta = load(deltas + i), stored, other = ZERO, before = base;
        floats exact = where(delta == ZERO, base, base + delta); /* base + 0 would turn -0 into +0 */
        if (kind == FLOAT32) {
            stored = exact;
            store((float *)out + i, exact);
        } else if (kind == BFLOAT16) {
            uints drawn = stochastic || has_other ? next(&draws) : (uints){0};
            uints bits = rounded_bf16(exact, stochastic, drawn);
            stored = (floats)bits;
            store_halves((uint16_t *)out + i, bits >> 16);
            if (has_other) other = (floats)rounded_bf16(exact, !stochastic, drawn);
            if (recode) before = (floats)rounded_bf16(base, 0, drawn);
        } else {
            uints bits, unused;
            stored = rounded_f16(exact, stochastic, call->first, call->second, index + (uint64_t)i, &bits);
            store_halves((uint16_t *)out + i, bits);
            if (has_other)
                other = rounded_f16(exact, !stochastic, call->first, call->second, index + (uint64_t)i, &unused);
            if (recode) before = rounded_f16(base, 0, 0, 0, 0, &unused);
        }
        store(work->step + place + i, stored - base);
        if (has_other) store(work->other_step + place + i, other - base);
        changed -= stored != before;
        moved -= stored != exact;
        nonfinite -= ((ints)stored & 0x7F800000) == 0x7F800000;
    }
    result[CHANGED] += summed(changed);
    result[ROUNDED] += summed(moved);
    result[NONFINITE] += summed(nonfinite);
}

static void finish(
    const struct work *work, const struct call *call, int64_t place, uint64_t index, int64_t n, void *out,
    int64_t *result
) {
    int recode = call->kind != FLOAT32 && call->kinds[0] != call->kind;
#define FINISH(kind, stochastic, other) \
    finish_as(kind, stochastic, other, recode, work, call, place, index, n, out, result)
#define FINISH_16(kind)                                                                                        \
    if (call->stochastic && call->both_roundings) FINISH(kind, 1, 1);                                          \
    else if (call->stochastic) FINISH(kind, 1, 0);                                                             \
    else if (call->both_roundings) FINISH(kind, 0, 1);                                                         \
    else FINISH(kind, 0, 0)
    switch (call->kind) {
    case FLOAT32: FINISH(FLOAT32, 0, 0); break;
    case BFLOAT16: FINISH_16(BFLOAT16); break;
    default: FINISH_16(FLOAT16);
    }
}

/* Rows from which `padded` elements can be read: a last block is filled up with zeros. */
static void block_rows(const struct work *work, const struct call *call, int64_t start, int64_t n, const void **rows,
                       const float **sensitivities) {
    int64_t models = call->agents + 1, count = models + (call->sensitivities ? call->agents : 0);
    for (int64_t k = 0; k < count; k++) {
        int64_t size = k < models && call->kinds[k] != FLOAT32 ? 2 : 4;
        const char *row = k < models ? call->rows[k] : (const void *)call->sensitivities[k - models];
        char *tail = work->tails + k * BLOCK * 4;
        row += start * size;
        if (n % ROWS) memset(tail, 0, BLOCK * 4), row = memcpy(tail, row, (size_t)(n * size));
        if (k < models) rows[k] = row;
        else sensitivities[k - models] = (const float *)row;
    }
}

static void merge_block(
    const struct work *work, const struct call *call, const float *const *sensitivities, const struct found *found,
    int64_t start, int64_t first, int64_t n, int64_t padded
) {
    int64_t agents = call->agents, size = call->kind == FLOAT32 ? 4 : 2;
    int has_other = call->both_roundings && call->kind != FLOAT32;
    struct counted to = counted(call);
    float last[BLOCK];
    uint32_t largest = 0;
    for (int64_t k = 0; k < agents; k++) largest = MAX(largest, found[k].largest);
    float common = scale_of(largest);
    const float *values = scaled(work, found, agents, padded);
    memset(work->columns, 0, (size_t)agents * QUANTITIES * sizeof *work->columns);
    for (int64_t place = 0; place < padded; place += PART) {
        int64_t few = MIN(padded - place, PART), real = MAX(0, MIN(few, n - place)); /* zeros follow */
        uint64_t index = (uint64_t)(call->start + start + place);
        float *inputs = work->inputs + place, *delta = work->delta + place;
        int64_t row = agents;
        for (int64_t k = 0; call->uniform_keys && k < agents; k++)
            draw_uniform(call->uniform_keys[2 * k], call->uniform_keys[2 * k + 1], index, few, inputs + row++ * SPACED);
        for (int64_t k = 0; call->sensitivities && k < agents; k++)
            memcpy(inputs + row++ * SPACED, sensitivities[k] + place, (size_t)few * 4);
        if (call->kernel >= 0)
            KERNELS[call->kernel].each(inputs, call, few, delta);
        else
            memcpy(delta, call->given + start - first + place, (size_t)real * 4);
        memset(delta + real, 0, (size_t)(few - real) * 4);
        void *out = (char *)call->out + (start + place) * size;
        finish(work, call, place, index, few, real < few ? (void *)last : out, to.result);
        if (real < few) memcpy(out, last, (size_t)(real * size));
        add_result(work, values, agents, common, has_other, place, few);
    }
    sum_result(work, call, found, common, has_other, start / BLOCK);
}

/* Elements first … end - 1 of a chunk, `first` being a multiple of BLOCK. Counts are added to; histograms stay in the
   workspace until `take`. Of a call without sums and without an output only `by_overlap` is counted. */
void ENTRY(work)(const struct call *call, int64_t first, int64_t end) {
    int64_t agents = call->agents;
    struct work work;
    laid_out(&work, call->workspace, agents);
    for (int64_t start = first; start < end; start += BLOCK) {
        int64_t n = MIN(end - start, BLOCK), padded = (n + ROWS - 1) / ROWS * ROWS;
        const void *rows[agents + 1];
        const float *sensitivities[agents];
        struct found found[agents];
        block_rows(&work, call, start, n, rows, sensitivities);
        differences(&work, call, rows, call->sums != NULL, padded, found);
        find_once(&work, agents, padded);
        if (call->sums)
            count_inputs(&work, call, rows, found, start / BLOCK, n, padded);
        else if (!call->out)
            count_overlaps(&work, agents, padded, counted(call).by_overlap);
        if (call->out) merge_block(&work, call, sensitivities, found, start, first, n, padded);
    }
}

/* Histogram's keys, counts and offsets into out[3][room], of magnitudes from `least` + 1 to `largest`; leaves the
   workspace's counters empty. Returns how many there are. */
int64_t ENTRY(take)(const struct call *call, int64_t *out, int64_t room) {
    struct counted counts = counted(call);
    struct work work;
    int64_t filled = 0;
    laid_out(&work, call->workspace, call->agents);
    for (int64_t k = 0; k < call->agents; k++) {
        if (counts.largest[k] == 0) continue;
        for (int64_t bin = (counts.least[k] + 1) >> LOW_BITS; bin <= counts.largest[k] >> LOW_BITS; bin++) {
            int64_t count = 0, offset = 0;
            for (int64_t copy = 0; copy < COPIES; copy++) {
                uint32_t *fine = work.fine + (k * COPIES + copy) * SHORT + 4 * bin;
                uint64_t *coarse = work.coarse + (k * COPIES + copy) * BINS + bin;
                for (int64_t part = 0; part < 4; part++) count += fine[part], offset += (int64_t)fine[part] * (part << 16);
                count += (int64_t)(*coarse >> COUNT_SHIFT);
                offset += (int64_t)(*coarse & (((uint64_t)1 << COUNT_SHIFT) - 1));
                memset(fine, 0, 4 * sizeof *fine);
                *coarse = 0;
            }
            if (count == 0) continue;
            if (filled < room) out[filled] = k * BINS + bin, out[room + filled] = count, out[2 * room + filled] = offset;
            filled++;
        }
    }
    return filled;
}

/* Counting the keys of magnitudes for a threshold: selection.py */

struct ranking {
    int64_t agent;  /* whose magnitudes are counted; -1: all agents', where one alone is active */
    uint32_t *keys; /* the histogram: [COPIES][KEYS] */
    int64_t *span;  /* [2]: the smallest and the largest bin, 0 left out */
    int64_t wanted; /* lower halves of what has this key are counted; -1: the keys themselves */
    uint64_t bound; /* of a random drop: draws below bound · 2^-24 are dropped */
};

/* Keys of agent - base, or lower halves of what has the key `wanted`; 0 where there is nothing to count. */
INLINE void key_values(const void *base, const void *agent, const int kind, const int fine, int64_t n, uint16_t wanted,
                       uint16_t *values) {
    for (int64_t line = 0; line < n; line += 32) {
        prefetch(base, kind, line);
        prefetch(agent, kind, line);
#pragma GCC unroll 2
        for (int64_t i = line; i < line + 32; i += WIDTH) {
            uints bits = (uints)magnitude(stored_at(agent, kind, i) - stored_at(base, kind, i)), low = bits & 0xFFFF;
            uints key = ((bits >> 16) << 1) | ((uints)(low != 0) & 1);
            store_halves(values + i, fine ? (uints)(key == wanted) & low : key);
        }
    }
}

/* Leaves of packed[n] what a random drop leaves. */
static int64_t surviving(uint16_t *packed, const uint16_t *places, int64_t n, uint64_t first, uint64_t second,
                         uint64_t index, uint64_t bound, uint16_t *out) {
    uint64_t start = index * GOLDEN + first;
    for (int64_t i = 0; i < n; i++) {
        uint64_t drawn = mixed(mixed(places[i] * GOLDEN + start) ^ second) >> 40;
        packed[i] = drawn >= bound ? packed[i] : 0;
    }
    memset(packed + n, 0, 64);
    return pack(packed, n, out, NULL);
}

/* Counts one agent's values of a block, which lie in work->patterns. */
static void count_values(const struct work *work, const struct call *call, const struct ranking *ranking, int64_t start,
                         int64_t n, int64_t padded) {
    uint16_t *packed = work->packed;
    int64_t found = pack(work->patterns, padded, packed, call->uniform_keys ? work->places : NULL);
    if (call->uniform_keys) {
        const uint64_t *key = call->uniform_keys + 2 * ranking->agent;
        found = surviving(packed, work->places, found, key[0], key[1], (uint64_t)(call->start + start), ranking->bound,
                          work->patterns);
        packed = work->patterns;
    }
    count_halves(packed, found, ranking->keys, KEYS, ranking->span);
    if (ranking->wanted < 0 && ranking->agent >= 0) ranking->keys[0] += (uint32_t)(n - found);
}

void ENTRY(rank)(const struct call *call, const struct ranking *ranking) {
    static const float zeros[BLOCK];
    int64_t agents = call->agents, is_private = ranking->agent < 0;
    int64_t first = is_private ? 0 : ranking->agent, end = is_private ? agents : first + 1;
    struct work work;
    laid_out(&work, call->workspace, agents);
    for (int64_t start = 0; start < call->elements; start += BLOCK) {
        int64_t n = MIN(call->elements - start, BLOCK), padded = (n + ROWS - 1) / ROWS * ROWS;
        const void *rows[agents + 1];
        struct found found[agents];
        block_rows(&work, call, start, n, rows, NULL);
        int64_t kind = FLOAT32, differs = is_private;
        for (int64_t k = 1; k <= agents; k++) differs |= call->kinds[k] != call->kinds[0];
        if (differs)
            differences(&work, call, rows, 0, padded, found);
        else
            kind = call->kinds[0];
        if (is_private) find_once(&work, agents, padded);
        for (int64_t k = first; k < end; k++) {
            float *own = work.inputs + k * SPACED;
            if (is_private) mark_alone(&work, k, 0, padded);
            for (int64_t i = 0; is_private && i < padded; i += WIDTH)
                store(own + i, kept(mask_at(work.alone, i), load(own + i)));
            const void *base = differs ? zeros : rows[0], *agent = differs ? own : rows[k + 1];
#define KEY_VALUES(kind)                                                                                       \
    if (ranking->wanted < 0) key_values(base, agent, kind, 0, padded, 0, work.patterns);                       \
    else key_values(base, agent, kind, 1, padded, (uint16_t)ranking->wanted, work.patterns)
            BY_KIND(kind, KEY_VALUES)
            count_values(&work, call, ranking, start, n, padded);
        }
    }
}

/* Bins and counts of what is not empty into out[room][2]; leaves the histogram empty. */
int64_t ENTRY(take_keys)(const struct ranking *ranking, int64_t *out, int64_t room) {
    int64_t filled = 0, low = ranking->span[0], high = ranking->span[1];
    for (int64_t bin = 0; bin <= high; bin = bin == 0 && low > 0 ? low : bin + 1) {
        uint32_t *at = ranking->keys + bin, count = at[0] + at[KEYS] + at[2 * KEYS] + at[3 * KEYS];
        at[0] = at[KEYS] = at[2 * KEYS] = at[3 * KEYS] = 0;
        if (count == 0) continue;
        if (filled < room) out[2 * filled] = bin, out[2 * filled + 1] = count;
        filled++;
    }
    return filled;
}

#if MACHINE == 1
#ifndef DIGEST
#define DIGEST ""
#endif
__attribute__((visibility("default"))) const char *const source_digest = DIGEST; /* build.py's */

/* The best kind of machine that this file is compiled for and this processor is. */
__attribute__((visibility("default"))) int64_t machine(void) {
#if defined __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi2"))
        return 4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 3;
#endif
    return 1;
}
#endif
