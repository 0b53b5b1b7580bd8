"""What a driver has to offer: the classes that every device module implements, and nothing about images or kernels.

A driver enumerates its devices, allocates buffers, compiles Metal source, runs lists of dispatches in order, and says
how long they took. Arguments of a dispatch are whole buffers at consecutive indices, as ``metalcompute`` passes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import numpy as np

from mpsgrad.device_bound import DeviceBound
from mpsgrad.dlpack import CPU
from mpsgrad.errors import FormatError
from mpsgrad.msl import KernelSignature

CONSTANT_BUFFERS_KEPT = 4096
LARGEST_THREADGROUP = 1024
"""Threads that a threadgroup can have, on Apple GPUs and so everywhere."""
THREADGROUP_MEMORY_BYTES = 32768
"""Threadgroup memory that Apple GPUs have."""

Extents = tuple[int, int, int]


class Buffer(DeviceBound, ABC):
    """``nbytes`` of memory that kernels of one device can read and write; its contents are undefined at first."""

    device: Device
    nbytes: int
    address: int
    """Of the first byte, as kernels of CPUs take it."""

    def __copy__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied: its memory would be given back twice")

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

    def part(self, byte_offset: int, nbytes: int) -> Buffer:
        """The ``nbytes`` from ``byte_offset`` on, a multiple of the device's ``part_alignment``, as a buffer.

        For buffers of ``Device.allocate``. Raises ``NotImplementedError`` where kernels take whole buffers only.
        """
        raise NotImplementedError(f"{self.device.identifier}: kernels take whole buffers only")


class Function(ABC):
    """One compiled kernel function."""

    name: str
    signature: KernelSignature
    threadgroup_size: int
    pointee_sizes: tuple[int, ...] | None = None
    """Bytes of what each argument points to, in the signature's order; None where the driver does not know them."""


class Library(ABC):
    """The kernel functions of one compiled Metal source."""

    @property
    @abstractmethod
    def function_names(self) -> tuple[str, ...]:
        """The names that ``function`` takes, in the order of the source."""

    @abstractmethod
    def function(self, name: str) -> Function:
        """The kernel function called ``name``.

        Raises ``KeyError`` with the names that exist, ``FormatError`` if it uses function constants without value, and
        ``ShaderError`` for what the last steps of a compiler refuse, where functions are compiled at their first use.
        """


def unknown_kernel(name: str, known: Iterable[str]) -> KeyError:
    """The error of asking a library for a kernel function that it has not; ``known`` are those that it has."""
    return KeyError(f"no kernel function {name!r}; there are {', '.join(sorted(known)) or 'none'}")


def require_constants(signature: KernelSignature) -> None:
    """Raises ``FormatError`` if a kernel function uses function constants that have no value."""
    if signature.unset_constants:
        raise FormatError(
            f"{signature.name}: the function constants {', '.join(signature.unset_constants)} have no value; give them "
            "with function_constants when the source is compiled"
        )


@dataclass(frozen=True)
class CompileOptions:
    """How source is compiled whose functions are dispatched over any grid.

    ``fast_math`` lets the compiler reorder and approximate as Metal does by default; NaN and infinity keep their
    meaning. ``function_constants`` are values by name or index. The files that the source includes are in
    ``include_directory``, if they are included in quotes, and in ``include_folders``.
    """

    fast_math: bool = True
    language_version: str = "2.3"
    function_constants: Mapping[str | int, Any] = field(default_factory=dict)
    include_directory: Path | None = None
    include_folders: tuple[Path, ...] = ()

    def definitions(self) -> dict[str, str]:
        """The macros that tell a program its language version."""
        major, minor = self.language_version.split(".")
        return {"__METAL_VERSION__": f"{int(major)}{int(minor)}0"}

    def resolve(self, name: str, quoted: bool) -> tuple[str, str] | None:
        """The text and the name of an included file, or None."""
        own = (self.include_directory,) if quoted and self.include_directory is not None else ()
        for folder in (*own, *self.include_folders):
            path = folder / name
            try:
                return path.read_text(encoding="utf-8"), str(path)
            except (OSError, ValueError):
                continue
        return None


@dataclass(slots=True)  # Not frozen: each encode makes some, and that would take five times as long.
class Dispatch:
    """One run of a function over ``threadgroups`` groups of ``function.threadgroup_size`` threads.

    Functions compiled with ``CompileOptions`` also take ``threadgroup``, the extents of a threadgroup; ``threadgroups``
    are then the threadgroups along each axis. If ``threads`` has the threads along each axis, no others run: the last
    threadgroups are smaller. ``threadgroup_memory`` has the bytes of each ``[[threadgroup(n)]]`` argument. ``held`` are
    buffers that are no arguments: the function finds them by addresses, as those of CPUs can. Those of one ``pattern``
    that is not None have the same function, threadgroups and constants.
    """

    function: Function
    threadgroups: int | Extents
    buffers: tuple[Buffer, ...]
    threadgroup: Extents | None = None
    threads: Extents | None = None
    threadgroup_memory: tuple[int, ...] = ()
    held: tuple[Buffer, ...] = ()
    pattern: object = None


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


