"""The command: arguments to file, errors before work, and a module that costs nothing to import."""

from __future__ import annotations

import argparse

from processes import printed_by
from sensitivity_helpers import PAIRS, llama, write_rows

from hubmerge.cli.main import main
from hubmerge.cli.sensitivity import add_arguments
from hubmerge.cli.terminal import Terminal
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.sensitivity.file import read_sensitivity
from hubmerge.sensitivity.pairs import digest, load_pairs


def run(*words: object) -> int:
    return main(["sensitivity", *map(str, words)])


def test_the_command_writes_the_file_and_tells_what_it_is(tmp_path, capsys, monkeypatch):
    folder = llama(tmp_path / "agent")
    data = write_rows(tmp_path / "data.jsonl", [{"q": p.prompt, "a": p.answer} for p in PAIRS])
    out = tmp_path / "s.safetensors"
    seen: list[tuple[str, int, int, str]] = []
    words = (folder, "--data", data, "--prompt", "q", "--answer", "a", "--out", out, "--max-pairs", 3, "--seed", 2)
    monkeypatch.setattr(Terminal, "progress", lambda _, *news: seen.append(news))
    assert run(*words) == 0
    pairs = load_pairs(CalibrationSpec(data=str(data), prompt="q", answer="a", max_pairs=3, seed=2))
    said = read_sensitivity(out).metadata
    assert (said.pairs, said.data_digest) == (3, digest(pairs))
    assert seen == [("load model", 0, 0, ""), *(("sensitivity", n, 3, "pairs") for n in range(4))]
    assert capsys.readouterr().out == f"{out}: 21 tensors from 3 pairs, data {digest(pairs)[:16]}\n"
    before = out.stat().st_mtime_ns
    assert run(*words) == 0
    assert out.stat().st_mtime_ns == before
    assert run(*words, "--restart") == 0
    assert out.stat().st_mtime_ns != before


def test_arguments_that_make_no_sense_are_listed_together(tmp_path, capsys):
    words = ("x/y", "--data", "d", "--prompt", "q", "--answer", "", "--out", tmp_path / "s", "--max-pairs", 0)
    assert run(*words) == 1
    told = capsys.readouterr().err
    assert told.count("E_SENSITIVITY") == 2
    assert "--answer" in told
    assert "--max-pairs" in told


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = (
        "import sys, hubmerge.sensitivity.of_plan\n"
        "print({'torch', 'transformers', 'datasets', 'accelerate', 'huggingface_hub'} & set(sys.modules))"
    )
    assert printed_by(code) == "set()\n"


def test_the_defaults_in_the_help_are_those_of_the_specification():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = " ".join(parser.format_help().split())
    defaults = CalibrationSpec(data="d", prompt="q", answer="a")
    assert f"texts ({defaults.max_pairs})" in text
    assert f"of one pair ({defaults.max_tokens})" in text
    assert f"chosen ({defaults.seed})" in text
    assert f"of a Hub dataset ({defaults.split})" in text
