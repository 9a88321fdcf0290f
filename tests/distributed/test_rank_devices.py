"""What the processes of one merge warn of, and whose device failed: rank 0 says it for all."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from rank_threads import Thread, ranks_of
from stream_helpers import NOWHERE, bytes_of, plan_of, run, write_family

from hubmerge.engine import chunks
from hubmerge.engine.device.choose import Opened
from hubmerge.engine.device.engine import Engine
from hubmerge.engine.distributed import ALONE
from hubmerge.engine.journal import Journal
from hubmerge.engine.rank_folders import claim, see
from hubmerge.engine.stream import MergeResult, Silent, StreamOptions, Variant, merge_variants
from hubmerge.output import helper
from hubmerge.output.helper import help_to_folder
from hubmerge.sources.reader import LocalOrFetched, TensorReader


def test_rank_0_says_what_the_others_warn_of_and_whose_device_failed() -> None:
    noted = [["only mine"], ["gone", "slow"], ["gone"]]
    facts = [
        {"device": "H200", "torch": "2.13.0", "peak_device_bytes": 5},
        {"device": "cpu", "torch": "2.13.0", "device_failed": "CUDA out of memory"},
        {"device": "H200", "torch": "2.13.0", "peak_device_bytes": 7},
    ]
    heard: list[str] = []

    def work(ranks: Thread) -> dict[str, Any]:
        return ranks.report(noted[ranks.rank], facts[ranks.rank], heard.append)

    with ThreadPoolExecutor(3) as pool:
        together = next(iter(pool.map(work, ranks_of(3))))
    assert heard == ["ranks 1, 2: gone", "rank 1: slow"]
    assert together == {
        "device": "H200, cpu",
        "torch": "2.13.0",
        "peak_device_bytes": 7,
        "device_failed": "rank 1: CUDA out of memory",
    }
    assert ALONE.report(["told already"], facts[1], heard.append) == facts[1]
    assert len(heard) == 2
    with ThreadPoolExecutor(2) as pool:  # nobody has a device
        assert [*pool.map(lambda ranks: ranks.report([], {}, heard.append), ranks_of(2))] == [{}, {}]


def test_a_device_that_fails_at_a_helper_is_told_by_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_family(tmp_path)
    plan, out = plan_of(tmp_path, "ram_plus", max_shard_bytes=12_000), tmp_path / "out"
    run(plan, tmp_path / "one")
    prepared: Any = SimpleNamespace(plan=plan)
    warned: list[str] = []

    class Hearing(Silent):
        def warning(self, message: str) -> None:
            warned.append(message)

    def opened(device: str, agents: int, host: Any, warn: Any, *, local_rank: int, **_: Any) -> Opened:
        if local_rank:
            warn("the CUDA device cannot be used")
            return Opened(failed="CUDA error: no context")
        return Opened(Engine(torch.device("cpu"), host, memory_bytes=0))

    def without_fast_pass(options: StreamOptions, observer: Any) -> StreamOptions:
        observer.warning("there is no fast pass")
        return options

    monkeypatch.setattr(chunks, "open_engine", opened)
    monkeypatch.setattr(helper, "runnable", without_fast_pass)

    def work(ranks: Thread) -> MergeResult | None:
        with ranks.held:
            return merged_or_helped(ranks)

    def merged_or_helped(ranks: Thread) -> MergeResult | None:
        ranks.local_rank = ranks.rank
        options = StreamOptions(4096, 1, backend="eager", device="cuda", ranks=ranks)
        if ranks.rank:
            help_to_folder(prepared, NOWHERE, out, out / "cache", options, None)
            return None
        claim(ranks, out)
        see(ranks, out)
        with TensorReader(plan.models, LocalOrFetched(NOWHERE, out / "cache")) as reader:
            journal = Journal.open(out, plan, resume=False)
            return merge_variants([Variant(plan, journal, out)], reader, options, Hearing())[0]

    out.mkdir()
    with ThreadPoolExecutor(2) as pool:
        found = next(r for r in pool.map(work, ranks_of(2)) if r is not None)
    assert bytes_of(out, plan) == bytes_of(tmp_path / "one", plan)
    assert warned == ["rank 1: there is no fast pass", "rank 1: the CUDA device cannot be used"]
    assert found.device["device_failed"] == "rank 1: CUDA error: no context"
    assert found.device["device"] == "cpu"
