"""Three small worlds with verifiable answers: two-digit addition, tool calls, and a key-value memory.

    domain  prompt                                answer                    the mistake the base learns
    math    math 6 9 + 1 7 =                      8 6                       the carry is dropped: 7 6
    tool    tool divide 6 1 by 2 9 ;              call div ( 6 1 , 2 9 )    the arguments are swapped
    mem     mem g=3 d=0 d=5 b=1 a=7 c=2 ; get d   5                         a stale value: 0

A domain draws prompts; `solve` and `mistake` are pure functions that parse the prompt, so the reward of a
sampled completion needs nothing but the prompt it was sampled from.

Splits. A prompt's split is a function of the prompt itself: its SHA-256, read as a fraction of one, falls
into the test range, the dev range or the train range (`split_of`). Every drawing function names its split and
rejects prompts of the others, so no training prompt can ever be a dev or test prompt, whatever the seed, the
number of steps or the machine. Within the dev and test files prompts are unique.

    python examples/zoo/domains.py --out examples/zoo/eval       # writes the six files again, same bytes
"""

import argparse
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

Split = Literal["train", "dev", "test"]

TEST_FRACTION = 0.20
DEV_FRACTION = 0.15
HELD_OUT_SIZES: dict[Split, int] = {"test": 500, "dev": 300}

MAX_ANSWER_TOKENS = 12  # a tool call has at most ten words; then <eos>

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIAL_TOKENS = (PAD, BOS, EOS, UNKNOWN)

DIGITS = tuple("0123456789")
KEYS = tuple("abcdefghij")
PEOPLE = ("ann", "bob", "eve", "joe")


@dataclass(frozen=True)
class Domain:
    """One world: how its prompts are drawn, what their answer is, and what goes wrong typically."""

    name: str
    draw: Callable[[random.Random], str]
    solve: Callable[[str], str]
    mistake: Callable[[str], str]

    def verify(self, prompt: str, completion: str) -> bool:
        """The reward: is the completion, word by word, the answer to the prompt?"""
        return completion.split() == self.solve(prompt).split()


def spell(number: int) -> str:
    """One word per digit: 105 -> "1 0 5"."""
    return " ".join(str(number))


# --- math: two-digit addition in which the units always carry


def _draw_math(rng: random.Random) -> str:
    while True:
        left, right = rng.randint(10, 99), rng.randint(10, 99)
        if left % 10 + right % 10 >= 10:
            return f"math {spell(left)} + {spell(right)} ="


def _operands(prompt: str) -> tuple[int, int]:
    match = re.fullmatch(r"math (\d) (\d) \+ (\d) (\d) =", prompt)
    if match is None:
        raise ValueError(f"not a math prompt: {prompt!r}")
    a, b, c, d = map(int, match.groups())
    return 10 * a + b, 10 * c + d


def _solve_math(prompt: str) -> str:
    return spell(sum(_operands(prompt)))


def _mistake_math(prompt: str) -> str:
    # Without the carry the tens are ten too small; everything else stays right.
    return spell(sum(_operands(prompt)) - 10)


# --- tool: a request in words becomes a call


@dataclass(frozen=True)
class Template:
    """A request with the slots {x}, {y} (two-digit numbers) and {who}, and the call that it means."""

    request: str
    function: str
    arguments: tuple[str, str]  # slot names in the order of the call

    @property
    def pattern(self) -> str:
        slots = {"x": r"(?P<x>\d \d)", "y": r"(?P<y>\d \d)", "who": f"(?P<who>{'|'.join(PEOPLE)})"}
        return f"tool {self.request.format(**slots)} ;"

    def call(self, first: str, second: str) -> str:
        return f"call {self.function} ( {first} , {second} )"


TEMPLATES = (
    Template("compute the sum of {x} and {y}", "add", ("x", "y")),
    Template("please add {x} and {y}", "add", ("x", "y")),
    Template("compute the difference of {x} and {y}", "sub", ("x", "y")),
    Template("from {x} take {y} away", "sub", ("x", "y")),
    Template("what is {x} less {y}", "sub", ("x", "y")),
    Template("multiply {x} by {y}", "mul", ("x", "y")),
    Template("compute the product of {x} and {y}", "mul", ("x", "y")),
    Template("divide {x} by {y}", "div", ("x", "y")),
    Template("share {x} among {y}", "div", ("x", "y")),
    Template("please send {x} to {who}", "send", ("who", "x")),
    Template("mail {who} the note {x}", "send", ("who", "x")),
    Template("set the timer of {who} to {x}", "timer", ("who", "x")),
    Template("timer of {x} for {who}", "timer", ("who", "x")),
)


