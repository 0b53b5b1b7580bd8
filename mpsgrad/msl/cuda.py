"""CUDA C++ as NVRTC reads it."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.backend import Backend, floating_literal
from mpsgrad.msl.cuda_names import LIBRARY_NAMES, RESERVED_NAMES
from mpsgrad.msl.declarations import Kernel

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


class CUDABackend(Backend):
    target = "cuda"
    address_spaces = {"device": "", "constant": "const", "threadgroup": "", "thread": ""}
    reserved = RESERVED_NAMES
    library_names = LIBRARY_NAMES
    opening = ""

    def kernel_head(self, kernel: Kernel, entry_point: str, threadgroup_size: int | None, uses_simdgroups: bool) -> str:
        bounds = f"__launch_bounds__({threadgroup_size}) " if threadgroup_size is not None else ""
        return f'extern "C" __global__ void {bounds}{entry_point}'

    def position(self, name: str, dimensions: int, flat: bool) -> Sequence[str]:
        return [_POSITIONS[name].format(axis) for axis in _AXES[:dimensions]]

    def vector(self, type_name: str, components: Sequence[str]) -> str:
        return f"{type_name}_mtl({', '.join(components)})"

    def vector_cast(self, type_name: str) -> str:
        return type_name

    def vector_maker(self, type_name: str, packed: bool) -> str:
        return ""

    def number(self, text: str) -> str:
        parts = floating_literal(text)
        if parts is None:
            return text
        digits, suffix = parts
        return f"half({digits}f)" if suffix == "h" else digits + "f"
