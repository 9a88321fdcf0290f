"""A CUDA device: it multiplies the matrices of whole tensors, and takes chunks where it is to; or the CPU takes over.

Chunks go there and back in bounded memory (lanes.py). Before its first one a device must reproduce small ones bit for
bit; one that computes otherwise (another rounding, flushed subnormals, fused operations) or fails in any way is not
used. Products must be as exact as float32 is.

Once it has passed, a device that fails (out of memory, driver error) is left for good: the chunk or tensor in hand and
all that follow are computed on the CPU from the same host memory, and the observer is warned once. An error that is not
the device's own is raised then, as it is a mistake of ours. torch, which takes two seconds to import, is asked only
where the machine shows a device that there is work for.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubmerge.engine import definition
from hubmerge.engine.counting import Counted, Read
from hubmerge.engine.definition import ChunkInputs, ChunkOutput, Rule
from hubmerge.engine.memory import DEVICE_LANES, device_shares
from hubmerge.engine.options import DEVICE_BYTES, StreamOptions
from hubmerge.errors import DeviceError, MemoryLimitError
from hubmerge.machine import resources
from hubmerge.machine.extras import require
from hubmerge.methods.base import one_by_one
from hubmerge.numerics.counter_rng import Key
from hubmerge.numerics.dtypes import Float32
from hubmerge.plan.disk import shown_bytes
from hubmerge.statistics.statistics import Tally

if TYPE_CHECKING:
    import torch  # which a merge on the CPU does without

    from hubmerge.engine.lanes import Lane

Warn = Callable[[str], None]

_EXACT = 1e-5  # of float32's products of 256 elements, relative; TF32's are thirty times as far off
T = TypeVar("T")


def _first(inputs: Any, per_agent: Any, constants: Any) -> Any:
    return inputs[0]


COUNTING = Rule(_first, (), (), (), 1e-5, "nearest", both_roundings=False)  # of a probe, which merges nothing


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
        next_step="Leave --device out, and the CPU does the work.",
    )


def open_engine(
    options: StreamOptions, agents: int, trials: Sequence[tuple[Rule, str]], whole: int, host: ModuleType, warn: Warn
) -> "tuple[Engine | None, dict[str, Any]]":
    """The options' device, once it has passed its trials; `host` is the module that does the same on the CPU.

    `trials`: rules of chunks, each with the output's dtype; empty: it gets no chunks. `whole`: the bytes that the
    largest tensor takes whose matrices it would multiply; 0: none.
    Without a device the CPU works; the facts beside say why one that is there is not used.
    """
    if options.device == "cpu" or not (trials or whole):
        return None, {}
    if options.device == "auto" and not (options.bursts or resources.device_there()):
        return None, {}
    engine = None
    try:
        if trials:
            device_shares(agents, options)  # MemoryLimitError
        if options.device_memory_bytes and whole > options.device_memory_bytes:
            needed, there = shown_bytes(whole, options.device_memory_bytes)
            raise MemoryLimitError(
                "the largest tensor does not fit the device's memory",
                expected=needed,
                got=there,
                next_step="Leave --device-memory out.",
            )
        place = _place(options.ranks.local_rank)
        if place is None:
            warn("torch finds no CUDA device here; the CPU goes on")
            return None, {}
        engine = Engine(place, host, memory_bytes=options.device_memory_bytes or (0 if whole else DEVICE_BYTES))
        for rule, dtype in trials:
            engine.prove(rule, agents, dtype)
        if whole:
            engine.prove_products()
    except Exception as error:  # noqa: BLE001 (torch's have no common type, and the CPU gives the same)
        if engine is not None:
            engine.close()
        why = _reason(error)
        warn(f"the CUDA device cannot be used, the CPU goes on: {why}")
        return None, {"device_failed": why}
    return engine, {}


def _place(local_rank: int) -> "torch.device | None":
    """Processes of one machine take its devices in turn."""
    require("gpu", "a CUDA device")
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", local_rank % torch.cuda.device_count())


class Engine:
    """Counts and merges chunks on one torch device; called from several threads.

    `host`: the module that does the same on the CPU. `memory_bytes`: 0 for all that is free.
    """

    def __init__(self, device: "torch.device", host: ModuleType, *, memory_bytes: int) -> None:
        """A CUDA device must have an index: without one, some of torch's functions refuse it and others take the
        thread's current device."""
        import torch

        from hubmerge.engine.lanes import Lane

        self.name = str(device)
        self._device = device
        self._host = host
        self._failed = ""
        self._untold: list[str] = []  # warnings
        self._lock, self._multiplying = threading.Lock(), threading.Lock()
        self._lanes: SimpleQueue[Lane] = SimpleQueue()
        self._cuda = device.type == "cuda"
        try:
            if self._cuda:
                properties = torch.cuda.get_device_properties(device)
                self.name = str(properties.name)
                share = min(1.0, memory_bytes / properties.total_memory) if memory_bytes else 1.0
                torch.cuda.set_per_process_memory_fraction(share, device)
                torch.cuda.reset_peak_memory_stats(device)
            for _ in range(DEVICE_LANES):
                self._lanes.put(Lane(device))
        except BaseException:
            self.close()
            raise

    @property
    def working(self) -> bool:
        return not self._failed

    def prove(self, rule: Rule, agents: int, dtype: str) -> None:
        """RuntimeError unless a small chunk comes out as the definition has it, or what torch raises."""
        if not definition.has_these_bits(self.merged, rule, agents, dtype):
            raise RuntimeError("it computes other bits than the CPU")

    def prove_products(self) -> None:
        """RuntimeError unless a product of float32 matrices is as exact as float32 is, which TF32 is not."""
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((2, 256, 256))
        found = self._product(x.astype(np.float32), y.astype(np.float32))
        if not np.abs(found - x @ y).max() < _EXACT * np.abs(x @ y).max():
            raise RuntimeError("its products of matrices are less exact than float32")

    def merged(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """`merge_chunk` on the device, whatever becomes of it."""
        with self._lane() as lane:
            return lane.merge(chunk, rule, dtype, key, with_inputs=with_inputs)

    def probe_chunk(self, chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
        """definition.probe_chunk."""
        return self._tried(partial(self._probed, chunk, epsilon), partial(self._host.probe_chunk, chunk, epsilon))

    def _probed(self, chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
        with self._lane() as lane:
            counts = lane.probe(chunk, epsilon)
        return Read(counts, len(chunk.raws[0])).inputs(len(chunk.raws) - 1)

    def merge_chunk(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """definition.merge_chunk."""
        on_device = partial(self.merged, chunk, rule, dtype, key, with_inputs=with_inputs)
        on_host = partial(self._host.merge_chunk, chunk, rule, dtype, key, with_inputs=with_inputs)
        output: ChunkOutput = self._tried(on_device, on_host)
        return output

    def whole_update(self, chunk: ChunkInputs, rule: Rule, on_host: Callable[[], Float32]) -> Float32:
        """definition.whole_update, in host memory; one tensor at a time."""

        def on_device() -> Float32:
            with self._products():
                raws: Any = tuple(map(self._there, chunk.raws, chunk.dtypes))
                return np.asarray(definition.whole_update(replace(chunk, raws=raws), rule, one_by_one).cpu().numpy())

        return self._tried(on_device, on_host)

    def _product(self, x: Float32, y: Float32) -> Float32:
        with self._products():
            return np.asarray((self._there(x, "F32") @ self._there(y, "F32")).cpu().numpy())

    def _there(self, stored: NDArray[Any], dtype: str) -> "torch.Tensor":
        """A copy on the device."""
        import torch

        from hubmerge.engine.lanes import STORED

        there = torch.from_numpy(np.array(stored).view(np.uint8)).to(self._device)
        return there.view(STORED[dtype])

    @contextmanager
    def _products(self) -> Iterator[None]:
        """This thread alone multiplies matrices of float32, without TF32, which torch may have been told to use."""
        import torch

        of_torch = torch.backends.cuda.matmul
        with self._multiplying, torch.inference_mode():
            kept, of_torch.allow_tf32 = of_torch.allow_tf32, False
            try:
                yield
            finally:
                of_torch.allow_tf32 = kept

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
    def _lane(self) -> "Iterator[Lane]":
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
            self._untold.append(f"the device {self._device} is no longer used, the CPU goes on: {self._failed}")

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
