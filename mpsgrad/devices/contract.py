"""What a driver has to offer: the classes that every device module implements, and nothing about images or kernels.

A driver enumerates its devices, allocates buffers, compiles Metal source, runs lists of dispatches in order, and says
how long they took. Arguments of a dispatch are whole buffers at consecutive indices, as ``metalcompute`` passes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from mpsgrad.msl import KernelSignature

CONSTANT_BUFFERS_KEPT = 4096


class Buffer(ABC):
    """``nbytes`` of memory that kernels of one device can read and write; its contents are undefined at first."""

    device: Device
    nbytes: int

    @property
    @abstractmethod
    def memory(self) -> np.ndarray | None:
        """The bytes as a writable ``uint8`` array sharing the storage, or None where the host cannot see them."""

    @abstractmethod
    def write(self, data: Any, byte_offset: int = 0) -> None:
        """Copies a C-contiguous array or bytes-like object into the buffer."""

    @abstractmethod
    def read(self, byte_offset: int, nbytes: int) -> np.ndarray:
        """A copy of ``nbytes`` bytes as a ``uint8`` array. Work that writes the buffer must have completed."""


class Function(ABC):
    """One compiled kernel function."""

    name: str
    signature: KernelSignature
    threadgroup_size: int


class Library(ABC):
    """The kernel functions of one compiled Metal source."""

    @abstractmethod
    def function(self, name: str) -> Function:
        """The kernel function called ``name``; raises ``KeyError`` with the names that exist."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One run of a function over ``threadgroups`` groups of ``function.threadgroup_size`` threads."""

    function: Function
    threadgroups: int
    buffers: tuple[Buffer, ...]


class Submission(ABC):
    """Dispatches that were handed to a device, in order."""

    @abstractmethod
    def wait(self) -> None:
        """Blocks until the last dispatch has ended; raises ``DeviceError`` if the device reported a failure."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether the last dispatch has ended, without waiting."""

    @property
    @abstractmethod
    def gpu_time(self) -> float | None:
        """Seconds from the start of the first dispatch to the end of the last; None where the driver has no clock."""


@dataclass
class Device(ABC):
    """One device. ``identifier`` is what ``MPSGRAD_DEVICE`` takes, ``family`` selects the renderer's tunables.

    ``compute_units`` is 0 where the driver does not say how many there are.
    """

    identifier: str
    name: str
    driver: str
    driver_version: str
    family: str
    memory_bytes: int
    compute_units: int
    unified_memory: bool
    features: frozenset[str]
    simd_width: int = 32
    _constants: OrderedDict[bytes, Buffer] = field(default_factory=OrderedDict, repr=False)
    _constants_lock: Any = field(default_factory=Lock, repr=False)

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least one byte; raises ``DeviceError`` naming the size asked for when there is no memory."""

    @abstractmethod
    def compile(self, source: str, *, name: str) -> Library:
        """Compiles Metal source; ``name`` is the file name in messages for lines without a ``#line`` directive.

        Raises ``ShaderError`` that points at the Metal source.
        """

    @abstractmethod
    def is_compiled(self, source: str, *, name: str) -> bool:
        """Whether ``compile`` would find its result in the cache on disk."""

    @abstractmethod
    def submit(self, dispatches: Sequence[Dispatch], label: str | None = None) -> Submission:
        """Starts the dispatches, each after the one before it, and returns without waiting."""

    @abstractmethod
    def translate(self, source: str, *, name: str) -> str:
        """The text that the device's own compiler is given for Metal ``source``."""

    def constant_buffer(self, data: bytes) -> Buffer:
        """A read-only buffer holding ``data``; equal data shares one buffer, so a repeated encode copies nothing."""
        with self._constants_lock:
            buffer = self._constants.get(data)
            if buffer is None:
                buffer = self.allocate(len(data))
                buffer.write(data)
                self._constants[data] = buffer
                if len(self._constants) > CONSTANT_BUFFERS_KEPT:
                    self._constants.popitem(last=False)
            else:
                self._constants.move_to_end(data)
            return buffer

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other
