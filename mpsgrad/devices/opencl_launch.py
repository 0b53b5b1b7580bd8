"""Kernels of OpenCL devices: functions, libraries, launches, submissions that can be waited for, and recorded ones."""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.devices.contract import (
    Buffer,
    Dispatch,
    Function,
    Library,
    RecordedWork,
    Submission,
    require_constants,
    unknown_kernel,
)
from mpsgrad.errors import DeviceError
from mpsgrad.msl import KernelSignature, Launch
from mpsgrad.msl.signature import WIDE_ROWS, is_passed_as_number

if TYPE_CHECKING:
    import pyopencl

    from mpsgrad.devices.opencl import OpenCLDevice

DEFAULT_THREADGROUP_SIZE = 256

MOST_BYTES = 1 << 31
"""What kernels for rows take for the most that an argument has: see ``mpsgrad.msl.analysis.neighbours``."""

_address: Callable[[Buffer], Any] = attrgetter("address")

Threads = tuple[int, ...]
KernelLaunch = tuple["OpenCLFunction", list[Any], Threads, Threads, "Threads | None"]
OwnLaunch = tuple["pyopencl.Kernel", Threads, Threads, "Threads | None"]


class OpenCLFunction(Function):
    """A kernel, whose arguments one thread at a time may set: OpenCL kernels are not thread safe.

    ``box`` is the same kernel for threadgroups of several rows and for large buffers, where that has to be another one,
    and ``narrow`` of a wide one that for threadgroups whose rows would be left with much that is not.
    """

    def __init__(
        self,
        kernel: pyopencl.Kernel,
        signature: KernelSignature,
        launch: Launch,
        box: Callable[[], OpenCLFunction] | None,
        narrow: Callable[[], OpenCLFunction] | None,
    ) -> None:
        """``kernel`` is the entry point for a kind of ``launch``."""
        self.name = signature.name
        self.signature = signature
        self.threadgroup_size = signature.threadgroup_size or DEFAULT_THREADGROUP_SIZE
        takes_numbers = [is_passed_as_number(argument, launch) for argument in signature.arguments]
        self._takes_numbers = any(takes_numbers)
        self._takes_only_numbers = all(takes_numbers)
        self._pointers = tuple(index for index, takes_number in enumerate(takes_numbers) if not takes_number)
        if self._takes_numbers:
            kernel.set_arg_types([np.int64 if takes_number else None for takes_number in takes_numbers])
        self.kernel = kernel
        self.box = box
        self.narrow = narrow if signature.is_wide else None
        self._arguments: list[Any] | None = None
        self._threadgroups: Any = 0
        self._size = ctypes.c_size_t()
        sizes = ctypes.byref(self._size), ctypes.byref(ctypes.c_size_t(self.threadgroup_size))
        self._launch = (pointer_argument(kernel), 1, None, *sizes, 0, None, None)

    def arguments_of(self, buffers: Sequence[Any]) -> list[Any]:
        """What the kernel takes for ``buffers``."""
        if not self._takes_numbers:
            return [buffer.handle for buffer in buffers]
        arguments = [*map(_address, buffers)]
        for index in self._pointers:
            arguments[index] = buffers[index].pointer
        return arguments

    def set_arguments(self, arguments: list[Any]) -> None:
        """Gives the kernel the arguments of its next launch, unless it has them from the last one."""
        if self.box is not None:
            self.kernel.set_args(*arguments)
        elif arguments != self._arguments:
            self._arguments = None
            self.kernel.set_args(*arguments)
            self._arguments = arguments

    def launch(self, enqueue: Callable[..., int], queue: Any, dispatch: Dispatch) -> None:
        """Puts ``dispatch`` on ``queue`` by OpenCL's own function, without an event."""
        buffers = dispatch.buffers
        # Most kernels take nothing else, and a call would take a third as long again.
        arguments = [*map(_address, buffers)] if self._takes_only_numbers else self.arguments_of(buffers)
        if arguments != self._arguments:
            self.set_arguments(arguments)
        if dispatch.threadgroups != self._threadgroups:
            self._threadgroups = dispatch.threadgroups
            self._size.value = self._threadgroups * self.threadgroup_size
        status = enqueue(queue, *self._launch)
        if status:
            import pyopencl as cl

            raise refusal(self, cl.status_code.to_string(status))  # type: ignore[operator]


