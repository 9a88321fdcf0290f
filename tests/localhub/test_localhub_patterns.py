"""The patterns of git that people write, and their cost."""

from __future__ import annotations

import time

import pytest

from localhub.patterns import decide, ignore_rules, lfs_rules


@pytest.mark.parametrize(
    ("patterns", "path", "ignored"),
    [
        ("*.py[cod]", "sub/deep/a.pyc", True),
        ("*.py[cod]", "a.py", False),
        ("*.py[cod]\n!keep.pyc", "sub/keep.pyc", False),
        ("build/", "sub/build/x", True),
        ("build/", "build", False),
        ("/build", "build/x", True),
        ("/build", "sub/build", False),
        ("data/**", "sub/data/1.bin", False),
        ("**/bar", "bar", True),
        ("**/bar", "foobar", False),
        ("foo/**/bar", "foo/bar", True),
        ("foo/**/bar", "foo/a/b/bar", True),
        ("  .env  \n# a note", "sub/.env", True),
    ],
)
def test_a_pattern_ignores_what_its_writer_means(patterns: str, path: str, ignored: bool) -> None:
    assert decide(ignore_rules(patterns), path) is ignored


@pytest.mark.parametrize("pattern", ["a*" * 200 + "b", "**/a/" * 150 + "b", "(a+)+$"])
def test_no_pattern_takes_long(pattern: str) -> None:
    begun = time.process_time()
    for rules in (ignore_rules(pattern), lfs_rules(f"{pattern} filter=lfs")):
        for path in ("a" * 1000, "a/" * 499 + "a", "ab" * 500):
            decide(rules, path)
    assert time.process_time() - begun < 2.0


def test_a_pattern_longer_than_anybody_writes_matches_nothing() -> None:
    assert len(ignore_rules("a" * 1000)) == 1
    assert ignore_rules("a" * 1001) == lfs_rules("a" * 1001 + " filter=lfs") == ()
