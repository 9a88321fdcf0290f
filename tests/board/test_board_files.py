"""Result files and flags from strangers: what cannot be believed is refused with its reason, the rest is read."""

import json
import os
from typing import Any

import pytest
from board_helpers import ENVIRONMENT, family, result_data, sha, task, written

from hubmerge.board.export import board_json
from hubmerge.board.files import MAX_FLAGS_BYTES, parse_files, read_folder, results_folder
from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import Flag
from hubmerge.errors import ResultError
from hubmerge.evaluation.result import MAX_RESULT_BYTES, EvaluationResult, result_path


def stored(*results: EvaluationResult) -> list[tuple[str, bytes]]:
    return [(result_path(r), r.to_json().encode()) for r in results]


def hostile(**changes: Any) -> bytes:
    return json.dumps(result_data("evil/one", "9", {"math": 0.5}) | changes).encode()


def scored(**changes: Any) -> bytes:
    return hostile(tasks=[{**task("math_task", "math", 0.5), **changes}])


def facts(**changes: Any) -> bytes:
    return hostile(facts={"author": "x", **changes})


PLACE = f"results/evil/one/{sha('9')}/trio-1-test.json"
ROWS = {
    "no JSON": b"\x00\xff{",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "NaN": scored().replace(b'"value": 0.5', b'"value": NaN'),
    "a number as text": scored(value="0.5"),
    "true as a number": scored(value=True),
    "above its maximum": scored(value=1.01),
    "below zero": scored(value=-0.01),
    "no samples": scored(samples=0),
    "infinitely many samples": scored(samples="@").replace(b'"@"', b"1e400"),
    "more prompts cut than asked": scored(truncated=101),
    "a negative number of prompts cut": scored(truncated=-1),
    "samples of 5000 digits": scored(samples="@").replace(b'"@"', b"9" * 5000),
    "more samples than a dataset has": scored(samples=10**18),
    "shots beyond 64 bits": scored(few_shot=2**63),
    "a version beyond 64 bits": scored(task_version=2**63),
    "elements beyond 64 bits": facts(parameters=2**63),
    "bytes beyond 64 bits": facts(size_bytes=2**70),
    "a scale beyond reason": facts(effective_scales=[1e308]),
    "a weight beyond reason": facts(parents=[{"role": "base", "id": "o/b", "sha": "", "weight": 1e308}]),
    "parameters with NaN": facts(method_parameters={"a": "@"}).replace(b'"@"', b"NaN"),
    "parameters with infinity": facts(method_parameters={"a": ["@"]}).replace(b'"@"', b"1e999"),
    "parameters that turn text round": facts(method_parameters={"a": "\u202egnp"}),
    "parameters beyond 64 bits": facts(method_parameters={"a": 2**63}),
    "parameters with half a character": facts(method_parameters={"\ud800": 1}),
    "parameters without end": facts(method_parameters={"a": list(range(600))}),
    "parameters nested deeply": facts(method_parameters={"a": "@"}).replace(b'"@"', b"[" * 900 + b"]" * 900),
    "a seed beyond 64 bits": hostile(environment={**ENVIRONMENT, "seed": 2**63}),
    "a time beyond reason": hostile(environment={**ENVIRONMENT, "seconds": 1e300}),
    "a foreign field": hostile(extra=1),
    "a missing field": hostile(facts={}),
    "another sha": hostile(sha=sha("8")),
    "another model": hostile(model="org/base"),
    "another suite": hostile(suite="other"),
    "no sha": hostile(sha="main"),
    "scores of a failed run": hostile(status="failed", error={"code": "E", "message": "m"}),
    "done without scores": hostile(tasks=[]),
    "a task twice": hostile(tasks=[task("a", "math", 0.5)] * 2),
    "text without end": facts(author="x" * 2001),
    "direction of text": hostile(facts={"author": "\u202egnp"}),
    "a giant": hostile(facts={"author": "x", "recipe": "y" * MAX_RESULT_BYTES}),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_broken_file_is_refused_and_takes_no_other_with_it(name):
    read = parse_files([(PLACE, ROWS[name]), *stored(*family())])
    assert [r.where for r in read.refused] == [PLACE]
    assert read.refused[0].reason
    board = build_board(read.results, read.flags, refused=read.refused)
    assert board.suites == build_board(family()).suites
    assert board.refused == read.refused


def test_flags_are_read_one_by_one():
    entries = [
        {"kind": "contaminated", "model": "org/math", "reason": "leaked\r=1+1\n\u202e\x1b[2J"},
        {"kind": "withdrawn", "model": "org/base", "sha": sha("b")},
        {"kind": "loved", "model": "org/base"},
        {"kind": "withdrawn", "model": "<b>"},
        *({"kind": "withdrawn", "model": "org/base", "sha": odd} for odd in (5, "b" * 7, "main")),
        {"kind": "withdrawn", "model": "org/base", "more": 1},
        "withdrawn",
    ]
    half = [{"kind": "withdrawn", "model": "org/base", name: "\ud800"} for name in ("sha", "reason")]
    read = parse_files([("flags.json", json.dumps({"flags": [*entries, *half]}).encode())])
    told = Flag("contaminated", "org/math", None, "leaked =1+1\n  [2J")
    assert read.flags == (told, Flag("withdrawn", "org/base", sha("b")))
    assert [r.where for r in read.refused] == [f"flags.json, entry {k}" for k in range(3, 12)]


BROKEN = (
    b"{",
    b"null",
    b"[]",
    b'{"flags": 1}',
    b"[" * 100_000,
    b" " * (MAX_FLAGS_BYTES + 1),
    json.dumps({"flags": [{}] * 5001}).encode(),
)


@pytest.mark.parametrize("data", BROKEN, ids=range(7))
def test_a_broken_file_of_the_keepers_is_refused_as_a_whole_and_the_results_are_read(data):
    read = parse_files([*stored(*family()), ("flags.json", data)])
    assert (read.flags, len(read.results)) == ((), 4)
    assert [r.where for r in read.refused] == ["flags.json"]


def test_a_folder_is_read_without_following_links_which_are_told(tmp_path):
    """The client's cache has links for files."""
    written(tmp_path, *family(), flags=b'{"flags": [{"kind": "withdrawn", "model": "org/math"}]}', notes=b"no result")
    (tmp_path / "secret").write_text("top")
    (tmp_path / "results" / "link.json").symlink_to(tmp_path / "secret")
    (tmp_path / "results" / "org" / "more").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "results" / "waits.json")
    (tmp_path / "results" / "giant.json").write_bytes(b" " * (MAX_RESULT_BYTES + 1))
    read = read_folder(tmp_path)
    assert sorted(r.model for r in read.results) == sorted(r.model for r in family())
    assert read.flags == (Flag("withdrawn", "org/math"),)
    assert [r.where for r in read.refused] == ["results/giant.json", "results/link.json", "results/org/more"]
    assert build_board(read.results) == build_board(family())


