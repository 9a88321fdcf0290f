"""Numbers that compiled code and those who call it share; what imports this module does not import the compiler."""

from __future__ import annotations

from hubmerge.engine.counting import BLOCK

WIDTH = BLOCK + 112  # of scratch rows, which would share cache sets if they lay a power of two apart
WORDS = BLOCK // 64  # of flags, one bit per element

FLUSH = 512  # blocks; 2^21 elements of offsets below 2^18 stay below 2^40
COPIES = 4
SHORT = (1 << 15) + 16  # patterns of a magnitude in BF16; copies a power of two apart would share cache sets

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # what the output is stored as

KEYS = 32  # elements that vector_code.py looks at together
KEY_BINS = 1 << 16  # of keys, and of lower halves
KEY_COPIES = 8
KEY_WIDTH = KEY_BINS + 112  # as WIDTH
KEY_BLOCK = 16_384  # long enough for reading ahead, short enough for the second cache level
PRIVATE_BLOCK = 4096  # short enough for the first, as float32