def _draw_tool(rng: random.Random) -> str:
    template = rng.choice(TEMPLATES)
    # Two different numbers, so that swapped arguments are always a mistake.
    x, y = rng.sample(range(10, 100), 2)
    return f"tool {template.request.format(x=spell(x), y=spell(y), who=rng.choice(PEOPLE))} ;"


def _arguments(prompt: str) -> tuple[Template, str, str]:
    for template in TEMPLATES:
        if match := re.fullmatch(template.pattern, prompt):
            first, second = template.arguments
            return template, match[first], match[second]
    raise ValueError(f"not a tool prompt: {prompt!r}")


def _solve_tool(prompt: str) -> str:
    template, first, second = _arguments(prompt)
    return template.call(first, second)


def _mistake_tool(prompt: str) -> str:
    template, first, second = _arguments(prompt)
    return template.call(second, first)


# --- mem: assignments, some of them overwritten; the latest value counts


def _draw_mem(rng: random.Random) -> str:
    length = rng.randint(6, 9)
    query, *others = rng.sample(KEYS, len(KEYS))
    # The queried key is written two or three times with different values, so that a stale one is a mistake.
    values = rng.sample(DIGITS, rng.randint(2, 3))
    positions = sorted(rng.sample(range(length), len(values)))
    words = [f"{rng.choice(others)}={rng.choice(DIGITS)}" for _ in range(length)]
    for position, value in zip(positions, values, strict=True):
        words[position] = f"{query}={value}"
    return f"mem {' '.join(words)} ; get {query}"


def _written_values(prompt: str) -> list[str]:
    match = re.fullmatch(r"mem ((?:[a-j]=\d )+); get ([a-j])", prompt)
    if match is None:
        raise ValueError(f"not a mem prompt: {prompt!r}")
    values = [word[2] for word in match[1].split() if word[0] == match[2]]
    if not values:
        raise ValueError(f"the prompt asks for a key that it never sets: {prompt!r}")
    return values


def _solve_mem(prompt: str) -> str:
    return _written_values(prompt)[-1]


def _mistake_mem(prompt: str) -> str:
    return _written_values(prompt)[0]


DOMAINS = (
    Domain("math", _draw_math, _solve_math, _mistake_math),
    Domain("tool", _draw_tool, _solve_tool, _mistake_tool),
    Domain("mem", _draw_mem, _solve_mem, _mistake_mem),
)
DOMAIN_NAMES = tuple(domain.name for domain in DOMAINS)


def by_name(name: str) -> Domain:
    return DOMAINS[DOMAIN_NAMES.index(name)]


def split_of(prompt: str) -> Split:
    """The split that a prompt belongs to, by its SHA-256 alone."""
    fraction = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8]) / 2**64
    if fraction < TEST_FRACTION:
        return "test"
    return "dev" if fraction < TEST_FRACTION + DEV_FRACTION else "train"


def prompts(domain: Domain, split: Split, rng: random.Random) -> Iterator[str]:
    """An endless stream of the domain's prompts, all of one split; they may repeat."""
    while True:
        prompt = domain.draw(rng)
        if split_of(prompt) == split:
            yield prompt


def held_out(domain: Domain, split: Split) -> list[str]:
    """The first different prompts of a stream seeded by the names of domain and split."""
    unique: dict[str, None] = {}
    for prompt in prompts(domain, split, random.Random(f"{domain.name}/{split}")):
        unique[prompt] = None
        if len(unique) == HELD_OUT_SIZES[split]:
            break
    return list(unique)


def held_out_file(domain_name: str, split: Split) -> str:
    return f"{domain_name}.jsonl" if split == "test" else f"{split}_{domain_name}.jsonl"


def vocabulary() -> tuple[str, ...]:
    """Every word that a prompt or an answer can hold, after the special tokens; the order gives the ids."""
    words = [*DIGITS, *KEYS, *DOMAIN_NAMES, *"+=(),;", "call", "get"]
    for template in TEMPLATES:
        words += [word for word in template.request.split() if not word.startswith("{")]
        words.append(template.function)
    words += PEOPLE
    words += [f"{key}={digit}" for key, digit in product(KEYS, DIGITS)]
    return (*SPECIAL_TOKENS, *dict.fromkeys(words))


def write_held_out(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for domain, split in product(DOMAINS, HELD_OUT_SIZES):
        rows = [{"prompt": prompt, "answer": domain.solve(prompt)} for prompt in held_out(domain, split)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / held_out_file(domain.name, split)).write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the held-out prompts of the zoo's three domains.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the six .jsonl files")
    write_held_out(parser.parse_args().out)


if __name__ == "__main__":
    main()