class RecordedWork(ABC):
    """Dispatches that a device keeps, to be started any number of times."""

    @abstractmethod
    def submit(self) -> Submission:
        """Starts the dispatches, each after the one before it, and returns without waiting."""


class RepeatedSubmission(RecordedWork):
    """The recording of a driver that has no form of its own for one: it submits the same dispatches again."""

    def __init__(self, device: Device, dispatches: Sequence[Dispatch], label: str | None) -> None:
        self._device = device
        self._dispatches = tuple(dispatches)
        self._label = label

    def submit(self) -> Submission:
        return self._device.submit(self._dispatches, self._label)


@dataclass
class Device(DeviceBound, ABC):
    """One device. ``identifier`` is what ``MPSGRAD_DEVICE`` takes, ``family`` selects the shaders that suit it.

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

    def __copy__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied: there is one object for each device")

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least one byte; raises ``DeviceError`` naming the size asked for when there is no memory."""

    def allocate_shared(self, nbytes: int) -> Buffer:
        """A buffer whose ``memory`` the host reads and writes in place, also while kernels use it.

        Raises what ``allocate`` raises.
        """
        return self.allocate(nbytes)

    @property
    def orders_writes(self) -> bool:
        """Whether what ``Buffer.write`` copies arrives after the work that was submitted before it."""
        return False

    def wait_until_unused(self, buffer: Buffer) -> None:
        """Blocks until submitted work no longer uses ``buffer``, where a write would not be ordered and that is known.

        Failures of that work are left to those who wait for it.
        """
        return

    @property
    def part_alignment(self) -> int | None:
        """What the first byte of a ``Buffer.part`` is a multiple of; None where kernels take whole buffers only."""
        return None

    @property
    def kernels_of_program(self) -> int:
        """How many of the package's kernel functions are compiled at a time: several where a compiler takes long to
        begin."""
        return 1

    @property
    def largest_buffer(self) -> int:
        """The most bytes that ``allocate`` may give."""
        return self.memory_bytes

    @property
    def threadgroup_memory_bytes(self) -> int:
        """The most threadgroup memory that a kernel can have."""
        return THREADGROUP_MEMORY_BYTES

    @property
    def tuning(self) -> str:
        """Whose numbers the kernels share out their work by: the family's, unless its devices differ much."""
        return self.family

    @property
    def tiling(self) -> str:
        """Whose tiles matrices are multiplied in: the family's, unless some of its devices multiply otherwise."""
        return self.family

    @property
    def has_clusters(self) -> bool:
        """Whether threadgroups of a cluster run at the same time and write to each other's variables."""
        return False

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """The kind and the number of the device in DLPack."""
        return CPU, 0

    def adopt(self, address: int, nbytes: int, owner: Any) -> Buffer:
        """A buffer over memory that something else allocated; ``owner`` is kept while it is used.

        Raises ``NotImplementedError`` where kernels use only memory that the driver allocated.
        """
        raise NotImplementedError(f"{self.identifier}: kernels cannot use memory that something else allocated")

    @abstractmethod
    def compile(self, source: str, *, name: str, options: CompileOptions | None = None) -> Library:
        """Compiles Metal source; ``name`` is the file name in messages for lines without a ``#line`` directive.

        Without ``options`` functions are dispatched in whole threadgroups only, as the package's own are. Raises
        ``ShaderError`` that points at the Metal source.
        """

    @abstractmethod
    def is_compiled(self, source: str, *, name: str) -> bool:
        """Whether ``compile`` would find its result in the cache on disk."""

    @abstractmethod
    def submit(self, dispatches: Sequence[Dispatch], label: str | None = None) -> Submission:
        """Starts the dispatches, each after the one before it, and returns without waiting."""

    def record(self, dispatches: Sequence[Dispatch], label: str | None = None) -> RecordedWork:
        """The dispatches in the form that the device starts again with the least work of the host."""
        return RepeatedSubmission(self, dispatches, label)

    @abstractmethod
    def translate(self, source: str, *, name: str) -> str:
        """The text that the device's own compiler is given for Metal ``source``."""

    def constant_buffer(self, data: bytes) -> Buffer:
        """A read-only buffer holding ``data``; equal data shares one buffer, so a repeated encode copies nothing."""
        with self._constants_lock:
            buffer = self._constants.get(data)
            if buffer is None:
                buffer = self._constants[data] = self._new_constant(data)
                if len(self._constants) > CONSTANT_BUFFERS_KEPT:
                    self._constants.popitem(last=False)
            else:
                self._constants.move_to_end(data)
            return buffer

    def _new_constant(self, data: bytes) -> Buffer:
        buffer = self.allocate(len(data))
        buffer.write(data)
        return buffer

    # Those of a dataclass would compare what devices say of themselves; written in Python they would take longer.
    __hash__ = object.__hash__
    __eq__ = object.__eq__
