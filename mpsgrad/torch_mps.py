"""``torch.mps.compile_shader`` without a Mac: PyTorch's interface for kernels of one's own, on CPUs and NVIDIA GPUs.

``mpsgrad.torch_mps.compile_shader(source)`` takes the place of ``torch.mps.compile_shader(source)``: the kernels are
attributes of what it gives, and are called with tensors of the CPU or of a CUDA device in place of those of ``mps``.

What is kept:

* Metal 3.1 without fast math. ``#include <c10/metal/utils.h>`` and its like are found in the PyTorch that is installed.
* Arguments are taken by their buffer indices. A tensor is the memory from its first element on, whatever its strides.
  A number is the 8 bytes of an int64 or the 4 of a float32, a list several of them, unless ``arg_casts`` says what they
  are (``fp16``, ``bf16``, ``int32``, ``int16``, ``int8``, ``uint8``), for all of them or in a dict by position.
* ``threads`` are those of the first tensor's elements by default, one to three extents otherwise. Threadgroups have
  ``group_size``, or else as many threads in a row as the kernel can have.
* A list of tensors arrives as their addresses: ``constant array<device float*, 3>&``.
* ``error_buf_idx`` is the index of a buffer for ``TORCH_REPORT_ERROR``.

What differs:

* A call returns when the kernel has run, and raises ``DeviceError`` with the first error that it reported.
* What PyTorch lets a kernel misread is refused: an integer for a ``float``, a float for a ``half``, a list of integers
  for an ``int*`` without ``arg_casts``, tensors of another type than the kernel's.
* ``check`` of a kernel takes the arguments of a call and says what it does wrong, as ``KernelFunction.check`` does.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import Device, available_devices, default_device
from mpsgrad.devices.contract import LARGEST_THREADGROUP
from mpsgrad.dlpack import CPU
from mpsgrad.errors import DeviceError, FormatError, ShaderError
from mpsgrad.msl import Argument
from mpsgrad.runtime import KernelFunction, KernelLibrary, compile
from mpsgrad.runtime.arguments import declared, element_of
from mpsgrad.runtime.element_types import bfloat_bits
from mpsgrad.runtime.tensors import is_tensor, place_of

if TYPE_CHECKING:
    from mpsgrad.runtime.findings import KernelFinding

__all__ = ["MetalKernel", "ShaderLibrary", "ShaderSyntaxError", "compile_shader"]

LANGUAGE_VERSION = "3.1"
_CASTS = {"fp16": "float16", "bf16": "bfloat16", "int32": "int32", "int16": "int16", "int8": "int8", "uint8": "uint8"}
_REPORT = np.dtype([("file", "S128"), ("function", "S128"), ("message", "S250"), ("line", np.uint32)], align=True)
_REPORTS = np.dtype([("count", np.uint32), ("first", _REPORT, (30,))], align=True)


class ShaderSyntaxError(ShaderError, SyntaxError):
    """A source that was refused, as the error that PyTorch raises."""


def compile_shader(source: str) -> ShaderLibrary:
    """Compiles Metal source for the default device, and for others at the first call with a tensor that is there.

    Raises ``ShaderSyntaxError`` with line, column and the line's text for source that is refused.
    """
    return ShaderLibrary(source)


class ShaderLibrary(DeviceBound):
    """The kernels of one source, as attributes. Source: ``torch.mps.compile_shader``."""

    def __init__(self, source: str) -> None:
        if not isinstance(source, str):
            raise FormatError(f"compile_shader: source is a {type(source).__name__}; it has to be a str")
        # A string of one line would be a path.
        self._source = source + "\n"
        self._libraries: dict[Device, KernelLibrary] = {}
        self._library(default_device())

    def __getattr__(self, name: str) -> MetalKernel:
        if name.startswith("__") or name not in dir(self):
            names = ", ".join(dir(self)) or "none"
            raise AttributeError(f"ShaderLibrary has no kernel {name!r}; there are {names}", name=name, obj=self)
        return MetalKernel(self, name)

    def __dir__(self) -> list[str]:
        return [*next(iter(self._libraries.values())).function_names]

    def _library(self, device: Device) -> KernelLibrary:
        library = self._libraries.get(device)
        if library is None:
            try:
                library = compile(
                    self._source,
                    device=device,
                    fast_math=False,
                    language_version=LANGUAGE_VERSION,
                    include_folders=_include_folders(),
                )
            except ShaderError as error:
                raise ShaderSyntaxError(
                    error.message, file=error.file, line=error.line, column=error.column, source_line=error.source_line
                ) from None
            self._libraries[device] = library
        return library


class MetalKernel:
    """A kernel of a ``ShaderLibrary``."""

    max_threads_per_threadgroup: int
    """The threads of the largest threadgroup that it can have."""
    thread_execution_width = 32
    """The threads of a simdgroup."""

    def __init__(self, library: ShaderLibrary, name: str) -> None:
        self._library = library
        self._name = name
        declared_size = self._function(()).max_total_threads_per_threadgroup
        self.max_threads_per_threadgroup = declared_size or LARGEST_THREADGROUP

    def __call__(
        self,
        *arguments: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | Mapping[int, str] | None = None,
        error_buf_idx: int | None = None,
    ) -> None:
        """Runs the kernel over ``threads`` and returns when it has ended; the module says what the arguments may be.

        Raises ``FormatError`` or ``GeometryError`` before anything is dispatched, and ``DeviceError`` if the kernel
        reports an error or the device fails.
        """
        function = self._function(arguments)
        grid, threadgroup = self._grid(arguments, threads, group_size)
        reports = np.zeros(1, _REPORTS) if error_buf_idx is not None else None
        values = self._values(function, arguments, arg_casts, error_buf_idx, reports)
        if 0 in grid:
            return
        function(grid, *values, threadgroup=threadgroup)
        if reports is not None and reports["count"][0]:
            first = reports["first"][0, 0]
            where = f"{first['function'].decode()} in line {first['line']}"
            raise DeviceError(f"{self._name}: {where} of {first['file'].decode()}: {first['message'].decode()}")

    def check(
        self,
        *arguments: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | Mapping[int, str] | None = None,
        undefined: Sequence[str | int] = (),
    ) -> tuple[KernelFinding, ...]:
        """What the kernel does wrong in a run with these arguments, which stay as they are.

        ``undefined`` has the names or positions of arguments without a value before the run.
        """
        function = self._function(arguments)
        grid, threadgroup = self._grid(arguments, threads, group_size)
        values = self._values(function, arguments, arg_casts, None, None)
        return function.check(grid, *values, threadgroup=threadgroup, undefined=undefined)

    def __repr__(self) -> str:
        return f"<MetalKernel {self._name}>"

    def _function(self, arguments: Sequence[Any]) -> KernelFunction:
        """The kernel on the device of the first tensor that is not on the CPU, else on the default device."""
        device = default_device()
        for position, value in enumerate(arguments):
            place = place_of(f"{self._name}: argument {position}", value) if is_tensor(value) else (CPU, 0)
            if place[0] != CPU:
                device = next((each for each in available_devices() if each.dlpack_device == place), device)
                break
        return self._library._library(device).function(self._name)

    def _grid(
        self, arguments: Sequence[Any], threads: int | Sequence[int] | None, group_size: int | Sequence[int] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if threads is None:
            first = next((each for each in arguments if is_tensor(each) or isinstance(each, np.ndarray)), None)
            if first is None:
                raise FormatError(f"{self._name}: threads is None, and no argument is a tensor that says how many")
            threads = math.prod(first.shape)
        grid = _extents(threads)
        if group_size is None:
            largest = self.max_threads_per_threadgroup
            return grid, (min(largest, max(grid[0], 1)) if len(grid) == 1 else largest,)
        group = _extents(group_size)
        if len(group) != len(grid):
            raise FormatError(
                f"{self._name}: group_size is {group_size!r} and threads is {threads!r}; they have to be as many"
            )
        return grid, group

    def _values(
        self,
        function: KernelFunction,
        arguments: Sequence[Any],
        arg_casts: str | Mapping[int, str] | None,
        error_buf_idx: int | None,
        reports: np.ndarray | None,
    ) -> list[Any]:
        """What the runtime takes for ``arguments``, which stand at the indices of their buffers."""
        last = max((each.index for each in function.arguments), default=-1)
        if len(arguments) > last + 1:
            raise FormatError(f"{self._name}: takes arguments up to index {last} but was given {len(arguments)}")
        values = []
        for argument in function.arguments:
            where = f"{self._name}: argument {argument.index} ({declared(argument)})"
            if argument.index == error_buf_idx:
                values.append(reports)
            elif argument.index < len(arguments):
                cast = arg_casts if arg_casts is None or isinstance(arg_casts, str) else arg_casts.get(argument.index)
                values.append(_value(where, argument, arguments[argument.index], cast))
            else:
                raise FormatError(f"{where} is missing: {len(arguments)} arguments were given")
        return values


def _extents(value: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,)


def _value(where: str, argument: Argument, value: Any, cast: str | None) -> Any:
    """``value`` as the runtime takes it; raises ``FormatError`` for what the kernel would misread."""
    if is_tensor(value):
        return _memory(value)
    if not isinstance(value, (int, float, list, tuple)):
        return value
    numbers = [*value] if isinstance(value, (list, tuple)) else [value]
    if not numbers:
        raise FormatError(f"{where} is an empty {type(value).__name__}")
    if argument.holds_pointers:
        return [_memory(each) if is_tensor(each) else each for each in numbers]
    if any(map(is_tensor, numbers)):
        raise FormatError(
            f"{where} is a list of tensors, which arrives as their addresses; the kernel reads no pointers"
        )
    if cast is not None and cast not in _CASTS:
        raise FormatError(f"{where}: arg_casts says {cast!r}; it has to be one of {', '.join(_CASTS)}")
    made = _numbers(where, argument, numbers, cast)
    return made[0] if argument.is_reference and made.shape == (1,) else made


def _numbers(where: str, argument: Argument, numbers: list[Any], cast: str | None) -> np.ndarray:
    """``numbers`` as they arrive, which have to be what the kernel reads, or an integer whose low part it reads."""
    given = _CASTS[cast] if cast is not None else "float32" if isinstance(numbers[0], float) else "int64"
    arrives = bfloat_bits(np.array(numbers, np.float32)) if given == "bfloat16" else np.array(numbers).astype(given)
    element = element_of(argument)
    if element is None:
        return arrives
    taken = "bfloat16" if element.is_bfloat else element.dtype.name
    is_low_part = given == "int64" and len(numbers) == 1 and element.dtype.kind in "iub" and not element.is_bfloat
    if not is_low_part and given.lstrip("u") != taken.lstrip("u"):
        hint = f"; arg_casts={{{argument.index}: ...}} converts it" if cast is None else ""
        shown = numbers[0] if len(numbers) == 1 else numbers
        raise FormatError(f"{where} is {shown!r}, which arrives as {given}, but the kernel reads {taken}{hint}")
    return arrives.astype(element.dtype)


def _memory(tensor: Any) -> Any:
    """``tensor``, or one over the same memory without gaps, from its first element to its last."""
    if getattr(tensor, "requires_grad", False):
        tensor = tensor.detach()
    if not hasattr(tensor, "is_contiguous") or tensor.is_contiguous():
        return tensor
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.as_strided((1 + sum((extent - 1) * stride for extent, stride in extents),), (1,))


def _include_folders() -> list[Path]:
    """That of the Metal headers of the PyTorch that is installed."""
    found = importlib.util.find_spec("torch")
    return [Path(place) / "include" for place in found.submodule_search_locations or ()] if found is not None else []
