"""Options that several commands share, and those of the commands that have many; a refusal says what a value must be.

Every command builds the parser of all, so nothing here imports what a command needs to run.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubmerge.settings import Settings

if TYPE_CHECKING:
    from hubmerge.engine.options import StreamOptions


YAML_FILE = "a YAML file; - reads standard input"
_SUITES = ("zoo", "math", "instruction", "code", "tool", "memory", "memory_short", "search")  # tests hold it


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of a whole number of some digits; `most`: None where it needs no other bound."""

    def number(text: str) -> int:
        digits = text.isascii() and text.isdecimal() and len(text) <= 18
        if not digits or not least <= int(text) <= (10**18 if most is None else most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be a whole number {bounds}, not {text[:40]!r}")
        return int(text)

    return number


positive, port = whole(1), whole(0, 65535)


def gigabytes(text: str) -> int:
    return int(_above_0("gigabytes", text) * 10**9)


def seconds(text: str) -> float:
    return _above_0("seconds", text)


def _above_0(unit: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number of {unit} above 0, not {text[:40]!r}")
    return value


def path(text: str) -> Path:
    """The type of a file or folder; shells leave the ~ of `--out=~/merged` as it is."""
    return Path(os.path.expanduser(text))  # which leaves an unknown user as it is


def _svg(text: str) -> Path:
    figure = path(text)
    if figure.suffix.lower() != ".svg":
        raise argparse.ArgumentTypeError(f"a figure is an SVG file: give a name that ends in .svg, not {text[:80]!r}")
    return figure


def add_visibility(command: argparse.ArgumentParser) -> None:
    """`--private` and `--public`; neither makes a public repo, unless a parent is private."""
    either = command.add_mutually_exclusive_group()
    either.add_argument("--private", action="store_true", help="a private repo")
    either.add_argument("--public", action="store_true", help="a public repo, although a parent is private")


def add_stream_options(command: argparse.ArgumentParser) -> None:
    """How the inputs are read, and where chunks are merged."""
    words = "elements per chunk; no number changes a bit of the result"
    command.add_argument("--chunk-elements", type=positive, default=0, help=words)
    command.add_argument("--threads", type=positive, default=0, help="the most threads; default: one per core")
    words = "where chunks are merged; auto: products of matrices on a GPU, all else on the CPU"
    command.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help=words)
    words = "what a GPU is asked for at most; default: 2 for chunks, what it takes for whole tensors"
    command.add_argument("--device-memory", type=gigabytes, default=0, metavar="GB", help=words)
    words = "what fetched inputs and output may take on disk together; default: what is free"
    command.add_argument("--disk-budget", type=gigabytes, metavar="GB", help=words)


def stream_options(arguments: Any, settings: Settings) -> "StreamOptions":
    """The values of `add_stream_options`' arguments; DeviceError where a GPU is asked for and there is none."""
    from hubmerge.engine.options import StreamOptions

    if arguments.device == "cuda":
        from hubmerge.engine.device import require_cuda

        require_cuda()
    return StreamOptions(
        arguments.chunk_elements,
        arguments.threads,
        device=arguments.device,
        device_memory_bytes=arguments.device_memory,
        sensitivities=settings.data_dir / "sensitivity",
        disk_budget=arguments.disk_budget,
    )


def of_init(command: argparse.ArgumentParser) -> None:
    command.add_argument("base", help="the model that the agents were trained from: a Hub id, or a folder")
    command.add_argument("agents", nargs="+", metavar="agent", help="a Hub id such as org/name@revision, or a folder")
    command.add_argument("--method", help="default: by what the agents are")
    command.add_argument("--out", type=path, metavar="FILE.yaml", help="a new file; default: standard output")


def of_diff(command: argparse.ArgumentParser) -> None:
    words = "the model before: a Hub id such as org/name@revision, or a folder"
    command.add_argument("base", metavar="BASE", help=words)
    command.add_argument("agent", metavar="AGENT", help="the model after; may be a LoRA adapter on the base")
    words = "a pattern of tensor names that are left out, such as 'v_head.*'; may stand several times"
    command.add_argument("--ignore", action="append", default=[], metavar="PATTERN", help=words)
    words = "also draw it: what changed by layer and module type, and by how much"
    command.add_argument("--figure", type=_svg, metavar="FILE.svg", help=words)
    words = "how many of the most changed tensors are listed; default: 10"
    command.add_argument("--top", type=positive, default=10, metavar="N", help=words)
    add_stream_options(command)


def of_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("recipe", type=path, nargs="?", help=YAML_FILE)
    words = "owner/name on the Hub; of a sweep, REPO-<variant>"
    command.add_argument("--to", required=True, metavar="REPO", help=words)
    add_visibility(command)
    command.add_argument("--license", help="the license of the result, where the parents leave it open")
    words = "begin with the newest versions, where an unfinished run would go on with those that it began with"
    command.add_argument("--newest", action="store_true", help=words)
    command.add_argument("--evaluate", metavar="SUITE", help="measure the merge and its parents afterwards")
    command.add_argument("--sweep", type=path, metavar="SWEEP.yaml", help="several variants instead of a recipe")
    command.add_argument("--pick", action="store_true", help="publish only the variant that does best on dev rows")
    add_stream_options(command)


def of_sensitivity(command: argparse.ArgumentParser) -> None:
    """What is not given takes CalibrationSpec's default."""
    command.add_argument("model", help="a Hub id such as org/name@revision, or ./folder")
    command.add_argument("--data", required=True, help="a JSONL file (./… or ….jsonl), or a dataset on the Hub")
    command.add_argument("--prompt", required=True, metavar="COLUMN", help="the column of the questions")
    command.add_argument("--answer", required=True, metavar="COLUMN", help="the column of the answers")
    command.add_argument("--out", type=path, required=True, metavar="FILE", help="a safetensors file")
    command.add_argument("--subset", help="the subset (config) of a Hub dataset, where it has several")
    command.add_argument("--split", help="the split of a Hub dataset (train)")
    command.add_argument("--revision", help="the revision of a Hub dataset")
    command.add_argument("--max-pairs", type=int, help="the most pairs, chosen by the hash of their texts (128)")
    command.add_argument("--max-tokens", type=int, help="the most tokens of one pair (1024)")
    command.add_argument("--seed", type=int, help="which pairs are chosen (0)")
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what computes the gradients")
    words = "the dtype of the gradients"
    command.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help=words)
    command.add_argument("--restart", action="store_true", help="begin again instead of going on")