class OpenCLLibrary(Library):
    """The kernels of a program. ``program`` compiles a part of it, or finds it compiled.

    ``box`` compiles it once more, for threadgroups of several rows and large buffers; the package's own kernels have
    none, and run in whole threadgroups only. So does ``narrow`` for devices whose vectors are narrower than wide rows.
    ``pointee_sizes`` finds them, for functions that need them.
    """

    def __init__(
        self,
        program: Callable[[int], pyopencl.Program],
        launch: Launch,
        signatures: dict[str, KernelSignature],
        pointee_sizes: Callable[[pyopencl.Program, KernelSignature], tuple[int, ...]] | None,
        box: Callable[[], OpenCLLibrary] | None,
        narrow: Callable[[], OpenCLLibrary] | None,
    ) -> None:
        self._program = once(program)
        self._launch: Launch = launch
        self._signatures = signatures
        self._pointee_sizes = pointee_sizes
        self._box = once(box) if box is not None else None
        self._narrow = once(narrow) if narrow is not None else None
        self._functions: dict[str, OpenCLFunction] = {}
        self._lock = RLock()

    @property
    def function_names(self) -> tuple[str, ...]:
        return tuple(self._signatures)

    def function(self, name: str) -> OpenCLFunction:
        if name not in self._signatures:
            raise unknown_kernel(name, self._signatures)
        with self._lock:
            function = self._functions.get(name)
            if function is None:
                function = self._functions[name] = self._new_function(self._signatures[name])
            return function

    def _new_function(self, signature: KernelSignature) -> OpenCLFunction:
        import pyopencl as cl

        require_constants(signature)
        program = self._program(signature.part)
        box, narrow = (
            partial(self._function_of, library, signature.name) if library is not None else None
            for library in (self._box, self._narrow)
        )
        function = OpenCLFunction(cl.Kernel(program, signature.entry_point), signature, self._launch, box, narrow)
        if self._pointee_sizes is not None:
            function.pointee_sizes = self._pointee_sizes(program, signature)
        return function

    def _function_of(self, library: Callable[[], OpenCLLibrary], name: str) -> OpenCLFunction:
        with self._lock:
            compiled = library()
        return compiled.function(name)


@dataclass(slots=True)
class HostTime:
    """The ``seconds`` for which a thread is busy with a submission: until it is on the queue, and while it waits."""

    seconds: float


class OpenCLSubmission(Submission):
    """Work between the first and the last of ``events``. ``held`` is what keeps its buffers until it has run."""

    host_time: HostTime | None = None
    """Where somebody wants to know it."""

    def __init__(self, held: Any, events: list[pyopencl.Event], label: str | None) -> None:
        self._held = held
        self._first: pyopencl.Event | None = events[0] if events else None
        self._last: pyopencl.Event | None = events[-1] if events else None
        self._label = label

    def wait(self) -> None:
        if self._last is not None and self._held is not None:
            started = time.perf_counter()
            try:
                self._last.wait()
            except engine_error() as error:
                raise DeviceError(f"{self._label or 'a command buffer'} failed on the device: {error}") from error
            if self.host_time is not None:
                self.host_time.seconds += time.perf_counter() - started
        self._held = None

    @property
    def is_complete(self) -> bool:
        if self._last is None or self._held is None:
            return True
        import pyopencl as cl

        return self._last.command_execution_status <= cl.command_execution_status.COMPLETE

    def uses(self, buffer: Buffer) -> bool:
        """Whether the work is still running and uses ``buffer``."""
        held = self._held
        if held is None or self.is_complete:
            return False
        dispatches = held.dispatches if isinstance(held, OpenCLRecording) else held
        return any(used is buffer for dispatch in dispatches for used in (*dispatch.buffers, *dispatch.held))

    @property
    def gpu_time(self) -> float | None:
        if self._first is None or self._last is None:
            return 0.0
        return (self._last.profile.end - self._first.profile.start) * 1e-9


