"""ZeroGPU with a decorator of our own: what crosses the process boundary is plain data, and a refusal costs no byte."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import engine_helpers  # noqa: F401  (puts tests/engine on the path)
import pytest
from stream_helpers import NOWHERE, bytes_of, plan_of, run, write_family
from test_engine import Warned

from hubmerge.device.zero import Bursts, decorator
from hubmerge.errors import NonFiniteError
from hubmerge.plan import Plan
from hubmerge.settings import load_settings
from hubmerge.sink import Journal
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.stream import MergeResult, StreamOptions, merge


class Lent:
    """As spaces.GPU: arguments and results are pickled; may refuse."""

    def __init__(self, refuse_after: int = 1000, error: Exception | None = None) -> None:
        self.durations: list[int] = []
        self._left, self._error = refuse_after, error or RuntimeError("GPU quota exceeded")

    def __call__(self, *, duration: int) -> Any:
        self.durations.append(duration)

        def decorate(function: Any) -> Any:
            def call(*arguments: Any) -> Any:
                self._left -= 1
                if self._left < 0:
                    raise self._error
                return pickle.loads(pickle.dumps(function(*pickle.loads(pickle.dumps(arguments)))))

            return call

        return decorate


def merged(plan: Plan, out: Path, gpu: Lent) -> tuple[MergeResult, list[str]]:
    out.mkdir()
    observer = Warned()
    store = LocalOrFetched(NOWHERE, out / "cache")
    with TensorReader(plan.models, store) as reader:
        bursts = Bursts(gpu, store.path, observer.warning, device="cpu")
        options = StreamOptions(4096, 2, backend="eager", bursts=bursts)
        return merge(plan, reader, Journal.open(out, plan, resume=False), out, options, observer), observer.messages


@pytest.mark.parametrize("method", ["ram_plus", "ties", "ram"])
@pytest.mark.parametrize("refuse_after", [1000, 2, 0])
def test_a_burst_per_shard_gives_the_bytes_of_the_cpu_also_when_the_gpu_is_refused(
    tmp_path: Path, method: str, refuse_after: int
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, method, max_shard_bytes=12_000)
    wanted = run(plan, tmp_path / "cpu")
    gpu = Lent(refuse_after)
    found, warnings = merged(plan, tmp_path / "lent", gpu)
    assert bytes_of(tmp_path / "lent", plan) == bytes_of(tmp_path / "cpu", plan)
    assert found.statistics.total.to_json() == wanted.statistics.total.to_json()
    assert found.total.to_json() == wanted.total.to_json()
    assert len(gpu.durations) == len(plan.shards)
    assert all(0 < seconds <= 120 for seconds in gpu.durations)
    assert len(warnings) == max(0, len(plan.shards) - refuse_after)


def test_what_is_wrong_with_the_merge_itself_is_not_tried_again(tmp_path: Path) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram")
    gpu = Lent(0, NonFiniteError("NaN or Inf in an input"))
    with pytest.raises(NonFiniteError):
        merged(plan, tmp_path / "lent", gpu)
    assert len(gpu.durations) == 1


def test_spaces_is_imported_on_a_zerogpu_space_only() -> None:
    assert decorator(load_settings({})) is None
    script = (
        "import sys\nfrom hubmerge.device.zero import decorator\nfrom hubmerge.settings import load_settings\n"
        "decorator(load_settings({}))\nassert not {'spaces', 'torch', 'gradio'} & set(sys.modules)\n"
        "class Fake:\n    GPU = staticmethod(lambda duration: None)\n"
        "sys.modules['spaces'] = Fake\n"
        "assert decorator(load_settings({'SPACES_ZERO_GPU': 'true'})) is Fake.GPU\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
