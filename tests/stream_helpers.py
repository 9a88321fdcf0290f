"""Run the streaming merge on small folders and look at its bytes."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plan_helpers
from builders import T, f32, random_base, sparse_agent, tensor, write_model
from safetensors.numpy import load_file

from hubmerge.engine import fast
from hubmerge.engine.counting import folded
from hubmerge.engine.definition import ChunkInputs, probe_chunk
from hubmerge.engine.journal import Journal
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Observer, Unobserved
from hubmerge.engine.selection import Selection
from hubmerge.engine.stream import MergeResult, Variant, merge_variants
from hubmerge.methods.base import Threshold
from hubmerge.output.report import Report, make_report
from hubmerge.plan.plan import Plan
from hubmerge.sensitivity.file import SensitivityMetadata
from hubmerge.sources.base import Model
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.statistics.statistics import Tally, zero_tally

NOWHERE = plan_helpers.NOWHERE
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

# sizes around the block of 4,096 elements, besides scalar and empty tensors
SIZES = {
    "model.embed_tokens.weight": (37, 16),
    "model.layers.0.self_attn.q_proj.weight": (96, 128),
    "model.layers.0.mlp.up_proj.weight": (64, 64),
    "model.layers.0.input_layernorm.weight": (63,),
    "model.layers.1.mlp.down_proj.weight": (4097,),
    "model.layers.1.scale": (),
    "model.layers.1.empty": (0, 4),
    "lm_head.weight": (16, 37),
}


def write_family(
    folder: Path,
    *,
    dtype: str = "BF16",
    densities: Sequence[float] = (0.05, 0.4, 0.5),
    sizes: Mapping[str, tuple[int, ...]] = SIZES,
    shards: int = 1,
) -> tuple[dict[str, T], list[dict[str, T]]]:
    """A base and sparse agents below `folder` (base, agent0, agent1, …); also their tensors."""
    base = random_base(7, dtype, sizes)
    agents = [sparse_agent(base, density, seed) for seed, density in enumerate(densities)]
    write_models(folder, base, agents, shards=shards)
    return base, agents


def write_models(
    folder: Path,
    base: Mapping[str, T],
    agents: Sequence[Mapping[str, T]],
    more: Mapping[str, T] | None = None,
    **how: Any,
) -> None:
    """A base and agents below `folder`, each with `more` tensors."""
    for name, tensors in (("base", base), *((f"agent{i}", agent) for i, agent in enumerate(agents))):
        write_model(folder / name, {**tensors, **(more or {})}, **{"config": CONFIG, **how})


def spoil(
    folder: Path,
    agents: Sequence[Mapping[str, T]],
    bad: float = np.nan,
    name: str = "model.layers.1.mlp.down_proj.weight",
) -> None:
    """The last element of a tensor of agent 1 becomes `bad`."""
    values = f32(agents[1][name]).copy()
    values.flat[-1] = bad
    write_model(folder / "agent1", {**agents[1], name: tensor(values)}, config=CONFIG)


def plan_of(folder: Path, method: str, *, agents: int | list[Any] = 3, **fields: Any) -> Plan:
    named = [folder / f"agent{i}" for i in range(agents)] if isinstance(agents, int) else agents
    return plan_helpers.plan_of(folder / "base", *named, method=method, **fields)


def family_plan(folder: Path, method: str, **fields: Any) -> Plan:
    """`plan_of` a family that is written for it."""
    write_family(folder)
    return plan_of(folder, method, **fields)


def run(
    plan: Plan,
    out: Path,
    *,
    chunk: int = 4096,
    threads: int = 2,
    observer: Observer | None = None,
    measured: Sequence[Model] = (),
    **options: Any,
) -> MergeResult:
    """`measured`: sensitivity files; `options` of StreamOptions."""
    out.mkdir(parents=True, exist_ok=True)
    with TensorReader((*plan.models, *measured), LocalOrFetched(NOWHERE, out / "cache")) as reader:
        journal = Journal.open(out, plan)
        Journal.verify([journal], lambda done, total: None)
        variant = Variant(plan, journal, out, tuple(m.tensors for m in measured))
        stream = StreamOptions(chunk, threads, **options)
        return merge_variants([variant], reader, stream, observer or Unobserved())[0]


def report_of(plan: Plan, result: MergeResult) -> Report:
    words: dict[str, Any] = {"identity": "0" * 64, "target": "", "created": "2026-11-22T00:00:00Z"}
    return make_report(plan, result, **words, license={"id": "mit"}, environment={})


def tallies(result: MergeResult) -> dict[str, Any]:
    """What was counted, tensor by tensor and of the output."""
    return {name: t.to_json() for name, t in result.statistics.tensors.items()} | {"result": result.total.to_json()}


def bytes_of(out: Path, plan: Plan) -> dict[str, bytes]:
    return {s.filename: (out / s.filename).read_bytes() for s in plan.shards}


def tensors_of(out: Path, plan: Plan) -> dict[str, np.ndarray]:
    """The output as stored, read by the reference reader of safetensors."""
    return {name: value for s in plan.shards for name, value in load_file(out / s.filename).items()}


def tally_of(base: np.ndarray, agents: Sequence[np.ndarray], chunk: int = 1 << 30) -> Tally:
    """What is counted of arrays [n], float32, in chunks of so many elements."""

    rows = [[row[start : start + chunk] for row in (base, *agents)] for start in range(0, len(base), chunk)]
    chunks = (ChunkInputs(tuple(parts), ("F32",) * len(parts), 0) for parts in rows)
    return folded(zero_tally(len(agents)), (probe_chunk(one, 1e-5) for one in chunks))


def sensitivity_metadata(model: str = "a", sha: str = "0" * 40, weights: str = "") -> SensitivityMetadata:
    """What a file of sensitivities says of the model that they are of, and of data of no account."""
    versions = {"hubmerge": "1", "torch": "1", "transformers": "1", "dtype": "float32", "device": "cpu"}
    data = {"data": "d", "data_digest": "0" * 64, "prompt": "p", "answer": "a", "pairs": 1, "max_tokens": 2}
    of_model = {"model_id": model, "model_sha": sha, "model_weights": weights}
    return SensitivityMetadata.model_validate(versions | data | of_model)


def values_of(tensors: Mapping[str, T]) -> dict[str, np.ndarray]:
    return {name: f32(t) for name, t in tensors.items()}


def select(threshold: Threshold, agents: int, chunks: Sequence[ChunkInputs], by: Any = fast) -> tuple[float, ...]:
    """The order statistics of a tensor in such chunks, which `by` counts."""
    selection = Selection(threshold, agents)
    while selection.values is None:
        for chunk in chunks:
            selection.add(by.count_magnitudes(chunk, selection.wanted, threshold, 1e-5))
        selection.end_pass()
    return selection.values


class StopAfter(Unobserved):
    """An observer that breaks the stream off at its n-th progress call."""

    def __init__(self, calls: int, error: Callable[[], BaseException] = KeyboardInterrupt) -> None:
        self._left = calls
        self._error = error

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise self._error()


class Watching(Unobserved):
    """An observer that remembers what it is told, and in which threads."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.told: list[tuple[str, int, int]] = []  # stage, done, total
        self.values: list[Mapping[str, Any]] = []
        self.threads: set[str] = set()

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        assert 0 <= done <= total
        self.told.append((stage, done, total))
        self.threads.add(threading.current_thread().name)

    def statistics(self, values: Mapping[str, Any]) -> None:
        self.values.append(values)

    def warning(self, message: str) -> None:
        self.messages.append(message)
        self.threads.add(threading.current_thread().name)
