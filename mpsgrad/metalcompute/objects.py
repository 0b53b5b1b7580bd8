"""Version 0.2 of the interface: devices, kernels, functions and the handles of their runs."""

from __future__ import annotations

import operator
import weakref
from typing import Any, NamedTuple

from mpsgrad import devices
from mpsgrad.devices.contract import LARGEST_THREADGROUP, Dispatch, Submission
from mpsgrad.errors import DeviceError, DeviceNotFoundError, FormatError
from mpsgrad.metalcompute.buffer import Buffer, allocate, allocate_for
from mpsgrad.metalcompute.compiler import compile_source
from mpsgrad.metalcompute.exception import error
from mpsgrad.runtime.grid import LARGEST_GRID

SIMD_WIDTH = 32

# A driver that runs over metalcompute cannot be what metalcompute runs over.
_DRIVERS = tuple(name for name in devices.DRIVERS if name != "metal")
_UNTYPED_BYTES = 16


class metalcompute_device(NamedTuple):
    """What ``get_devices`` tells of a device."""

    deviceName: str
    recommendedWorkingSetSize: int
    maxTransferRate: int
    hasUnifiedMemory: bool


def get_devices() -> tuple[metalcompute_device, ...]:
    """The devices of this machine, in the order of the index that ``Device`` takes."""
    found = devices.available_devices(_DRIVERS)
    return tuple(metalcompute_device(each.name, each.memory_bytes, 0, each.unified_memory) for each in found)


def _open(index: int) -> devices.Device:
    found = devices.available_devices(_DRIVERS)
    if index >= 0:
        if index >= len(found):
            raise error("Cannot create device")
        return found[index]
    try:
        chosen = devices.default_device()
    except DeviceNotFoundError as missing:
        raise error("Cannot create device") from missing
    if chosen.identifier.partition(":")[0] in _DRIVERS:
        return chosen
    if not found:
        raise error("Cannot create device")
    return found[0]


def require_string(value: Any, position: int) -> str:
    """``value`` as what C takes for a string; raises what Python's reader of C arguments raises."""
    if not isinstance(value, str):
        raise TypeError(f"argument {position} must be str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError("embedded null character")
    return value


class Device:
    """``metalcompute.Device``: ``Device(index)`` opens one of ``get_devices()``, ``Device()`` the default device.

    Raises ``error`` if there is none. Its buffers belong to it alone, not to another object for the same device.
    """

    def __init__(self, index: int = -1, /) -> None:
        self._device = _open(operator.index(index))

    def kernel(self, program: str, /) -> Kernel:
        """Compiles Metal source; raises ``error`` with the compiler's messages."""
        return Kernel(self, program)

    def buffer(self, length_or_buffer: Any, /) -> Buffer:
        """A buffer of so many zero bytes, or with a copy of the bytes of an object with the buffer protocol.

        Raises ``error`` for an empty one, for one that is too large, and for what is neither.
        """
        return Buffer._make(self, self._device, length_or_buffer)

    def __str__(self) -> str:
        return f"metalcompute.Device({self._device.name})"


class Kernel:
    """``metalcompute.Kernel``: compiled source, made by ``Device.kernel``."""

    def __init__(self, owner: Device, program: str) -> None:
        self._owner = owner
        self._library = compile_source(owner._device, require_string(program, 2))

    def function(self, name: str, /) -> Function:
        """The kernel function called ``name``; raises ``error`` if there is none or metalcompute cannot run it."""
        found = self._find(require_string(name, 2))
        if found is None:
            raise error("Function not found")
        return found

    def _find(self, name: str) -> Function | None:
        try:
            return Function(self._owner, self._library.function(name))
        except KeyError:
            return None
        except FormatError as refusal:
            raise error(str(refusal)) from refusal

    def __str__(self) -> str:
        return "metalcompute.Kernel"


class Function:
    """``metalcompute.Function``: ``function(count, *buffers)`` starts it, made by ``Kernel.function``."""

    def __init__(self, owner: Device, function: devices.Function) -> None:
        self._owner = owner
        self._function = function
        signature = function.signature
        declared = signature.threadgroup_size or LARGEST_THREADGROUP
        self._threads = SIMD_WIDTH * (declared // SIMD_WIDTH)
        if self._threads == 0:
            raise error(
                f"{function.name}: max_total_threads_per_threadgroup is {declared}; below {SIMD_WIDTH} metalcompute "
                "divides by zero"
            )
        for argument in signature.arguments:
            if argument.address_space == "threadgroup":
                raise error(f"{function.name}: metalcompute cannot set the length of the argument '{argument.name}'")
            if argument.holds_pointers:
                raise error(f"{function.name}: metalcompute cannot fill in the pointers that '{argument.name}' holds")

    def __call__(self, *arguments: Any) -> Run:
        """Starts ``count`` threads, rounded up to whole threadgroups, and returns the handle of the run.

        ``arguments`` are the count and at least one buffer: a ``Buffer`` is used as it is, for anything else a new one
        is made as by ``Device.buffer``. Raises ``error`` for what does not fit, before anything runs.
        """
        if len(arguments) < 2:
            raise error("Buffer not found")
        count, *given = arguments
        threadgroups = -(-max(_count(count), 0) // self._threads)
        device = self._owner._device
        own = [each if isinstance(each, Buffer) else None for each in given]
        memory = [
            buffer._memory if buffer is not None else allocate_for(device, each)[0]
            for buffer, each in zip(own, given, strict=True)
        ]
        if any(buffer is not None and buffer._owner is not self._owner for buffer in own):
            raise error("Buffer not found")
        if threadgroups * self._threads > LARGEST_GRID:
            raise error(f"{count} threads are above the limit of {LARGEST_GRID}")
        return Run(self, threadgroups, self._bound(memory, threadgroups))

    def _bound(self, given: list[devices.Buffer], threadgroups: int) -> tuple[devices.Buffer, ...]:
        """The buffers in the order of the kernel's arguments, with zeros for those that are missing."""
        arguments = self._function.signature.arguments
        sizes = self._function.pointee_sizes or (_UNTYPED_BYTES,) * len(arguments)
        device, threads = self._owner._device, max(threadgroups, 1) * self._threads
        return tuple(
            given[argument.index] if argument.index < len(given) else allocate(device, threads * size)
            for argument, size in zip(arguments, sizes, strict=True)
        )

    def __str__(self) -> str:
        return "metalcompute.Function"


def _count(value: Any) -> int:
    """The number of threads, cut to an integer as C does it."""
    if not isinstance(value, (str, bytes, bytearray)):
        try:
            return int(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise error("First argument should be an integer kernel count")


class Run:
    """``metalcompute.Run``: the handle of a call. When it is released, its run and all before it have ended."""

    def __init__(self, function: Function, threadgroups: int, bound: tuple[devices.Buffer, ...]) -> None:
        if threadgroups == 0:
            return
        device, compiled = function._owner._device, function._function
        try:
            submission = device.submit(
                [Dispatch(compiled, (threadgroups, 1, 1), bound, (function._threads, 1, 1))], compiled.name
            )
        except DeviceError as refusal:
            # metalcompute's Swift half numbers its errors one off from its C half, which has the words.
            raise error("Cannot create command encoder") from refusal
        # Unlike __del__, this also waits at the end of the program, before modules are gone.
        weakref.finalize(self, _finish, submission, bound)

    def __str__(self) -> str:
        return "metalcompute.Run"


def _finish(submission: Submission, bound: tuple[devices.Buffer, ...]) -> None:
    """Waits for a run; until then ``bound`` keeps its buffers."""
    submission.wait()
