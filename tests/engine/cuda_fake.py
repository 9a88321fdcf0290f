"""CUDA devices of which only the lowest level is made up: torch's own Python functions run on it.

`torch._C` of a CPU build lacks what a CUDA build has there; FakeCuda puts it in, as strict about its arguments as the
C functions are (an index must be a number). Tensors cannot be faked at that level: what is asked for on a device, or
pinned, is made in plain memory, and noted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

MEMORY = 80_000_000_000


class FakeCuda:
    """`calls`: what C functions were called with, in order; `raises`: C function → what it raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, devices: int = 2) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.raises: dict[str, Exception] = {}
        self.tensors: list[tuple[str, int]] = []  # (thread, index) of what was made on a device, pinned: index -1
        self.copies: list[bool] = []  # of each between tensors, whether nobody waits for it
        self._devices = devices
        self._thread = threading.local()
        self._streams = 0
        given: dict[str, Callable[..., Any]] = {
            "_cuda_getDeviceCount": lambda: devices,
            "_cuda_init": lambda: None,
            "_cuda_getDevice": self._device,
            "_cuda_setMemoryFraction": self._set_fraction,
            "_cuda_resetPeakMemoryStats": self._index,
            "_cuda_memoryStats": lambda index: {"reserved_bytes": {"all": {"peak": 1_000_000 + self._index(index)}}},
            "_cuda_emptyCache": lambda: None,
            "_cuda_getCurrentStream": lambda index: (0, self._index(index), 1),
            "_cuda_setStream": self._set_stream,
        }
        for name, function in given.items():
            monkeypatch.setattr(torch._C, name, self._noted(name, function), raising=False)
        monkeypatch.setattr(torch._C, "_has_cuda", True)
        base = torch._C._CudaStreamBase
        monkeypatch.setattr(base, "__new__", self._new_stream)
        monkeypatch.setattr(base, "__init__", lambda *_, **__: None)
        # a seed that another test has set waits for a device, and would be set on one that is not there
        monkeypatch.setattr(torch.cuda, "_lazy_seed_tracker", torch.cuda._LazySeedTracker())
        state = {"_initialized": False, "_cached_device_count": None, "_queued_calls": [], "_cudart": object()}
        for name, value in state.items():
            monkeypatch.setattr(torch.cuda, name, value)
        # names that torch.cuda takes from torch._C when it is imported, or that _cuda_init puts there
        monkeypatch.setattr(torch.cuda, "_exchange_device", self._noted("_cuda_exchangeDevice", self._exchange))
        monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", self._exchange)
        properties = self._noted("_get_device_properties", self._properties)
        monkeypatch.setattr(torch.cuda, "_get_device_properties", properties, raising=False)
        for name in ("empty", "full"):
            monkeypatch.setattr(torch, name, self._in_plain_memory(name, getattr(torch, name)))
        copy = torch.Tensor.copy_

        def noted(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            self.copies.append(non_blocking)
            return copy(tensor, source, non_blocking)

        monkeypatch.setattr(torch.Tensor, "copy_", noted)

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a C function."""
        return [arguments for called, *arguments in self.calls if called == name]  # type: ignore[misc]

    def _noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, *arguments, *named.values()))
            if name in self.raises:
                raise self.raises[name]
            return function(*arguments, **named)

        return call

    def _index(self, index: object) -> int:
        if type(index) is not int or not 0 <= index < self._devices:
            raise TypeError(f"invalid device: {index!r}")
        return index

    def _device(self) -> int:
        return getattr(self._thread, "device", 0)

    def _exchange(self, index: int) -> int:
        before, self._thread.device = self._device(), self._index(index)
        return before

    def _set_fraction(self, fraction: object, index: object) -> None:
        assert type(fraction) is float
        self._index(index)

    def _set_stream(self, *, stream_id: int, device_index: int, device_type: int) -> None:
        self._thread.device = self._index(device_index)

    def _new_stream(self, kind: type, priority: int = 0, **known: int) -> Any:
        stream = object.__new__(kind)
        if not known:
            self._streams += 1
            known = {"stream_id": self._streams, "device_index": self._device(), "device_type": 1}
        for name, value in (*known.items(), ("device", torch.device("cuda", known["device_index"]))):
            setattr(stream, name, value)
        return stream

    def _properties(self, index: object) -> Any:
        return SimpleNamespace(name=f"Fake H{self._index(index)}", total_memory=MEMORY, major=9, minor=0)

    def _in_plain_memory(self, name: str, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def plain(*arguments: Any, device: Any = None, pin_memory: bool = False, **named: Any) -> torch.Tensor:
            if device is not None and torch.device(device).type == "cuda":
                self.tensors.append((threading.current_thread().name, self._index(torch.device(device).index)))
                device = None
                if f"torch.{name}" in self.raises:
                    raise self.raises[f"torch.{name}"]
            if pin_memory:
                self.tensors.append((threading.current_thread().name, -1))
            return make(*arguments, device=device, **named)

        return plain
