"""Options that several commands have, and types for their values; a refusal says what the value must be."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hubmerge.settings import Settings

if TYPE_CHECKING:
    from hubmerge.engine.options import StreamOptions


YAML_FILE = "a YAML file; - reads standard input"


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


def add_visibility(command: argparse.ArgumentParser) -> None:
    """`--private` and `--public`; neither makes a public repo, unless a parent is private."""
    either = command.add_mutually_exclusive_group()
    either.add_argument("--private", action="store_true", help="a private repo")
    either.add_argument("--public", action="store_true", help="a public repo, although a parent is private")


def add_stream_options(command: argparse.ArgumentParser) -> None:
    """How the inputs are read, and where chunks are merged."""
    command.add_argument(
        "--chunk-elements",
        type=positive,
        default=None,
        help="elements per chunk; no number changes a bit of the result",
    )
    command.add_argument("--threads", type=positive, default=None, help="the most threads; default: one per core")
    command.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="where chunks are merged; auto: products of matrices on a GPU, all else on the CPU",
    )
    words = "what a GPU is asked for at most; default: 2 for chunks, what it takes for whole tensors"
    command.add_argument("--device-memory", type=gigabytes, metavar="GB", help=words)
    words = "what fetched inputs and output may take on disk together; default: what is free"
    command.add_argument("--disk-budget", type=gigabytes, metavar="GB", help=words)


def stream_options(arguments: Any, settings: Settings) -> StreamOptions:
    """The values of `add_stream_options`' arguments; DeviceError where a GPU is asked for and there is none."""
    from hubmerge.engine.options import StreamOptions

    if arguments.device == "cuda":
        from hubmerge.engine.device import require_cuda

        require_cuda()
    options = StreamOptions(
        arguments.chunk_elements or 0,
        arguments.threads or 0,
        device=arguments.device,
        sensitivities=settings.data_dir / "sensitivity",
        disk_budget=arguments.disk_budget,
    )
    return replace(options, device_memory_bytes=arguments.device_memory or options.device_memory_bytes)
