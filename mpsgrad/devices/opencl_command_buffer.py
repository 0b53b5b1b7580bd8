"""Command buffers of OpenCL (``cl_khr_command_buffer``): launches that one call puts on a queue, any number of times.

``pyopencl`` has none, so the extension's functions are called through ``ctypes``.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyopencl

_CAPABILITIES = 0x12A9
_CAN_BE_ENQUEUED_WHILE_PENDING = 1 << 2
_FLAGS = 0x1293
_MAY_BE_ENQUEUED_WHILE_PENDING = 1


class CommandBufferFunctions:
    """The functions of the extension on one platform; raises ``AttributeError`` where one is missing."""

    def __init__(self, platform: pyopencl.Platform) -> None:
        find = _loader().clGetExtensionFunctionAddressForPlatform
        find.argtypes, find.restype = (c_void_p, c_char_p), c_void_p

        def function(name: str, result: Any, *arguments: Any) -> Any:
            address = find(platform.int_ptr, name.encode())
            if address is None:
                raise AttributeError(f"{platform.name} has no {name}")
            return ctypes.CFUNCTYPE(result, *arguments)(address)

        wait_list = (c_uint32, c_void_p)
        grid = (c_uint32, POINTER(c_size_t), POINTER(c_size_t), POINTER(c_size_t))
        self.create = function(
            "clCreateCommandBufferKHR", c_void_p, c_uint32, POINTER(c_void_p), POINTER(c_uint64), POINTER(c_int32)
        )
        self.add_kernel = function(
            "clCommandNDRangeKernelKHR",
            c_int32,
            *(c_void_p, c_void_p, c_void_p, c_void_p, *grid, *wait_list, c_void_p, c_void_p),
        )
        self.finalize = function("clFinalizeCommandBufferKHR", c_int32, c_void_p)
        self.enqueue = function(
            "clEnqueueCommandBufferKHR", c_int32, c_uint32, c_void_p, c_void_p, *wait_list, c_void_p
        )
        self.release = function("clReleaseCommandBufferKHR", c_int32, c_void_p)


def command_buffer_functions(device: pyopencl.Device) -> CommandBufferFunctions | None:
    """The functions, or None where there are no command buffers that can be put on the queue again before they ran."""
    if "cl_khr_command_buffer" not in device.extensions.split():
        return None
    try:
        capabilities = c_uint64()
        get_info = _loader().clGetDeviceInfo
        get_info.argtypes = (c_void_p, c_uint32, c_size_t, c_void_p, c_void_p)
        get_info(device.int_ptr, _CAPABILITIES, ctypes.sizeof(capabilities), byref(capabilities), None)
        if not capabilities.value & _CAN_BE_ENQUEUED_WHILE_PENDING:
            return None
        return CommandBufferFunctions(device.platform)
    except (AttributeError, OSError):
        return None


def _loader() -> ctypes.CDLL:
    """The OpenCL loader that ``pyopencl`` is linked with: the system's, or one of its own."""
    import pyopencl as cl

    return ctypes.CDLL(cl._cl.__file__)


class OpenCLCommandBuffer:
    """Launches for one in-order queue, each of which begins when the one before it has ended.

    Its methods raise what ``refused`` makes of the name of a function of OpenCL and of the error code that it gave.
    """

    def __init__(
        self,
        functions: CommandBufferFunctions,
        queue: pyopencl.CommandQueue,
        refused: Callable[[str, int], Exception],
    ) -> None:
        self._functions = functions
        self._refused = refused
        error = c_int32()
        flags = (c_uint64 * 3)(_FLAGS, _MAY_BE_ENQUEUED_WHILE_PENDING, 0)
        self._handle = functions.create(1, (c_void_p * 1)(queue.int_ptr), flags, byref(error))
        self._require_success("clCreateCommandBufferKHR", error.value)
        # When the interpreter ends, the runtime may be gone before this object.
        weakref.finalize(self, functions.release, self._handle).atexit = False

    def _require_success(self, function: str, code: int) -> None:
        if code != 0:
            raise self._refused(function, code)

    def add(
        self,
        kernel: pyopencl.Kernel,
        size: tuple[int, ...],
        local_size: tuple[int, ...],
        offset: tuple[int, ...] | None,
    ) -> None:
        """Adds a launch of ``kernel`` with the arguments that it has now."""
        extents = c_size_t * len(size)
        first = extents(*offset) if offset is not None else None
        code = self._functions.add_kernel(
            self._handle,
            *(None, None, kernel.int_ptr),
            *(len(size), first, extents(*size), extents(*local_size)),
            *(0, None, None, None),
        )
        self._require_success("clCommandNDRangeKernelKHR", code)

    def finalize(self) -> None:
        """To be called once, before ``enqueue``: nothing can be added afterwards."""
        self._require_success("clFinalizeCommandBufferKHR", self._functions.finalize(self._handle))

    def enqueue(self) -> None:
        """Puts the launches on the queue."""
        code = self._functions.enqueue(0, None, self._handle, 0, None, None)
        self._require_success("clEnqueueCommandBufferKHR", code)
