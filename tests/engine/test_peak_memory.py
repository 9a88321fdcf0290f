"""What a report says of memory is the program's own."""

from __future__ import annotations

from processes import printed_by

from hubmerge.engine.usage import peak_rss_bytes

PEAK = "from hubmerge.engine.usage import peak_rss_bytes; print(peak_rss_bytes())"
LARGE = 400_000_000
STARTING = f"""
import subprocess, sys
held = b"x" * {LARGE}
subprocess.run([sys.executable, "-c", {PEAK!r}], check=True)
"""


def test_the_memory_of_whoever_starts_a_merge_is_not_counted() -> None:
    alone, below = (int(printed_by(code)) for code in (PEAK, STARTING))
    assert below < 1.2 * alone < LARGE


def test_what_was_given_back_counts() -> None:
    before = peak_rss_bytes()
    del bytearray(b"x" * (before + LARGE))[:]
    assert peak_rss_bytes() >= before + LARGE // 2
