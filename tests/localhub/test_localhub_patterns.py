"""Git's patterns, held against git itself, and their cost."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localhub.patterns import decide, ignore_rules, lfs_rules

PATHS = [
    "a", "b", "a.py", "a.pyc", "a.pyo", "sub/a.pyc", "sub/deep/a.py", "build/x", "sub/build/x", "build", "foo/bar/x",
    "foo/a/b/bar", "foo/bar", "x/foo/bar", "data/train/1.bin", "data/1.bin", "data/train/deep/2.bin", "docs/data/y",
    "[x]", "a b", "a ", "#x", "!x", "a-z", "z", "abc/def/ghi", "aXb", "ab", "a/b", "a/c/b", ".env", "sub/.env",
    "x.tar.gz", "nested/x.tar.gz", "node_modules/p/i.js", "weird]name", "q/a/q/b/q",
]  # fmt: skip
PATTERNS = [
    "*.py[cod]", "build/", "/build", "/build/", "foo/**/bar", "**/bar", "data/**", "data/*", "data/**/*.bin",
    "a?b", "a*b", "a[!x]b", "a[^x]b", "[x]", r"\[x\]", "[a-z]", "[!a-y]", r"a\ ", r"\#x", r"\!x", "*", "sub/*",
    "/sub/deep/", "**/deep/*", "a/**/b", "**/foo/bar", "*/build", ".env",
    "!keep", "abc/**/ghi", "*.tar.*", "node_modules", "weird]name",
    "[", "a[", "x/**/", "q/**/q/**/q", "*a*b*", "foo/*/b/bar", "data/train", "**", "/**/x",
]  # fmt: skip


def compared_with_git(folder: Path, patterns: list[str], paths: list[str]) -> Iterator[tuple[str, set[str], set[str]]]:
    """Each pattern with the paths that are ignored here and by git, which is asked once, with a folder for each."""
    for number, pattern in enumerate(patterns):
        (folder / str(number)).mkdir()
        (folder / str(number) / ".gitignore").write_text(pattern + "\n")
    asked = "\0".join(f"{number}/{path}" for number in range(len(patterns)) for path in paths)
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin"]
    done = subprocess.run(command, cwd=folder, input=asked.encode(), capture_output=True, check=False)
    theirs = {*done.stdout.decode().split("\0")}
    for number, pattern in enumerate(patterns):
        rules = ignore_rules(pattern)
        ours = {path for path in paths if decide(rules, path)}
        yield pattern, ours, {path for path in paths if f"{number}/{path}" in theirs}


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    if not shutil.which("git"):
        pytest.skip("no git on this machine")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_patterns_ignore_what_git_ignores(work_tree: Path) -> None:
    for pattern, ours, theirs in compared_with_git(work_tree, PATTERNS, PATHS):
        assert ours == theirs, pattern


def test_random_patterns_ignore_what_git_ignores(work_tree: Path) -> None:
    draw = random.Random(7)
    names = ["a", "b", "ab", "aab", "abb", "ba"]
    paths = sorted({"/".join(draw.choices(names, k=draw.randint(1, 4))) for _ in range(200)})
    paths = [path for path in paths if not any(other.startswith(f"{path}/") for other in paths)]
    parts = ["a", "b", "*", "**", "a*", "*b", "?b", "*a*b", "[ab]*", "a*b*"]
    patterns = ["/".join(draw.choices(parts, k=draw.randint(1, 4))) for _ in range(120)]
    for pattern, ours, theirs in compared_with_git(work_tree, patterns, paths):
        assert ours == theirs, pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "a*" * 200 + "b",
        "*a" * 300,
        "**/a/" * 150 + "b",
        "?*" * 300,
        "[a-z]*" * 150 + "!",
        "(a+)+$",
        "**/*a*/" * 60 + "x",
    ],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    begun = time.process_time()
    for rules in (ignore_rules(pattern), lfs_rules(f"{pattern} filter=lfs")):
        for path in ("a" * 1000, "a/" * 499 + "a", "ab" * 500):
            decide(rules, path)
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize(
    "text", ["[z-a]", "[[:alpha:]]", "[a&&b]", "[--]", "[]", "[!]", "[\\", "\\", "***", "/", "//", "a//b"]
)
def test_a_strange_pattern_is_no_error(text: str) -> None:
    for rules in (ignore_rules(text), lfs_rules(f"{text} filter=lfs")):
        assert all(isinstance(pattern, re.Pattern) for pattern, _ in rules)
        decide(rules, "a/b")


def test_a_pattern_longer_than_anybody_writes_matches_nothing() -> None:
    assert len(ignore_rules("a" * 1000)) == 1
    assert ignore_rules("a" * 1001) == ()
    assert lfs_rules("a" * 1001 + " filter=lfs") == ()
