"""The patterns of git that people write, and their cost."""

import fnmatch
import re
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
        ("node_modules", "node_modules/p/i.js", True),
        ("data/*", "data/train/1.bin", True),
        ("data/**", "data/1.bin", True),
        ("data/**", "sub/data/1.bin", False),
        ("**/bar", "bar", True),
        ("**/bar", "foo/bar/x", True),
        ("**/bar", "foobar", False),
        ("foo/**/bar", "foo/bar", True),
        ("foo/**/bar", "foo/a/b/bar", True),
        ("  .env  \n# a note", "sub/.env", True),
        ("a?b", "aXb", True),
        ("[!a-y]", "z", True),
        ("", "a", False),
    ],
)
def test_a_pattern_ignores_what_its_writer_means(patterns, path, ignored):
    assert decide(ignore_rules(patterns), path) is ignored


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
def test_no_pattern_takes_long(pattern):
    begun = time.process_time()
    for rules in (ignore_rules(pattern), lfs_rules(f"{pattern} filter=lfs")):
        for path in ("a" * 1000, "a/" * 499 + "a", "ab" * 500):
            decide(rules, path)
    assert time.process_time() - begun < 2.0


def test_a_pattern_longer_than_anybody_writes_matches_nothing():
    assert len(ignore_rules("a" * 1000)) == 1
    assert ignore_rules("a" * 1001) == lfs_rules("a" * 1001 + " filter=lfs") == ()


def test_an_end_as_newer_pythons_write_it_is_none_of_the_pattern(monkeypatch):
    monkeypatch.setattr(fnmatch, "translate", lambda pattern: rf"(?s:{pattern})\z")  # from 3.14 on
    assert decide(ignore_rules("build"), "sub/build/x")


@pytest.mark.parametrize(
    "text", ["[z-a]", "[[:alpha:]]", "[a&&b]", "[--]", "[]", "[!]", "[\\", "\\", "***", "/", "//", "a//b"]
)
def test_a_strange_pattern_is_no_error(text):
    for rules in (ignore_rules(text), lfs_rules(f"{text} filter=lfs")):
        assert all(isinstance(pattern, re.Pattern) for pattern, _ in rules)
        decide(rules, "a/b")
