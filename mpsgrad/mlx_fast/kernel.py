"""``metal_kernel``: kernels whose signature follows from what they are called with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.device_bound import DeviceBound
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.mlx_fast.types import ArrayType, array_type, as_input, as_output, filled, is_of_mlx, require_output
from mpsgrad.runtime import KernelFunction, compile

if TYPE_CHECKING:
    from mpsgrad.runtime.findings import KernelFinding

LANGUAGE_VERSION = "3.2"
LARGEST_CONSTANT = 8
"""Inputs of fewer elements lie in ``constant``."""
_MATH_MODES = ("safe", "relaxed", "fast")
_POSITIONS = {
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: Mapping[str, str] | None = None,
) -> MetalKernel:
    """A kernel with the body ``source``; nothing is compiled before its first call.

    ``header`` stands before the kernel. Inputs are made contiguous in row-major order with ``ensure_row_contiguous``,
    outputs are ``atomic<T>`` with ``atomic_outputs``. ``compile_options`` may have a ``math_mode``: ``safe`` (the
    default), ``relaxed`` or ``fast``. Raises ``FormatError`` for names that are none and options that do not exist, and
    ``GeometryError`` without an output. Source: ``mlx.core.fast.metal_kernel``.
    """
    for each in (name, *input_names, *output_names):
        if not isinstance(each, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", each):
            raise FormatError(f"metal_kernel: {each!r} is no name of a kernel, an input or an output")
    if not output_names:
        raise GeometryError("metal_kernel: output_names is empty; a kernel needs at least one output")
    options = {"math_mode": "safe", **(compile_options or {})}
    if [*options] != ["math_mode"] or options["math_mode"] not in _MATH_MODES:
        raise FormatError(
            f"metal_kernel: compile_options is {compile_options!r}; it may have a math_mode of {', '.join(_MATH_MODES)}"
        )
    return MetalKernel(
        name,
        tuple(input_names),
        tuple(output_names),
        source,
        header,
        ensure_row_contiguous,
        atomic_outputs,
        options["math_mode"] != "safe",
    )


@dataclass(frozen=True, slots=True)
class _Input:
    """An input of one call: its memory without gaps, its type, and how its elements lie there."""

    memory: np.ndarray
    kind: ArrayType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def declaration(self) -> str:
        """Its type as a parameter: all of an input that its kernel's source depends on."""
        space = "constant" if np.prod(self.shape, dtype=np.int64) < LARGEST_CONSTANT else "device"
        return f"const {space} {self.kind.metal}{'*' if self.shape else '&'}"


@dataclass(frozen=True, slots=True)
class _Call:
    """A call whose arguments have been checked."""

    function: KernelFunction
    arguments: list[Any]
    outputs: list[np.ndarray]
    kinds: list[ArrayType]
    for_mlx: bool
    grid: tuple[int, ...]
    threadgroup: tuple[int, ...]


