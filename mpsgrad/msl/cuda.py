"""CUDA C++ as NVRTC reads it, with the options in ``COMPILER_OPTIONS`` beside the architecture.

CUDA pointers carry no address space, and every function is a device function by ``-default-device``. The vectors are
ours, made of what the program uses: its swizzles, and the functions it calls on vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mpsgrad.msl.backend import Backend, floating_literal, swizzles
from mpsgrad.msl.cuda_names import LIBRARY_NAMES, RESERVED_NAMES
from mpsgrad.msl.declarations import Kernel
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.signature import Argument, Launch

COMPILER_OPTIONS = ("-default-device", "--std=c++17")

_AXES = "xyz"
_LINEAR_INDEX = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))"
_GROUP_SIZE = "(blockDim.x * blockDim.y * blockDim.z)"
_SIMDGROUPS = f"(({_GROUP_SIZE} + 31) / 32)"

_POSITIONS = {
    "thread_position_in_grid": "(blockIdx.{0} * blockDim.{0} + threadIdx.{0})",
    "thread_position_in_threadgroup": "threadIdx.{0}",
    "threadgroup_position_in_grid": "blockIdx.{0}",
    "threads_per_grid": "(gridDim.{0} * blockDim.{0})",
    "threads_per_threadgroup": "blockDim.{0}",
    "dispatch_threads_per_threadgroup": "blockDim.{0}",
    "threadgroups_per_grid": "gridDim.{0}",
    "thread_index_in_threadgroup": _LINEAR_INDEX,
    "thread_index_in_simdgroup": f"({_LINEAR_INDEX} & 31)",
    "thread_index_in_quadgroup": f"({_LINEAR_INDEX} & 3)",
    "simdgroup_index_in_threadgroup": f"({_LINEAR_INDEX} >> 5)",
    "quadgroup_index_in_threadgroup": f"({_LINEAR_INDEX} >> 2)",
    "simdgroups_per_threadgroup": _SIMDGROUPS,
    "dispatch_simdgroups_per_threadgroup": _SIMDGROUPS,
    "quadgroups_per_threadgroup": f"(({_GROUP_SIZE} + 3) / 4)",
    "dispatch_quadgroups_per_threadgroup": f"(({_GROUP_SIZE} + 3) / 4)",
    "threads_per_simdgroup": "32",
    "thread_execution_width": "32",
}


_VECTOR_FUNCTIONS = {
    "1": """acos acosh asin asinh atan atanh ceil cos cosh cospi exp exp2 exp10 fabs floor fract log log2 log10 rint
        round rsqrt saturate sign sin sinh sinpi sqrt tan tanh tanpi trunc abs clz ctz popcount reverse_bits""",
    "2": """atan2 copysign divide fdim fmod pow powr step min max fmin fmax mulhi rotate absdiff addsat subsat hadd
        rhadd mul24""",
    "3": "clamp extract_bits fma mix smoothstep min3 max3 median3 fmin3 fmax3 fmedian3 madhi mad24",
    "TEST": "isnan isinf isfinite isnormal signbit",
    "TEST_2": "isordered isunordered",
}
_FUNCTION_KINDS = {name: kind for kind, names in _VECTOR_FUNCTIONS.items() for name in names.split()}
_GEOMETRIC = frozenset(
    "dot length length_squared distance distance_squared normalize cross reflect refract faceforward select".split()
)


def _vector_function(name: str) -> str:
    """The macro that declares ``name`` for vectors, if it has a vector form."""
    if name in _FUNCTION_KINDS:
        return f"FUNCTION_{_FUNCTION_KINDS[name]}_MTL({name}{RENAMED_SUFFIX})"
    return f"VECTOR_{name}_MTL" if name in _GEOMETRIC else ""


class CUDABackend(Backend):
    target = "cuda"
    address_spaces = {"device": "", "constant": "const", "threadgroup": "", "thread": ""}
    reserved = RESERVED_NAMES
    library_names = LIBRARY_NAMES
    threadgroup_variable = "__shared__"
    has_native_constructors = True
    has_inner_threadgroup_variables = True

    def opening(self, library_names: Collection[str], members: Collection[str]) -> str:
        lines = []
        for width in (2, 3, 4):
            lines.append(f"#define SWIZZLES_{width}_MTL {swizzles(members, width, 'vec_mtl<T, {}>', 'T')}\n")
        functions = [_vector_function(name) for name in sorted(library_names)]
        lines.append(f"#define VECTOR_FUNCTIONS_MTL {' '.join(text for text in functions if text)}\n")
        return "".join(lines)

    def vector_type(self, name: str) -> str:
        return f"{name}{RENAMED_SUFFIX}"

    def pointer(self, argument: Argument) -> str:
        return "*" if argument.is_writable else "* __restrict__"

    def kernel_head(self, kernel: Kernel, entry_point: str, threadgroup_size: int | None, uses_simdgroups: bool) -> str:
        bounds = f"__launch_bounds__({threadgroup_size}) " if threadgroup_size is not None else ""
        return f'extern "C" __global__ void {bounds}{entry_point}'

    def launch_parameter(self, launch: Launch) -> tuple[str, str]:
        if launch != "whole":
            raise NotImplementedError(f"CUDA: launch is {launch!r} but only 'whole' threadgroups are translated")
        return "", ""

    def position(self, name: str, dimensions: int, flat: bool, launch: Launch) -> Sequence[str]:
        return [_POSITIONS[name].format(axis) for axis in _AXES[:dimensions]]

    def vector(self, type_name: str, components: Sequence[str]) -> str:
        return f"{self.vector_type(type_name)}({', '.join(components)})"

    def vector_cast(self, type_name: str) -> str:
        return self.vector_type(type_name)

    def vector_maker(self, type_name: str, packed: bool) -> str:
        return ""

    def number(self, text: str) -> str:
        parts = floating_literal(text)
        if parts is None:
            return text
        digits, suffix = parts
        return f"half({digits}f)" if suffix == "h" else digits + "f"
