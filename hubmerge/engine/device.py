"""A CUDA device: chunks go there and back in bounded memory (lanes.py), or the CPU takes over.

A device that fails (out of memory, driver error) is left for good at a chunk's boundary: the chunk in hand and all
that follow are computed on the CPU from the same host memory, with the same bytes, and the observer is warned once.
Before its first chunk an engine must reproduce a small one bit for bit; a device that computes otherwise (another
rounding, flushed subnormals, fused operations) or fails in any way is not used. Once it has passed, an error that is
not the device's own is raised, as it is a mistake of ours.

"auto" takes the faster of the two. It asks torch, which takes two seconds to import, only where the machine shows a
device; the device then merges chunks of the merge's own shape, and so does the CPU with all its threads (`Contest`).
The times per parameter are kept for the process. Nothing about the result depends on the choice, so whatever goes
wrong while a device is opened costs a warning and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from hubmerge import machine
from hubmerge.counter_rng import Key, make_key
from hubmerge.dtypes import decode, encode
from hubmerge.engine import definition
from hubmerge.engine.counting import BLOCK, Counted, Read
from hubmerge.engine.definition import ChunkInputs, ChunkOutput, Rule
from hubmerge.engine.memory import LANES, MEMORY_BYTES, device_chunk
from hubmerge.errors import DeviceError, MemoryLimitError
from hubmerge.extras import require
from hubmerge.statistics.statistics import Tally

if TYPE_CHECKING:
    import torch  # which a merge on the CPU does without

    from hubmerge.engine.lanes import Lane

DeviceName = Literal["cpu", "cuda", "auto"]

MAX_ELEMENTS = 1 << 22  # of a chunk
_ROUNDS = 3  # of a contest; the best counts, so that the first may be slow
T = TypeVar("T")


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


@dataclass(frozen=True)
class Contest:
    """How the CPU and a device would each merge, for "auto" to compare them."""

    host_threads: int
    host_chunk: int  # elements
    device_threads: int
    device_chunk: int


_measured: dict[tuple[Any, ...], tuple[float, float]] = {}  # seconds per element on the CPU and on the device


@dataclass(frozen=True)
class Opened:
    """What became of a device."""

    engine: Engine | None = None  # None: the CPU
    failed: str = ""  # why a device that is there is not used


def open_engine(
    device: DeviceName,
    agents: int,
    host: ModuleType,
    warn: Callable[[str], None],
    *,
    memory_bytes: int = MEMORY_BYTES,
    local_rank: int = 0,
    contest: Contest | None = None,
) -> Opened:
    """The engine of `device` for so many agents; what cannot be used is said and left, whatever the reason.

    Processes of one machine take its devices in turn, by their `local_rank`. With a `contest` the engine leaves
    the work to the CPU where that is faster.
    """
    if device == "cpu" or (device == "auto" and not machine.device_there()):
        return Opened()
    try:
        require("gpu", "a CUDA device")
        device_chunk(agents, memory_bytes, LANES)
        import torch

        if not torch.cuda.is_available():
            warn("torch finds no CUDA device here; the CPU goes on with the same result")
            return Opened()
        place = torch.device("cuda", local_rank % torch.cuda.device_count())
        return Opened(Engine(place, host, memory_bytes=memory_bytes, contest=contest))
    except Exception as error:  # noqa: BLE001 (torch's have no common type, and the CPU gives the same)
        why = reason(error)
        warn(f"the CUDA device cannot be used, the CPU goes on with the same result: {why}")
        return Opened(failed=why)


def reason(error: Exception) -> str:
    """One line; what is not the runtime's own message bears the error's class, as it may be a mistake of ours."""
    if isinstance(error, MemoryLimitError):
        problem = error.problems[0]
        return f"{problem.what} (expected {problem.expected}, got {problem.got})"
    text = (str(error).splitlines() or [""])[0]
    told = type(error) is not RuntimeError and not type(error).__module__.startswith("torch")
    return (f"{type(error).__name__}: {text}" if told or not text else text)[:200]


def _first(inputs: Any, per_agent: Any, constants: Any) -> Any:
    return inputs[0]


_COUNTING = Rule(_first, (), (), (), 1e-5, "nearest", both_roundings=False)


class Engine:
    """Counts and merges chunks on one torch device; called from several threads.

    `host`: the module that does the same on the CPU.
    """

    def __init__(
        self,
        device: torch.device,
        host: ModuleType,
        *,
        memory_bytes: int,
        lanes: int = LANES,
        contest: Contest | None = None,
    ) -> None:
        """A CUDA device must have an index: without one, some of torch's functions refuse it and others take the
        thread's current device."""
        import torch

        from hubmerge.engine.lanes import Lane

        self._device = device
        self._host = host
        self._contest = contest
        self._failed = ""
        self._slower = ""  # by how much, where the CPU is faster
        self._checked: set[tuple[Callable[..., Any], int, str]] = set()
        self._untold: list[str] = []  # warnings
        self._has_refused = False
        self._lock = threading.Lock()
        self._lanes: SimpleQueue[Lane] = SimpleQueue()
        self._cuda = device.type == "cuda"
        self._name = str(device)
        try:
            if self._cuda:
                properties = torch.cuda.get_device_properties(device)
                self._name = str(properties.name)
                torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / properties.total_memory), device)
                torch.cuda.reset_peak_memory_stats(device)
            for _ in range(lanes):
                self._lanes.put(Lane(device))
        except BaseException:
            self.close()
            raise

    @property
    def working(self) -> bool:
        return not self._failed and not self._slower

    def probe_chunk(self, chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
        """definition.probe_chunk."""
        agents = len(chunk.raws) - 1

        def on_device(lane: Lane) -> Counted[Tally]:
            n = len(chunk.raws[0])
            rule = replace(_COUNTING, epsilon=epsilon)
            return Read(lane.probe(chunk, rule), n).inputs(agents)

        def on_host() -> Counted[Tally]:
            counted: Counted[Tally] = self._host.probe_chunk(chunk, epsilon)
            return counted

        return self._tried(chunk, on_device, on_host)

    def merge_chunk(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """definition.merge_chunk."""

        def on_device(lane: Lane) -> ChunkOutput:
            return lane.merge(chunk, rule, dtype, key, with_inputs=with_inputs)

        def on_host() -> ChunkOutput:
            output: ChunkOutput = self._host.merge_chunk(chunk, rule, dtype, key, with_inputs=with_inputs)
            return output

        return self._tried(chunk, on_device, on_host)

    def _tried(self, chunk: ChunkInputs, on_device: Callable[[Lane], T], on_host: Callable[[], T]) -> T:
        if self.working and self._takes(len(chunk.raws[0])):
            try:
                with self._lane() as lane:
                    return on_device(lane)
            except RuntimeError as error:
                if not _is_of_device(error):
                    raise
                self._fail(error)
        return on_host()

    def _takes(self, elements: int) -> bool:
        if elements <= MAX_ELEMENTS:
            return True
        with self._lock:
            if not self._has_refused:
                self._has_refused = True
                self._untold.append(
                    f"chunks above {MAX_ELEMENTS:,} elements are merged on the CPU with the same result: "
                    f"the device {self._device} takes no larger ones"
                )
        return False

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        lane = self._lanes.get()
        try:
            yield lane
        finally:
            self._lanes.put(lane)

    def _fail(self, why: Exception | str) -> None:
        with self._lock:
            if self._failed:
                return
            self._failed = why if isinstance(why, str) else reason(why)
            self._untold.append(
                f"the device {self._device} is no longer used, the CPU goes on with the same result: {self._failed}"
            )

    def check(self, rule: Rule, agents: int, dtype: str) -> None:
        """Compare a small chunk with the definition; an engine that gives other bits, or none, counts as failed."""
        if not self.working or (rule.kernel, agents, dtype) in self._checked:
            return
        self._checked.add((rule.kernel, agents, dtype))
        chunk = _trial(rule, agents, dtype)
        key = make_key(1, "trial")
        try:
            with self._lane() as lane:
                found = lane.merge(chunk, rule, dtype, key, with_inputs=True)
        except Exception as error:  # noqa: BLE001 (a trial may fail in any way)
            self._fail(error)
            return
        if found.bits() != definition.merge_chunk(chunk, rule, dtype, key, with_inputs=True).bits():
            self._fail("it computes other bits than the CPU")
        elif self._contest is not None:
            self._compete(self._contest, chunk, rule, dtype, key)

    def _compete(self, contest: Contest, trial: ChunkInputs, rule: Rule, dtype: str, key: Key) -> None:
        """Leave the work to the CPU where that merges chunks of the merge's own shape faster."""
        case = (self._name, self._host.__name__, rule.kernel, len(trial.raws), dtype, contest)
        if case not in _measured:
            chunk = _lengthened(trial, contest.host_chunk)
            host = seconds_per_element(
                lambda: self._host.merge_chunk(chunk, rule, dtype, key, with_inputs=True), chunk, contest.host_threads
            )
            chunk = _lengthened(trial, contest.device_chunk)

            def on_device() -> None:
                with self._lane() as lane:
                    lane.merge(chunk, rule, dtype, key, with_inputs=True)

            try:
                _measured[case] = host, seconds_per_element(on_device, chunk, contest.device_threads)
            except Exception as error:  # noqa: BLE001 (as the trial)
                self._fail(error)
                return
        host, device = _measured[case]
        if host <= device:
            self._slower = f"{self._name} {device * 1e9:.2g} ns per parameter, the CPU {host * 1e9:.2g}"

    def check_counting(self, agents: int) -> None:
        """`check` of what a probe needs."""
        self.check(_COUNTING, agents, "BF16")

    def tell(self, warn: Callable[[str], None]) -> None:
        """Say, in the caller's thread, what was not said yet: that the device has failed, or leaves chunks out."""
        while self._untold:
            warn(self._untold.pop(0))

    def facts(self) -> dict[str, Any]:
        """For the report's environment."""
        import torch

        facts: dict[str, Any] = {"device": self._name, "torch": str(torch.__version__)}
        if self._cuda and self.working:
            facts["peak_device_bytes"] = torch.cuda.max_memory_reserved(self._device)
        if not self.working:
            facts["device"] = "cpu"
        if self._failed:
            facts["device_failed"] = self._failed
        if self._slower:
            facts["device_slower"] = self._slower
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


def _lengthened(trial: ChunkInputs, elements: int) -> ChunkInputs:
    """The trial over and over."""
    raws = tuple(np.resize(raw, elements) for raw in trial.raws)
    return replace(trial, raws=raws, sensitivities=tuple(np.resize(s, elements) for s in trial.sensitivities))


def seconds_per_element(merge: Callable[[], object], chunk: ChunkInputs, threads: int) -> float:
    """Of so many threads that merge a chunk each, again and again."""
    took = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            for done in [pool.submit(merge) for _ in range(threads)]:
                done.result()
            took.append(time.perf_counter() - begun)
    return min(took) / (threads * len(chunk.raws[0]))
