"""``compile`` and the objects that it gives: a library, its kernel functions, and what a run of one reports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import CompileOptions, Device, Function, Library, find_device, is_default_surely, require_device
from mpsgrad.devices.opencl import OpenCLDevice, start_compiler_early
from mpsgrad.errors import FormatError, with_article
from mpsgrad.msl import Argument
from mpsgrad.msl.versions import LANGUAGE_VERSIONS
from mpsgrad.runtime.argument_buffers import add_with_pointers
from mpsgrad.runtime.arguments import BoundArguments, declared, element_of, has_bytes
from mpsgrad.runtime.grid import dispatch, threadgroup_memory_lengths
from mpsgrad.runtime.host_tensors import tensor_layout
from mpsgrad.runtime.struct_values import struct_by_value
from mpsgrad.runtime.tensors import in_place, is_tensor

if TYPE_CHECKING:
    from mpsgrad.devices.opencl_checks import CheckedKernel
    from mpsgrad.runtime.findings import KernelFinding
    from mpsgrad.runtime.struct_types import StructTypes

SOURCE_NAME = "<metal>"


@dataclass(frozen=True)
class KernelRun:
    """A run of a kernel that has ended. ``gpu_time`` is in seconds; None where the driver has no clock."""

    gpu_time: float | None


@dataclass(frozen=True)
class _Origin:
    """What a library was compiled from."""

    source: str
    name: str
    options: CompileOptions

    @cached_property
    def struct_types(self) -> StructTypes:
        from mpsgrad.runtime.struct_types import StructTypes

        return StructTypes(self.source, self.name, self.options)


class KernelFunction(DeviceBound):
    """One kernel function: ``function(grid, *arguments)`` runs it and returns when it has ended."""

    def __init__(self, device: Device, function: Function, origin: _Origin) -> None:
        self.device = device
        self._function = function
        self._origin = origin

    @property
    def name(self) -> str:
        """The function's name in the Metal source."""
        return self._function.name

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The buffers that a call takes, in order of their indices."""
        return tuple(each for each in self._function.signature.arguments if each.address_space != "threadgroup")

    @property
    def max_total_threads_per_threadgroup(self) -> int | None:
        """What the kernel declares, or None."""
        return self._function.signature.threadgroup_size

    def dtype(self, argument: str | int) -> np.dtype:
        """NumPy's type with the layout of what an argument points or refers to, for arrays of structs.

        ``argument`` is a name or a position. A member that is one vector of three numbers has three, in the room of
        four; of arrays of those, and of matrices with three rows, each has four, the last of which means nothing.

        Raises ``FormatError`` for an argument that there is none of, and for a type whose layout cannot be told from
        the source: unions, bit-fields, packed structs, templates with specialisations, members that are pointers.
        """
        names = [each.name for each in self.arguments]
        position = names.index(argument) if argument in names else argument
        if not isinstance(position, int) or not 0 <= position < len(names):
            raise FormatError(f"{self.name}: dtype of {argument!r}, but the arguments are {', '.join(names) or 'none'}")
        found = self._dtype(position)
        if found is None or self.arguments[position].holds_pointers:
            shown = declared(self.arguments[position])
            raise FormatError(f"{self.name}: the layout of argument {position} ({shown}) cannot be told")
        return found

    def _dtype(self, position: int) -> np.dtype | None:
        tensor = self.arguments[position].tensor
        if tensor is not None:
            return tensor_layout(tensor)
        sizes = self._function.pointee_sizes
        size = sizes[position] if sizes is not None else None
        return self._origin.struct_types.dtype(self.arguments[position].built_in_type, size)

    def __call__(
        self,
        grid: Any,
        *arguments: Any,
        threadgroup: Any = None,
        grid_of_threadgroups: bool = False,
        threadgroup_memory: Any = None,
    ) -> KernelRun:
        """Runs the kernel over ``grid`` and waits; other Python threads run meanwhile.

        ``grid`` is a number of threads, or up to three; exactly these run, so threadgroups at the edges may be smaller
        (``dispatchThreads``). With ``grid_of_threadgroups`` it counts threadgroups (``dispatchThreadgroups``).
        ``threadgroup`` has up to three extents; without it the kernel's ``max_total_threads_per_threadgroup``, in rows
        of 32 threads if the grid has several dimensions. ``threadgroup_memory`` has the bytes of the
        ``[[threadgroup(n)]]`` arguments, one number or one for each.

        The arguments, in order of their buffer indices: NumPy arrays (contiguous; copied, and written back in place
        where the kernel may write), tensors of libraries with DLPack (those of the CPU likewise, those of the device's
        own GPU in place, after what their library did on CUDA's default stream), a ``Vector``, an ``Image`` or a device
        buffer (used as they are), and for what is only read also numbers, tuples of numbers for vectors, and for
        structs dicts with a value for each member, or NumPy scalars of a structured dtype such as ``dtype`` gives.
        ``bfloat`` takes tensors and arrays of bfloat16, the bits of such in uint16, and numbers, which are rounded.
        Structs that hold pointers (argument buffers) are dicts with arrays, tensors, a ``Vector``, an ``Image`` or a
        device buffer for these, or None for a null pointer. A ``tensor`` takes a contiguous array, a tensor of another
        library, a ``Vector`` or an ``Image`` of as many axes, of which the last one is the tensor's first dimension.

        Raises ``FormatError`` or ``GeometryError`` before anything is dispatched, ``DeviceError`` if the device fails,
        and ``NotImplementedError`` for what the driver cannot dispatch.
        """
        function = self._function
        expected = self._expected(arguments)
        values = self._with_bytes(arguments)
        memory = threadgroup_memory_lengths(self.name, function, threadgroup_memory)
        sizes = function.pointee_sizes or (None,) * len(expected)
        bound = BoundArguments(self.name, self.device)
        for position, (argument, size, value) in enumerate(zip(expected, sizes, values, strict=False)):
            if argument.holds_pointers:
                add_with_pointers(bound, argument, self._dtype(position), value)
            else:
                bound.add(argument, size, value)
        work = dispatch(
            self.name,
            function,
            grid,
            threadgroup,
            threadgroups=grid_of_threadgroups,
            buffers=tuple(bound.buffers),
            threadgroup_memory=memory,
            held=tuple(buffer for _, buffer in bound.pointed),
        )
        submission = self.device.submit([work], self.name)
        submission.wait()
        bound.write_back()
        return KernelRun(submission.gpu_time)

    def check(
        self,
        grid: Any,
        *arguments: Any,
        threadgroup: Any = None,
        grid_of_threadgroups: bool = False,
        threadgroup_memory: Any = None,
        undefined: Sequence[str | int] = (),
        rounded_up: bool = False,
    ) -> tuple[KernelFinding, ...]:
        """Runs the kernel on the CPU, one threadgroup after another, and gives what it does wrong, in order of place.

        A library for another device is compiled for the OpenCL device first, and device memory is copied to it.

        Finds accesses outside buffers, threadgroup arrays and what is a thread's own, reads of what has no value, data
        races, barriers and simdgroup functions that only some threads reach, integer division by zero and loops without
        end; ``MISTAKES`` in ``mpsgrad.runtime`` says what each means and what a run cannot show. Out-of-bounds accesses
        are kept from happening. The arguments are those of a call, and are left as they are.

        ``undefined`` has the names or positions of arguments whose contents have no value before the run: outputs. What
        pointers in an argument point to is named as in the kernel: ``all.y``, ``several[0].y``.
        With ``rounded_up`` the threads run that a grid rounded up to whole threadgroups has, as ``metalcompute``
        dispatches them.

        Raises what a call raises, and ``DeviceNotFoundError`` that says what to install if there is no OpenCL device.
        """
        from mpsgrad.runtime.check import check_kernel

        layouts = [self._dtype(k) if each.holds_pointers else None for k, each in enumerate(self._expected(arguments))]
        device, function, checked = self._checked
        return check_kernel(
            device,
            function,
            checked,
            grid,
            self._with_bytes(arguments),
            layouts,
            threadgroup=threadgroup,
            grid_of_threadgroups=grid_of_threadgroups,
            rounded_up=rounded_up,
            threadgroup_memory=threadgroup_memory_lengths(self.name, function, threadgroup_memory),
            undefined=undefined,
        )

    @cached_property
    def _checked(self) -> tuple[OpenCLDevice, Function, CheckedKernel]:
        """The CPU, and the function there without checks and with them."""
        from mpsgrad.devices.opencl_checks import CheckedKernel

        device, function, origin = self.device, self._function, self._origin
        if not isinstance(device, OpenCLDevice):
            device = find_device("opencl")
            assert isinstance(device, OpenCLDevice)
            function = device.compile(origin.source, name=origin.name, options=origin.options).function(self.name)
        compiling = partial(device.compile_checked, origin.source, origin.name, origin.options, self.name)
        return device, function, CheckedKernel(device, compiling)

    def _expected(self, given: Sequence[Any]) -> tuple[Argument, ...]:
        """The arguments that a call takes; raises ``FormatError`` if ``given`` are more or fewer."""
        expected = self.arguments
        if len(given) != len(expected):
            listed = ", ".join(map(declared, expected)) or "none"
            raise FormatError(f"{self.name}: takes {len(expected)} arguments ({listed}) but was given {len(given)}")
        return expected

    def _with_bytes(self, given: Sequence[Any]) -> Sequence[Any]:
        """``given``, with their memory in place of tensors, and arrays in place of dicts and of numbers for names of
        types that the source declares."""
        values = [*given]
        for position, argument in enumerate(self.arguments):
            value = values[position]
            if has_bytes(value) or argument.holds_pointers:
                continue
            where = f"{self.name}: argument {position} ({declared(argument)})"
            if is_tensor(value):
                values[position] = in_place(where, self.device, value, is_written=argument.is_writable)
                continue
            if argument.is_writable or element_of(argument) is not None:
                continue
            values[position] = struct_by_value(where, argument.type, self._dtype(position), value)
        return values

    def __repr__(self) -> str:
        return f"<KernelFunction {self.name}({', '.join(map(declared, self.arguments))}) on {self.device.identifier}>"


class KernelLibrary(DeviceBound):
    """The kernel functions of one Metal source, compiled for ``device``."""

    def __init__(self, device: Device, library: Library, origin: _Origin) -> None:
        self.device = device
        self._library = library
        self._origin = origin

    @property
    def function_names(self) -> tuple[str, ...]:
        """The names of the kernel functions, as written or as ``[[host_name]]`` gives them."""
        return self._library.function_names

    def function(self, name: str) -> KernelFunction:
        """The kernel function called ``name``.

        On CPUs the functions of a long source are compiled at their first use, here. Raises ``KeyError`` with the names
        that exist, ``FormatError`` if it uses function constants that were given no value, and ``ShaderError`` for what
        only the last steps of the device's compiler refuse then.
        """
        return KernelFunction(self.device, self._library.function(name), self._origin)

    def __repr__(self) -> str:
        return f"<KernelLibrary of {', '.join(self.function_names) or 'nothing'} on {self.device.identifier}>"


def compile(
    source_or_path: str | Path,
    *,
    device: Device | None = None,
    function_constants: Mapping[str | int, Any] | None = None,
    fast_math: bool = True,
    language_version: str = "2.3",
    include_folders: Sequence[str | Path] = (),
) -> KernelLibrary:
    """Compiles Metal source for ``device`` (default: the default device).

    ``source_or_path`` is the source, or a path to it: a ``Path``, or a string of one line without braces. Files that it
    includes in quotes are looked for beside it, and all in ``include_folders``. ``function_constants`` are values by
    name or index. ``fast_math`` lets the compiler reorder and approximate, as Metal does by default; NaN and infinity
    keep their meaning here even so.

    Raises ``ShaderError`` with file, line, column and the line's text for source that is refused, also where only
    Apple's compiler does so: pointers and references without an address space, variables at program scope that are not
    ``constant``, narrowing in braces, ``goto``. Raises ``FormatError`` for function constants that do not fit,
    ``OSError`` for a file that cannot be read, and ``NotImplementedError`` for what the driver cannot do.
    """
    if language_version not in LANGUAGE_VERSIONS:
        known = ", ".join(map(repr, LANGUAGE_VERSIONS))
        raise FormatError(f"compile: language_version is {language_version!r}; it has to be one of {known}")
    if not isinstance(source_or_path, (str, Path)):
        given = with_article(type(source_or_path).__name__)
        raise FormatError(f"compile: source_or_path is {given}; it has to be a str or a Path")
    if function_constants is not None and not isinstance(function_constants, Mapping):
        given = with_article(type(function_constants).__name__)
        raise FormatError(f"compile: function_constants is {given}; it has to be a dict of values by name or index")
    if isinstance(include_folders, (str, Path)):
        raise FormatError(f"compile: include_folders is {include_folders!r}; it has to be a sequence of folders")
    if isinstance(source_or_path, str) and not source_or_path.strip():
        raise FormatError("compile: source_or_path is an empty string; it has to be Metal source, or a path to it")
    directory = None
    if isinstance(source_or_path, Path) or not re.search(r"[\n{};]", source_or_path):
        path = Path(source_or_path)
        if "\0" in str(path):
            raise FormatError(f"compile: source_or_path is {str(path)!r}; a path has no null characters")
        try:
            source, name, directory = path.read_text(encoding="utf-8"), str(path), path.parent
        except UnicodeDecodeError as error:
            raise FormatError(f"compile: {path} is not UTF-8 text: {error.reason}") from error
    else:
        source, name = source_or_path, SOURCE_NAME
    folders = tuple(map(Path, include_folders))
    options = CompileOptions(fast_math, language_version, dict(function_constants or {}), directory, folders)
    if device is None and is_default_surely("opencl"):
        start_compiler_early(source, name, options)
    chosen = require_device("compile", device)
    return KernelLibrary(chosen, chosen.compile(source, name=name, options=options), _Origin(source, name, options))