class MetalKernel(DeviceBound):
    """A kernel that ``metal_kernel`` made; each combination of types is compiled at its first call."""

    def __init__(
        self,
        name: str,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
        source: str,
        header: str,
        ensure_row_contiguous: bool,
        atomic_outputs: bool,
        fast_math: bool,
    ) -> None:
        self._name = name
        self._input_names = input_names
        self._output_names = output_names
        self._body = source
        self._header = header
        self._ensure_row_contiguous = ensure_row_contiguous
        self._atomic_outputs = atomic_outputs
        self._fast_math = fast_math
        self._positions = [each for each in _POSITIONS if each in source]
        self._functions: dict[str, KernelFunction] = {}

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[Any]:
        """Runs the kernel over ``grid`` threads in threadgroups of ``threadgroup``, and gives its outputs.

        ``inputs`` are arrays and numbers, ``template`` has a type, an integer or a bool for each parameter of the
        body's template, ``init_value`` is what outputs begin with, and ``verbose`` prints the source of the kernel.

        Raises ``FormatError`` or ``GeometryError`` for arguments that do not fit, ``ShaderError`` for source that is
        refused, and ``DeviceError`` if the device fails.
        """
        call = self._call(
            inputs, output_shapes, output_dtypes, grid, threadgroup, template, init_value, verbose=verbose
        )
        call.function(call.grid, *call.arguments, threadgroup=call.threadgroup)
        results = zip(call.outputs, call.kinds, strict=True)
        return [as_output(output, kind, for_mlx=call.for_mlx) for output, kind in results]

    def check(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
    ) -> tuple[KernelFinding, ...]:
        """What the kernel does wrong in a run with these arguments; outputs without ``init_value`` have no value."""
        call = self._call(inputs, output_shapes, output_dtypes, grid, threadgroup, template, init_value)
        undefined = self._output_names if init_value is None else ()
        return call.function.check(call.grid, *call.arguments, threadgroup=call.threadgroup, undefined=undefined)

    def __repr__(self) -> str:
        return f"<MetalKernel {self._name}({', '.join(self._input_names)}) -> {', '.join(self._output_names)}>"

    def _call(
        self,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Sequence[tuple[str, Any]] | None,
        init_value: float | None,
        verbose: bool = False,
    ) -> _Call:
        for what, names, given in (
            ("inputs", self._input_names, inputs),
            ("output_shapes", self._output_names, output_shapes),
            ("output_dtypes", self._output_names, output_dtypes),
        ):
            if len(given) != len(names):
                raise GeometryError(f"{self._name}: {what} has {len(given)} elements; it has to have {len(names)}")
        if len(grid) != 3 or len(threadgroup) != 3:
            raise GeometryError(
                f"{self._name}: grid is {grid!r} and threadgroup is {threadgroup!r}; both have to have three extents"
            )
        pairs = zip(self._input_names, inputs, strict=True)
        bound = [each for name, value in pairs for each in self._parameters(name, self._input(name, value))]
        for_mlx = any(map(is_of_mlx, (*inputs, *output_dtypes)))
        kinds = []
        for name, dtype in zip(self._output_names, output_dtypes, strict=True):
            kinds.append(array_type(f"{self._name}: the type of output {name!r}", dtype))
            require_output(f"{self._name}: output {name!r}", kinds[-1], for_mlx=for_mlx)
        text = self._source([text for text, _ in bound], kinds, self._template(template or ()))
        if verbose:
            print(text)
        function = self._functions.get(text)
        if function is None:
            prelude = f'#line 1 "utilities.h"\n{_utilities()}\n'
            options = {"fast_math": self._fast_math, "language_version": LANGUAGE_VERSION}
            function = compile(prelude + text, **options).function(f"custom_kernel_{self._name}")  # type: ignore[arg-type]
            self._functions[text] = function
        outputs = [
            filled(tuple(shape), kind, 0 if init_value is None else init_value)
            for shape, kind in zip(output_shapes, kinds, strict=True)
        ]
        threads = tuple(grid)
        group = tuple(min(pair) for pair in zip(threadgroup, threads, strict=True))
        return _Call(function, [*(value for _, value in bound), *outputs], outputs, kinds, for_mlx, threads, group)

    def _input(self, name: str, value: Any) -> _Input:
        """``value`` with its memory: from its first element to its last one, if it may have gaps."""
        array, kind = as_input(f"{self._name}: input {name!r}", value)
        if self._ensure_row_contiguous or any(step < 0 or step % array.itemsize for step in array.strides):
            array = np.ascontiguousarray(array).reshape(array.shape)
        strides = tuple(step // array.itemsize for step in array.strides)
        memory = array
        if not array.flags.c_contiguous:
            last = sum((extent - 1) * stride for extent, stride in zip(array.shape, strides, strict=True))
            memory = np.lib.stride_tricks.as_strided(array, (last + 1,), (array.itemsize,))
        return _Input(memory, kind, array.shape, strides)

    def _parameters(self, name: str, given: _Input) -> list[tuple[str, Any]]:
        """The declaration of an input and of what its body mentions of it, each with the value."""
        found: list[tuple[str, Any]] = [(f"{given.declaration} {name}", given.memory)]
        if given.shape:
            counts = {
                "shape": ("const constant int*", np.array(given.shape, np.int32)),
                "strides": ("const constant int64_t*", np.array(given.strides, np.int64)),
                "ndim": ("const constant int&", len(given.shape)),
            }
            found += [
                (f"{kind} {name}_{what}", value)
                for what, (kind, value) in counts.items()
                if f"{name}_{what}" in self._body
            ]
        return found

    def _template(self, arguments: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
        """The declaration of each of the template's parameters, and its argument."""
        found = []
        for name, value in arguments:
            if isinstance(value, bool):
                found.append((f"bool {name}", "true" if value else "false"))
            elif isinstance(value, int):
                found.append((f"int {name}", str(value)))
            else:
                kind = array_type(f"{self._name}: template argument {name!r}", value)
                found.append((f"typename {name}", kind.metal))
        return found

    def _source(
        self, parameters: Sequence[str], outputs: Sequence[ArrayType], template: Sequence[tuple[str, str]]
    ) -> str:
        """The kernel whose inputs are declared as ``parameters``."""
        declared = [*parameters]
        for name, kind in zip(self._output_names, outputs, strict=True):
            declared.append(f"device {f'atomic<{kind.metal}>' if self._atomic_outputs else kind.metal}* {name}")
        listed = [f"  {text} [[buffer({index})]]" for index, text in enumerate(declared)]
        listed += [f"  {_POSITIONS[each]} {each} [[{each}]]" for each in self._positions]
        kernel = f"custom_kernel_{self._name}"
        text = f'#line 1 "{self._name} (header)"\n{self._header}\n' if self._header else ""
        text += f'#line 1 "{self._name} (signature)"\n'
        text += f"template <{', '.join(each for each, _ in template)}>\n" if template else ""
        text += f"[[kernel]] void {kernel}(\n" + ",\n".join(listed)
        text += f') {{\n#line 1 "{self._name}"\n{self._body}\n}}\n'
        if template:
            instance = f"{kernel}<{', '.join(argument for _, argument in template)}>"
            text += f'template [[host_name("{kernel}")]] [[kernel]] decltype({instance}) {instance};\n'
        return text


@lru_cache
def _utilities() -> str:
    return (Path(__file__).parent / "utilities.h").read_text(encoding="utf-8")