def test_files_of_a_folder_beyond_the_most_are_named_and_not_read(tmp_path, monkeypatch):
    written(tmp_path, *family())
    monkeypatch.setattr("hubmerge.board.files.MAX_FILES", 2)
    read = read_folder(tmp_path)
    assert len(read.results) == 2
    assert {r.reason for r in read.refused} == {"more than 2 files"}


def test_a_file_whose_name_is_no_text_is_refused_and_told(tmp_path):
    written(tmp_path, *family())
    try:
        (tmp_path / "results" / "a\udcff.json").write_bytes(b"{")
        (tmp_path / "results" / "b\udcff.json").write_bytes(b" " * (MAX_RESULT_BYTES + 1))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    read = read_folder(tmp_path)
    assert [r.where for r in read.refused] == ["results/a?.json", "results/b?.json"]
    board_json(build_board(read.results, read.flags, refused=read.refused)).encode()


def test_a_folder_without_results_says_so_and_a_missing_one_is_told(tmp_path):
    inner = written(tmp_path, *family()) / "results"
    assert read_folder(tmp_path).refused == ()
    assert [r.reason for r in read_folder(inner).refused] == [f"no such folder in {inner}"]
    for named in ("./none", "~nobody-of-that-name/results"):
        with pytest.raises(ResultError, match="no such folder"):
            results_folder(named)