class OpenCLRecording(RecordedWork):
    """Launches that need nothing but a place on the queue: each has a kernel of its own, with its arguments set.

    Command buffers of OpenCL would put all of them there by one call, but Intel's work on one core only.
    """

    def __init__(self, device: OpenCLDevice, dispatches: Sequence[Dispatch], label: str | None) -> None:
        self._device = device
        self.dispatches = dispatches
        self.label = label
        launches = [launch for dispatch in dispatches for launch in launches_of(dispatch)]
        self._functions = [function for function, *_ in launches]
        self._launches = [(_with_arguments(*launch[:2]), *launch[2:]) for launch in launches]
        # Those between the first and the last, whose events are needed.
        self._calls = [_call(device.queue, *launch) for launch in self._launches[1:-1]]

    def submit(self) -> OpenCLSubmission:
        return self._device.replay(self)

    def enqueue(self) -> list[pyopencl.Event]:
        """Puts the launches on the queue; the events of the first and the last."""
        import pyopencl as cl

        # Other threads that had begun with the first launches would slow this one down as it adds the rest.
        may_begin = cl.UserEvent(self._device._context)
        enqueue = entry_point()
        position = 0
        events: list[pyopencl.Event] = []
        try:
            events += [self._enqueue(launch, [may_begin]) for launch in self._launches[:1]]
            if enqueue is None:
                for position, launch in enumerate(self._launches[1:-1], 1):  # noqa: B007
                    self._enqueue(launch)
            else:
                for position, call in enumerate(self._calls, 1):
                    status = enqueue(*call)
                    if status:
                        error_name = cl.status_code.to_string(status)  # type: ignore[operator]
                        raise refusal(self._functions[position], error_name)
            position = len(self._launches) - 1
            events += [self._enqueue(launch) for launch in self._launches[1:][-1:]]
        except cl.Error as error:
            raise refusal(self._functions[position], error) from error
        finally:
            may_begin.set_status(cl.command_execution_status.COMPLETE)
        return events

    def _enqueue(self, launch: OwnLaunch, after: list[pyopencl.Event] | None = None) -> pyopencl.Event:
        import pyopencl as cl

        kernel, size, local, offset = launch
        return cl.enqueue_nd_range_kernel(self._device.queue, kernel, size, local, offset, wait_for=after)


def c_library() -> str:
    """The shared library with OpenCL's C interface that pyopencl uses."""
    import pyopencl as cl

    # The loader is a library of its own on Windows only.
    return "OpenCL.dll" if sys.platform == "win32" else cl._cl.__file__


@once
def entry_point() -> Callable[..., int] | None:
    """``clEnqueueNDRangeKernel`` without what pyopencl does for each call, an eighth of it; None if it is not found."""
    try:
        return ctypes.PyDLL(c_library()).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None


def pointer_argument(made: pyopencl.Kernel | pyopencl.CommandQueue) -> Any:
    """Where ``made`` lies, as OpenCL's own functions take it, which ctypes need not convert for each call."""
    return ctypes.c_void_p.from_param(made.int_ptr)


def _call(
    queue: pyopencl.CommandQueue, kernel: pyopencl.Kernel, size: Threads, local: Threads, offset: Threads | None
) -> tuple[Any, ...]:
    """The arguments of ``entry_point`` for a launch without an event."""
    extents = ctypes.c_size_t * len(size)
    return (
        pointer_argument(queue),
        pointer_argument(kernel),
        ctypes.c_uint(len(size)),
        extents(*offset) if offset is not None else None,
        extents(*size),
        extents(*local),
        ctypes.c_uint(0),
        None,
        None,
    )


def enqueued(queue: pyopencl.CommandQueue, dispatches: Sequence[Dispatch]) -> list[pyopencl.Event]:
    """Puts the dispatches on ``queue``; the events of their launches."""
    enqueue = _enqueue_nd_range_kernel()
    events: list[pyopencl.Event] = []
    for dispatch in dispatches:
        function: Any = dispatch.function
        try:
            if function.box is None:
                # The package's own kernels: one launch each.
                arguments = function.arguments_of(dispatch.buffers)
                if arguments != function._arguments:
                    function.set_arguments(arguments)
                local = function.threadgroup_size
                events.append(enqueue(queue, function.kernel, (dispatch.threadgroups * local,), (local,)))
                continue
            for function, *launch in launches_of(dispatch):
                arguments, size, local, offset = launch
                function.set_arguments(arguments)
                events.append(enqueue(queue, function.kernel, size, local, offset))
        except engine_error() as error:
            raise refusal(function, error) from error
    return events


