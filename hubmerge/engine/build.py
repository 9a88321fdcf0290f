"""How pass.c becomes a library. setup.py runs this file before anything else is installed, so that it imports nothing
but Python's own."""

import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

SOURCE = Path(__file__).with_name("pass.c")
BUILD_S = 120  # a compiler that takes longer is ended

_FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fvisibility=hidden", "-Wno-psabi",
)  # fmt: skip
# what pass.c is compiled for, by its MACHINE; whichever fits the processor best is called
MACHINES: dict[int, tuple[str, ...]] = {1: ()}
if platform.machine() in ("x86_64", "AMD64"):
    MACHINES[3] = ("-march=x86-64-v3",)
    MACHINES[4] = ("-march=x86-64-v4", "-mavx512vbmi2", "-mprefer-vector-width=512")


@cache
def digest() -> str:
    """Of everything that decides what a compiler makes."""
    return sha256(SOURCE.read_bytes() + repr((_FLAGS, MACHINES)).encode()).hexdigest()


def find_compiler() -> tuple[str, ...] | None:
    """The command of a C compiler."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found,)
    return (sys.executable, "-m", "ziglang", "cc") if importlib.util.find_spec("ziglang") else None


def build(compiler: Sequence[str], target: Path) -> None:
    """pass.c as a library at `target`, which is there whole or not at all; OSError with the compiler's words."""
    target.parent.mkdir(parents=True, exist_ok=True)
    is_zig = "ziglang" in compiler
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = []
        for machine, flags in MACHINES.items():
            made = Path(folder, f"pass_{machine}.o")
            if is_zig:  # which has its own spelling of x86-64-v3
                flags = tuple(flag.replace("x86-64-v", "x86_64_v") for flag in flags)
            names = (f"-DMACHINE={machine}", f'-DDIGEST="{digest()}"')
            failed = _run((*compiler, *_FLAGS, *flags, *names, "-c", str(SOURCE), "-o", str(made)))
            if not failed:
                objects.append(str(made))
            elif machine == 1:  # an old compiler may not know the newer machines
                raise OSError(failed)
        whole = Path(folder, "pass.so")
        if failed := _run((*compiler, "-shared", *objects, "-o", str(whole))):
            raise OSError(failed)
        whole.replace(target)


def _run(command: Sequence[str]) -> str:
    """What the compiler said where it failed."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=BUILD_S)
    if done.returncode == 0:
        return ""
    said = next((line for line in done.stderr.splitlines() if "error" in line.lower()), "")
    return f"{command[0]} ended with {done.returncode}: {said}"[:200]
