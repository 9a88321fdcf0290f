"""Fuzzing by hand, guided by coverage (atheris): `make fuzz`, or `make fuzz ARGS="--runs 50000 recipe rule"`.

Each target runs in a process of its own, one after the other. What raises anything but a refusal, takes more than
two seconds of CPU or a gigabyte is written to .cache/fuzz/findings; once it is mended, its file goes to
tests/fuzz/corpus/TARGET, and every run of the tests tries it again.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import mmap
import os
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / ".cache" / "fuzz"
MOST_S = 2.0  # of CPU, for one input
HANGS_S = 30  # for one input, by the clock
MOST_MB = 1024
LONGEST, LONGEST_YAML, LONGEST_REPORT = 2048, 1024, 6000  # bytes of an input; longer seeds are for the tests
SEEDED = 0.25  # of the inputs, that are made of a seed and not of what coverage kept
COUNTED = struct.Struct("<Qd")  # executions, and the seconds of the slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="target", help="of tests/fuzz/fuzz_targets.py; none: all")
    parser.add_argument("--runs", type=int, default=1_000_000, help="executions of each target (%(default)s)")
    parser.add_argument("--seconds", type=int, default=0, help="at most so long for each target")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(HERE)]
    if given.child:
        _fuzz(given.targets[0], given.runs, given.seconds)
        return
    from fuzz_targets import TARGETS

    if unknown := set(given.targets) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    print("| target | executions | per second | slowest input, CPU s | most memory, MB | findings |")
    print("|---|---|---|---|---|---|", flush=True)
    found = [_supervised(name, given.runs, given.seconds) for name in given.targets or TARGETS]
    sys.exit(1 if any(found) else 0)


def _supervised(name: str, runs: int, seconds: int) -> int:
    """Runs the target in a child, prints its line of the table, and says how many findings there are."""
    findings = OUT / "findings" / name
    findings.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    counted = OUT / f"{name}.counted"
    counted.write_bytes(bytes(COUNTED.size))
    begin = time.monotonic()
    with (OUT / f"{name}.log").open("wb") as log:
        command = [sys.executable, __file__, "--child", name, f"--runs={runs}", f"--seconds={seconds}"]
        child = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - begin
    done, slowest = COUNTED.unpack(counted.read_bytes())
    new = len(set(findings.iterdir()) - before)
    ended = f", ended with {child.returncode}: see .cache/fuzz/{name}.log" if child.returncode else ""
    memory = usage.ru_maxrss // 1024
    print(f"| {name} | {done:,} | {done / took:,.0f} | {slowest:.2f} | {memory} | {new}{ended} |", flush=True)
    return new + bool(child.returncode)


def _fuzz(name: str, runs: int, seconds: int) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["hubmerge", "localhub", "workflows"]):
        from fuzz_damage import damaged, drawn
        from fuzz_seeds import seeds
        from fuzz_targets import TARGETS
    target, findings, corpus = TARGETS[name], OUT / "findings" / name, OUT / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    longest = LONGEST_YAML if target.kind in ("yaml", "card") else LONGEST
    longest = LONGEST_REPORT if name.startswith("report") else longest
    begins = [seed for seed in seeds(name) if len(seed) <= longest]
    for seed in begins:
        (corpus / hashlib.sha256(seed).hexdigest()).write_bytes(seed)
    with (OUT / f"{name}.counted").open("r+b") as file:
        counted = mmap.mmap(file.fileno(), COUNTED.size)
    known: set[str] = set()
    done, slowest = 0, 0.0

    def once(data: bytes) -> None:
        nonlocal done, slowest
        begin = time.process_time()
        try:
            target.run(data)
        except Exception as error:  # which is what this looks for
            last = traceback.extract_tb(error.__traceback__)[-1]
            keep(f"{type(error).__name__} at {last.filename}:{last.lineno}", data)
        took = time.process_time() - begin
        if took > MOST_S:
            keep("slow", data)
        done, slowest = done + 1, max(slowest, took)
        COUNTED.pack_into(counted, 0, done, slowest)

    def keep(what: str, data: bytes) -> None:
        if what not in known:
            known.add(what)
            (findings / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            print(f"FINDING: {what}", flush=True)
            traceback.print_exc()

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < SEEDED:
            data = random.choice(begins)
        if random.random() < 0.2:
            return atheris.Mutate(data, most)
        return damaged(data, target.kind, drawn(random))[:most]

    options = [f"-runs={runs}", f"-max_total_time={seconds}", f"-timeout={HANGS_S}", f"-rss_limit_mb={MOST_MB}"]
    options += [f"-max_len={longest}", f"-artifact_prefix={findings}/", "-print_final_stats=1"]
    options += [f"-report_slow_units={HANGS_S}"]  # by the clock, which a busy machine stretches
    atheris.Setup([sys.argv[0], *options, str(corpus)], once, custom_mutator=mutated)
    gc.freeze()  # what was imported stays
    atheris.Fuzz()


if __name__ == "__main__":
    main()
