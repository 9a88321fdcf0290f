"""Types for the values of the command line's options; a refusal says what the value must be."""

from __future__ import annotations

import argparse


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