def of_evaluate(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="a Hub id such as org/name@revision, or ./folder")
    command.add_argument("--suite", required=True, help=", ".join(_SUITES))
    words = "dev: the rows by which variants are chosen; default: test"
    command.add_argument("--split", choices=("test", "dev"), default="test", help=words)
    words = "the first N rows of each task, which is another suite version"
    command.add_argument("--limit", type=positive, metavar="N", help=words)
    command.add_argument("--out", type=path, metavar="FILE.json", help="the result; details go to FILE.details/")
    words = "auto: a GPU where there is one"
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help=words)
    words = "auto: as the model is stored; any other makes it another suite version"
    command.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto", help=words)
    command.add_argument("--batch-size", type=positive, default=32, metavar="N", help="prompts at once; default: 32")
    words = "when the run ends at the latest; default: 14400"
    command.add_argument("--wall-limit", type=seconds, default=4 * 3600.0, metavar="SECONDS", help=words)
    command.add_argument("--memory-limit", type=gigabytes, metavar="GB", help="what the evaluating process may take")


def of_suites(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", metavar="SUITE", help="default: every suite")
    command.add_argument("--pin", action="store_true", help="pin what is not pinned to the commit that main has now")
    command.add_argument("--file", type=path, help="another file of pins than the package's")


def of_leaderboard(command: argparse.ArgumentParser) -> None:
    words = "a results dataset on the Hub, or a folder (./…) with results/ in it; default: HUBMERGE_RESULTS, or "
    command.add_argument("--results", metavar="REPO|DIR", help=f"{words}results-dataset in the data folder")
    command.add_argument("--suite", help="this suite only")
    command.add_argument("--suite-version", help="this version of it instead of the newest")
    command.add_argument("--split", choices=("test", "dev"), default="test", help="default: test")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, see docs/leaderboard.md")
    form.add_argument("--csv", action="store_true", help="one suite, a line per model")
