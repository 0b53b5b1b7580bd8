"""A device without hardware: it records what it is given, fails when told to, and hides its memory if asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpsgrad.devices import Buffer, Device, Dispatch, Function, Library, Submission
from mpsgrad.errors import DeviceError
from mpsgrad.msl import translate


class FakeBuffer(Buffer):
    def __init__(self, device: FakeDevice, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.bytes = np.full(nbytes, 0xA5, np.uint8)

    @property
    def memory(self) -> np.ndarray | None:
        return self.bytes if self.device.unified_memory else None

    def write(self, data: Any, byte_offset: int = 0) -> None:
        source = np.frombuffer(data, np.uint8)
        self.bytes[byte_offset : byte_offset + source.size] = source

    def read(self, byte_offset: int, nbytes: int) -> np.ndarray:
        return self.bytes[byte_offset : byte_offset + nbytes].copy()


class FakeFunction(Function):
    def __init__(self, name: str, signature: Any) -> None:
        self.name = name
        self.signature = signature
        self.threadgroup_size = signature.threadgroup_size or 32


class FakeLibrary(Library):
    def __init__(self, source: str, name: str) -> None:
        self.kernels = translate(source, "opencl", filename=name).kernels

    @property
    def function_names(self) -> tuple[str, ...]:
        return tuple(self.kernels)

    def function(self, name: str) -> FakeFunction:
        return FakeFunction(name, self.kernels[name])


class FakeSubmission(Submission):
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.is_waited_for = False

    def wait(self) -> None:
        self.is_waited_for = True
        if self.device.fails_in_wait:
            raise DeviceError("the fake device was told to fail")

    @property
    def is_complete(self) -> bool:
        return self.is_waited_for

    @property
    def gpu_time(self) -> float | None:
        return self.device.time


class FakeDevice(Device):
    """``submitted`` lists the dispatches of each submission; nothing runs."""

    def __init__(self, *, unified_memory: bool = True) -> None:
        super().__init__(
            identifier="fake:0",
            name="Fake",
            driver="fake",
            driver_version="1",
            family="cpu",
            memory_bytes=1 << 30,
            compute_units=0,
            unified_memory=unified_memory,
            features=frozenset(),
        )
        self.submitted: list[list[Dispatch]] = []
        self.allocated: list[int] = []
        self.fails_in_submit = False
        self.fails_in_wait = False
        self.time: float | None = 0.25

    __hash__ = Device.__hash__

    def allocate(self, nbytes: int) -> FakeBuffer:
        self.allocated.append(nbytes)
        return FakeBuffer(self, nbytes)

    def compile(self, source: str, *, name: str) -> FakeLibrary:
        return FakeLibrary(source, name)

    def is_compiled(self, source: str, *, name: str) -> bool:
        return True

    def translate(self, source: str, *, name: str) -> str:
        return source

    def submit(self, dispatches: Sequence[Dispatch], label: str | None = None) -> FakeSubmission:
        if self.fails_in_submit:
            raise DeviceError("the fake device refused the work")
        self.submitted.append(list(dispatches))
        return FakeSubmission(self)