@once
def engine_error() -> type[Exception]:
    """What pyopencl raises. To import that at each call would take longer than what a call does."""
    import pyopencl as cl

    return cl.Error


@once
def _enqueue_nd_range_kernel() -> Callable[..., pyopencl.Event]:
    import pyopencl as cl

    return cl.enqueue_nd_range_kernel


def _with_arguments(function: OpenCLFunction, arguments: Sequence[Any]) -> pyopencl.Kernel:
    """A kernel of its own with these arguments."""
    import pyopencl as cl

    try:
        kernel = function.kernel.clone()
        for index, argument in enumerate(arguments):
            kernel.set_arg(index, np.int64(argument) if isinstance(argument, int) else argument)
    except cl.Error as error:
        raise refusal(function, error) from error
    return kernel


def launches_of(dispatch: Dispatch) -> list[KernelLaunch]:
    """The function, arguments, grid, threadgroup and first thread of each launch that a dispatch takes."""
    function = dispatch.function
    assert isinstance(function, OpenCLFunction)
    arguments = function.arguments_of(dispatch.buffers)
    if function.box is not None:
        return _parts_of_grid(function, dispatch, arguments)
    assert isinstance(dispatch.threadgroups, int)
    size = function.threadgroup_size
    return [(function, arguments, (dispatch.threadgroups * size,), (size,), None)]


def _parts_of_grid(function: OpenCLFunction, dispatch: Dispatch, arguments: list[Any]) -> list[KernelLaunch]:
    """The parts of a grid that have threadgroups of one size each: OpenCL on CPUs runs no others."""
    import pyopencl as cl

    threadgroup = dispatch.threadgroup or (function.threadgroup_size, 1, 1)
    count = dispatch.threadgroups
    threadgroups = count if isinstance(count, tuple) else (count, 1, 1)
    grid = dispatch.threads or tuple(count * size for count, size in zip(threadgroups, threadgroup, strict=True))
    is_large = any(buffer.nbytes > MOST_BYTES for buffer in (*dispatch.buffers, *dispatch.held))
    as_row = is_large or (function.signature.uses_simdgroups and threadgroup[1:] != (1, 1))
    if as_row and function.box is not None:
        function = function.box()
    counts = tuple(-(-size // group) for size, group in zip(grid, threadgroup, strict=True))
    arguments = [*arguments, *(cl.LocalMemory(nbytes) for nbytes in dispatch.threadgroup_memory)]
    launches: list[Any] = []
    axes = [_parts(size, group) for size, group in zip(grid, threadgroup, strict=True)]
    for part in itertools.product(*reversed(axes)):
        first, groups, extents = zip(*reversed(part), strict=True)
        launch = np.array([*grid, *threadgroup, *counts, *first, *extents], np.uint32)
        local = (math.prod(extents), 1, 1) if as_row else extents
        size = tuple(count * size for count, size in zip(groups, local, strict=True))
        offset = None if as_row else tuple(index * size for index, size in zip(first, threadgroup, strict=True))
        of_part = function
        if function.narrow is not None and local[0] % WIDE_ROWS >= WIDE_ROWS // 2:
            of_part = function.narrow()
        launches.append((of_part, [*arguments, launch], size, local, offset))
    return launches


def refusal(function: OpenCLFunction, error: Exception | str) -> DeviceError:
    return DeviceError(f"{function.name}: the device refused the dispatch: {error}")


def _parts(threads: int, threadgroup: int) -> list[tuple[int, int, int]]:
    """First threadgroup, their number and their extent for the whole threadgroups along an axis, and for the rest."""
    whole, rest = divmod(threads, threadgroup)
    return [(0, whole, threadgroup)] * (whole > 0) + [(whole, 1, rest)] * (rest > 0)
