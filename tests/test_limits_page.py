"""docs/limits.md against the code: it has every bound with its value, and its tests exist."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"\| `(\S+)\.py` `([\w.]+)` \| ([\d., to]+) \| [^|]+ \| [^|]+ \| (?:—|`(\S+\.py)` `(\w+)`) \|")
PAGE = (ROOT / "docs" / "limits.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]

BOUND = re.compile(
    r"(?:^|_)(?:MAX|MOST|LARGEST|LONGEST|DEEPEST|LIMIT|CAP|QUOTA|BUDGET|RESERVE|MARGIN|TRIES|ATTEMPTS|DEATHS|TIMEOUT|"
    r"LIFETIME|TTL|PATIENCE|WAIT|WAITING|GRACE|QUEUE|CONCURRENCY|ONCE|EACH|KEPT|LISTED|PAGE|DEPTH|DIGITS|MINUTES|S|"
    r"BYTES|CHARACTERS|EVENTS|FILES|TENSORS|ROWS|TOKENS|ELEMENTS|SAMPLES|PAIRS)(?:_|$)"
)
NO_BOUND = {
    "how often something is looked at, told, written or asked": (
        r"_(?:EVERY|AFTER)_S|\b_?(?:POLL|TICK|TELLING|SUMMARY|SILENCE|LOCK_RETRY|BACKOFF_BASE)_S",
        r"evaluations\.py VERSION_S",
    ),
    "a buffer or block; it changes speed only": (
        r"\b_?(?:BLOCK|GROUP|COPY|READ|WRITE|GATHERED|ALL_GATHERED|FIRST_READ|AHEAD_LEAST|AT_ONCE|SAMPLE)_BYTES",
        r"(?:CHUNK|PANEL)_ELEMENTS|_TENSORS_A_LINE|KEPT_(?:TENSORS|BLOCKS)|_LARGEST_(?:DEVICE_)?CHUNK",
        r"buffers\.py (?:KEPT|PAGE)|fast\.py _COUNTED_AT_ONCE",
    ),
    "the length of a digest": (r"_(?:CHECKSUM|DIGEST)_BYTES|VERSION_DIGITS",),
    "an estimate, or a bound of an error": (r"prediction\.py |BYTES_PER_SECOND|_STARTING_S|MAX_ERROR",),
    "how much of a value or list a message or page shows": (
        r"wording\.py |in_child\.py _MAX_TEXT|diff_page\.py LISTED",
    ),
    "follows from another one": (r"templates\.py _MESSAGE_BYTES|bursts\.py _ENDING_S",),
    "a least, of what a machine or token has": (
        r"LEAST_STREAM_BYTES|_MIN_TOKEN_CHARACTERS|resources\.py _MOST_DIGITS",
    ),
}


def bounds() -> Iterator[str]:
    """`module.py NAME` of every constant that looks like a bound."""
    for path in sorted([*(ROOT / "hubmerge").rglob("*.py"), *(ROOT / "workflows").rglob("*.py"), ROOT / "app.py"]):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and _is_number(node.value):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name) and BOUND.search(target.id):
                        yield f"{path.relative_to(ROOT).as_posix()} {target.id}"


def _is_number(value: ast.expr | None) -> bool:
    return value is not None and all(
        isinstance(node, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop | ast.Name | ast.Load)
        or (isinstance(node, ast.Constant) and type(node.value) in (int, float))
        for node in ast.walk(value)
    )


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("line", ROWS)
def test_a_limit_has_the_stated_value_and_a_test_that_exists(line):
    row = ROW.fullmatch(line)
    assert row is not None
    module, name, stated, path, test = row.groups()
    value = reduce(getattr, name.split("."), importlib.import_module(module.replace("/", ".")))
    assert stated == (" to ".join(map(str, value)) if isinstance(value, tuple) else f"{value:,}")
    assert path is None or test in _functions(path)


def test_every_constant_that_looks_like_a_bound_is_listed_or_is_none_for_a_reason():
    listed = {f"{row[1]}.py {row[2]}" for row in map(ROW.fullmatch, ROWS) if row}
    others = set(bounds()) - listed
    patterns = [pattern for group in NO_BOUND.values() for pattern in group]
    unknown = sorted(name for name in others if not any(re.search(pattern, name) for pattern in patterns))
    assert not unknown, "list them in docs/limits.md with what happens and a test, or say here why they are none"
