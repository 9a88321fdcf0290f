"""Options that several commands have, and types for their values; a refusal says what the value must be."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hubmerge.settings import Settings

if TYPE_CHECKING:
    from hubmerge.engine.options import StreamOptions


def positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text[:40]!r}")
    return int(text)


def port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 65535, not {text[:40]!r}")
    return int(text)


def gigabytes(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number of gigabytes above 0, not {text[:40]!r}")
    return int(value * 10**9)


def add_visibility(command: argparse.ArgumentParser) -> None:
    """`--private` and `--public`; neither makes a public repo, unless a parent is private."""
    either = command.add_mutually_exclusive_group()
    either.add_argument("--private", action="store_true", help="a private repo")
    either.add_argument("--public", action="store_true", help="a public repo, although a parent is private")


def add_stream_options(command: argparse.ArgumentParser) -> None:
    """How the inputs are read, and where chunks are merged."""
    command.add_argument(
        "--chunk-elements", type=positive, default=None, help="elements per chunk; never changes a bit"
    )
    command.add_argument("--threads", type=positive, default=None, help="at most; default: one per core")
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
