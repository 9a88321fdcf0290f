"""A CUDA device: chunks go there and back in bounded memory (lanes.py), or the CPU takes over.

Before its first chunk a device must reproduce small ones bit for bit; one that computes otherwise (another rounding,
flushed subnormals, fused operations) or fails in any way is not used. Once it has passed, a device that fails (out of
memory, driver error) is left for good at a chunk's boundary: the chunk in hand and all that follow are computed on the
CPU from the same host memory, with the same bytes, and the observer is warned once. An error that is not the device's
own is raised then, as it is a mistake of ours.

"auto" takes the faster of the two. It asks torch, which takes two seconds to import, only where the machine shows a
device; the device then merges chunks of the merge's own shape, and so does the CPU with all its threads. Nothing about
the result depends on the choice, so whatever goes wrong while a device is opened costs a warning and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from hubmerge import machine
from hubmerge.counter_rng import Key, make_key
from hubmerge.dtypes import decode, encode
from hubmerge.engine import definition
from hubmerge.engine.counting import BLOCK, Counted, Read
from hubmerge.engine.definition import ChunkInputs, ChunkOutput, Rule
from hubmerge.engine.memory import LANES, device_shares
from hubmerge.engine.options import StreamOptions
from hubmerge.errors import DeviceError, MemoryLimitError
from hubmerge.extras import require
from hubmerge.statistics.statistics import Tally

if TYPE_CHECKING:
    import torch  # which a merge on the CPU does without

    from hubmerge.engine.lanes import Lane

Warn = Callable[[str], None]

_ROUNDS = 3  # of a contest; the best counts, so that the first may be slow
T = TypeVar("T")


def _first(inputs: Any, per_agent: Any, constants: Any) -> Any:
    return inputs[0]


COUNTING = Rule(_first, (), (), (), 1e-5, "nearest", both_roundings=False)  # of a probe, which merges nothing


class Host(NamedTuple):
    """How the CPU does what a device would do."""

    module: ModuleType
    threads: int
    chunk: int  # elements


def require_cuda() -> None:
    """MissingExtraError or DeviceError without a CUDA device: who asks for one by its name wants no other."""
    require("gpu", "a CUDA device")
    import torch

    if torch.cuda.is_available():
        return
    raise DeviceError(
        "no CUDA device",
        where="--device cuda",
        expected="a GPU, its driver and a torch that was built for CUDA",
        got=f"torch {torch.__version__}, which finds none",
        next_step="Leave --device out: the CPU gives the same bits.",
    )


def open_engine(
    options: StreamOptions, agents: int, trials: Sequence[tuple[Rule, str]], host: Host, warn: Warn
) -> tuple[Engine | None, dict[str, Any]]:
    """The options' device for so many agents, once it has passed the `trials` (rules, each with the output's dtype).

    Without one the CPU works; the facts beside say why a device that is there is not used.
    """
    if options.device == "cpu" or not trials or (options.device == "auto" and not machine.device_there()):
        return None, {}
    engine = None
    try:
        threads, chunk = device_shares(agents, options)
        place = _place(options.ranks.local_rank)
        if place is None:
            warn("torch finds no CUDA device here; the CPU goes on with the same result")
            return None, {}
        engine = Engine(place, host.module, memory_bytes=options.device_memory_bytes)
        for rule, dtype in trials:
            engine.prove(rule, agents, dtype)
        if options.device == "auto":
            on_host, on_device = _contest(engine, host, threads, chunk, agents, trials)
            if on_host <= on_device:
                slower = f"{engine.name} {on_device * 1e9:.2g} ns per parameter, the CPU {on_host * 1e9:.2g}"
                facts = engine.facts() | {"device": "cpu", "device_slower": slower}
                facts.pop("peak_device_bytes", None)
                engine.close()
                return None, facts
    except Exception as error:  # noqa: BLE001 (torch's have no common type, and the CPU gives the same)
        if engine is not None:
            engine.close()
        why = _reason(error)
        warn(f"the CUDA device cannot be used, the CPU goes on with the same result: {why}")
        return None, {"device_failed": why}
    return engine, {}


def _place(local_rank: int) -> torch.device | None:
    """Processes of one machine take its devices in turn."""
    require("gpu", "a CUDA device")
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", local_rank % torch.cuda.device_count())


class Engine:
    """Counts and merges chunks on one torch device; called from several threads.

    `host`: the module that does the same on the CPU.
    """

    def __init__(self, device: torch.device, host: ModuleType, *, memory_bytes: int) -> None:
        """A CUDA device must have an index: without one, some of torch's functions refuse it and others take the
        thread's current device."""
        import torch

        from hubmerge.engine.lanes import Lane

        self.name = str(device)
        self._device = device
        self._host = host
        self._failed = ""
        self._untold: list[str] = []  # warnings
        self._lock = threading.Lock()
        self._lanes: SimpleQueue[Lane] = SimpleQueue()
        self._cuda = device.type == "cuda"
        try:
            if self._cuda:
                properties = torch.cuda.get_device_properties(device)
                self.name = str(properties.name)
                torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / properties.total_memory), device)
                torch.cuda.reset_peak_memory_stats(device)
            for _ in range(LANES):
                self._lanes.put(Lane(device))
        except BaseException:
            self.close()
            raise

    @property
    def working(self) -> bool:
        return not self._failed

    def prove(self, rule: Rule, agents: int, dtype: str) -> None:
        """RuntimeError unless a small chunk comes out as the definition has it, or what torch raises."""
        chunk, key = _trial(rule, agents, dtype), make_key(1, "trial")
        wanted = definition.merge_chunk(chunk, rule, dtype, key, with_inputs=True)
        if self.merged(chunk, rule, dtype, key, with_inputs=True).bits() != wanted.bits():
            raise RuntimeError("it computes other bits than the CPU")

    def merged(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """`merge_chunk` on the device, whatever becomes of it."""
        with self._lane() as lane:
            return lane.merge(chunk, rule, dtype, key, with_inputs=with_inputs)

    def probe_chunk(self, chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
        """definition.probe_chunk."""
        return self._tried(partial(self._probed, chunk, epsilon), partial(self._host.probe_chunk, chunk, epsilon))

    def _probed(self, chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
        with self._lane() as lane:
            counts = lane.probe(chunk, replace(COUNTING, epsilon=epsilon))
        return Read(counts, len(chunk.raws[0])).inputs(len(chunk.raws) - 1)

    def merge_chunk(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """definition.merge_chunk."""
        on_device = partial(self.merged, chunk, rule, dtype, key, with_inputs=with_inputs)
        on_host = partial(self._host.merge_chunk, chunk, rule, dtype, key, with_inputs=with_inputs)
        output: ChunkOutput = self._tried(on_device, on_host)
        return output

    def _tried(self, on_device: Callable[[], T], on_host: Callable[[], T]) -> T:
        if self.working:
            try:
                return on_device()
            except RuntimeError as error:
                if not _is_of_device(error):
                    raise
                self._fail(error)
        return on_host()

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        lane = self._lanes.get()
        try:
            yield lane
        finally:
            self._lanes.put(lane)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if self._failed:
                return
            self._failed = _reason(error)
            self._untold.append(
                f"the device {self._device} is no longer used, the CPU goes on with the same result: {self._failed}"
            )

    def tell(self, warn: Warn) -> None:
        """Say, in the caller's thread, what was not said yet: that the device has failed."""
        while self._untold:
            warn(self._untold.pop(0))

    def facts(self) -> dict[str, Any]:
        """For the report's environment."""
        import torch

        facts: dict[str, Any] = {"device": self.name, "torch": str(torch.__version__)}
        if self._failed:
            return facts | {"device": "cpu", "device_failed": self._failed}
        if self._cuda:
            facts["peak_device_bytes"] = torch.cuda.max_memory_reserved(self._device)
        return facts

    def close(self) -> None:
        """Give the device's memory back."""
        import torch

        while not self._lanes.empty():
            self._lanes.get()
        if self._cuda:
            with suppress(Exception):  # a failed driver raises here once more
                torch.cuda.empty_cache()
                torch.cuda.set_per_process_memory_fraction(1.0, self._device)


def _reason(error: Exception) -> str:
    """One line; what is not the runtime's own message bears the error's class, as it may be a mistake of ours."""
    if isinstance(error, MemoryLimitError):
        problem = error.problems[0]
        return f"{problem.what} (expected {problem.expected}, got {problem.got})"
    text = (str(error).splitlines() or [""])[0]
    told = type(error) is not RuntimeError and not type(error).__module__.startswith("torch")
    return (f"{type(error).__name__}: {text}" if told or not text else text)[:200]


def _is_of_device(error: RuntimeError) -> bool:
    """torch says most of what a device does wrong as a RuntimeError with the runtime's name in it."""
    import torch

    kinds = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
    return isinstance(error, kinds) or any(name in str(error) for name in ("CUDA", "HIP", "cuBLAS", "CUBLAS"))


def _trial(rule: Rule, agents: int, dtype: str) -> ChunkInputs:
    """Two and a half blocks with what devices differ in: subnormals, both zeros, ties, many exponents."""
    n = 2 * BLOCK + BLOCK // 2 + 1
    rng = np.random.default_rng(agents)
    base = np.ldexp(rng.standard_normal(n), rng.integers(-12, 1, n)).astype(np.float32)
    base[:64], base[64:128] = -0.0, 1e-41
    values = [base]
    for _ in range(agents):
        step = np.ldexp(rng.standard_normal(n), rng.integers(-16, -4, n)).astype(np.float32)
        step[32:96] = 3e-42
        values.append(np.where(rng.random(n) < 0.5, base + step, base).astype(np.float32))
    raws = tuple(encode(v, dtype, "nearest", None) for v in values)
    values = [decode(r, dtype) for r in raws]
    return ChunkInputs(
        raws,
        (dtype,) * (agents + 1),
        3 * BLOCK,
        tuple(make_key(2, "trial", str(k)) for k in range(agents)) if "uniform" in rule.extras else (),
        tuple(np.abs(v) for v in values[1:]) if "sensitivity" in rule.extras else (),
    )


def _contest(
    engine: Engine, host: Host, threads: int, chunk: int, agents: int, trials: Sequence[tuple[Rule, str]]
) -> tuple[float, float]:
    """Seconds per element of all trials together, on the CPU and on the device with so many threads and elements."""
    on_host = on_device = 0.0
    for rule, dtype in trials:
        trial = _trial(rule, agents, dtype)
        on_host += _seconds(host.module.merge_chunk, _lengthened(trial, host.chunk), rule, dtype, host.threads)
        on_device += _seconds(engine.merged, _lengthened(trial, chunk), rule, dtype, threads)
    return on_host, on_device


def _lengthened(trial: ChunkInputs, elements: int) -> ChunkInputs:
    """The trial over and over."""
    raws = tuple(np.resize(raw, elements) for raw in trial.raws)
    return replace(trial, raws=raws, sensitivities=tuple(np.resize(s, elements) for s in trial.sensitivities))


def _seconds(merge: Callable[..., object], chunk: ChunkInputs, rule: Rule, dtype: str, threads: int) -> float:
    """Per element, where so many threads merge a chunk each, again and again."""
    took, key = [], make_key(1, "trial")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            for done in [pool.submit(merge, chunk, rule, dtype, key, with_inputs=True) for _ in range(threads)]:
                done.result()
            took.append(time.perf_counter() - begun)
    return min(took) / (threads * len(chunk.raws[0]))
