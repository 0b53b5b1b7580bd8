"""CUDA C++17 as NVRTC reads it, with the option that makes every function a device function.

CUDA pointers carry no address space. The vectors are ours, made of what the program uses: its swizzles, and the
functions it calls on vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mpsgrad.msl.backend import Backend, floating_literal, integer_literal, swizzles
from mpsgrad.msl.cuda_names import LIBRARY_NAMES, RESERVED_NAMES
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX, SIZES_SUFFIX
from mpsgrad.msl.program import Kernel
from mpsgrad.msl.signature import Argument, Launch
from mpsgrad.msl.threadgroup_memory import DECLARATION, MEMORY

LARGEST_BLOCK = 1024

_AXES = "xyz"

# Blocks are rows of threads, so that simdgroups are warps whatever a threadgroup's extents are.
_POSITIONS = {
    "thread_position_in_grid": "(blockIdx.{0} * blockDim.{0} + threadIdx.{0})",
    "thread_position_in_threadgroup": "threadIdx.{0}",
    "threadgroup_position_in_grid": "blockIdx.{0}",
    "threads_per_grid": "(gridDim.{0} * blockDim.{0})",
    "threads_per_threadgroup": "blockDim.{0}",
    "dispatch_threads_per_threadgroup": "blockDim.{0}",
    "threadgroups_per_grid": "gridDim.{0}",
    "thread_index_in_threadgroup": "threadIdx.x",
    "thread_index_in_simdgroup": "(threadIdx.x & 31)",
    "thread_index_in_quadgroup": "(threadIdx.x & 3)",
    "simdgroup_index_in_threadgroup": "(threadIdx.x >> 5)",
    "quadgroup_index_in_threadgroup": "(threadIdx.x >> 2)",
    "simdgroups_per_threadgroup": "((blockDim.x + 31) / 32)",
    "dispatch_simdgroups_per_threadgroup": "((blockDim.x + 31) / 32)",
    "quadgroups_per_threadgroup": "((blockDim.x + 3) / 4)",
    "dispatch_quadgroups_per_threadgroup": "((blockDim.x + 3) / 4)",
    "threads_per_simdgroup": "32",
    "thread_execution_width": "32",
}

# A launch of any grid: all blocks have one size in CUDA, and their grid is limited along y and z, so a driver launches
# one row of blocks of as many threads as a whole threadgroup has. A block works out which threadgroup it is and how
# many threads that has, and the last threads of its row, which are too many, leave.
_LAUNCH_STRUCT = """
struct launch_mtl_t { uint grid[3], threadgroup[3], threadgroups[3]; };
struct place_mtl_t { uint group[3], extents[3], local[3], count; };
inline place_mtl_t place_of_mtl(const launch_mtl_t &launch) {
  place_mtl_t place;
  place.group[0] = blockIdx.x;
  place.group[1] = place.group[2] = 0;
  if (launch.threadgroups[1] > 1 || launch.threadgroups[2] > 1) {
    uint row = blockIdx.x / launch.threadgroups[0];
    place.group[0] = blockIdx.x % launch.threadgroups[0];
    place.group[1] = row % launch.threadgroups[1];
    place.group[2] = row / launch.threadgroups[1];
  }
  for (int a = 0; a < 3; a++) {
    uint rest = launch.grid[a] - place.group[a] * launch.threadgroup[a];
    place.extents[a] = rest < launch.threadgroup[a] ? rest : launch.threadgroup[a];
  }
  place.count = place.extents[0] * place.extents[1] * place.extents[2];
  place.local[0] = threadIdx.x;
  place.local[1] = place.local[2] = 0;
  if (place.extents[1] > 1 || place.extents[2] > 1) {
    uint row = threadIdx.x / place.extents[0];
    place.local[0] = threadIdx.x % place.extents[0];
    place.local[1] = row % place.extents[1];
    place.local[2] = row / place.extents[1];
  }
  return place;
}
"""
_WHOLE_GROUP = "(launch_mtl.threadgroup[0] * launch_mtl.threadgroup[1] * launch_mtl.threadgroup[2]"
_LAUNCH_POSITIONS = {
    "thread_position_in_grid": "(place_mtl.group[{0}] * launch_mtl.threadgroup[{0}] + place_mtl.local[{0}])",
    "thread_position_in_threadgroup": "place_mtl.local[{0}]",
    "threadgroup_position_in_grid": "place_mtl.group[{0}]",
    "threads_per_grid": "launch_mtl.grid[{0}]",
    "threads_per_threadgroup": "place_mtl.extents[{0}]",
    "dispatch_threads_per_threadgroup": "launch_mtl.threadgroup[{0}]",
    "threadgroups_per_grid": "launch_mtl.threadgroups[{0}]",
    "simdgroups_per_threadgroup": "((place_mtl.count + 31) / 32)",
    "dispatch_simdgroups_per_threadgroup": f"({_WHOLE_GROUP} + 31) / 32)",
    "quadgroups_per_threadgroup": "((place_mtl.count + 3) / 4)",
    "dispatch_quadgroups_per_threadgroup": f"({_WHOLE_GROUP} + 3) / 4)",
}

_VECTOR_FUNCTIONS = {
    "1": """acos acosh asin asinh atan atanh ceil cos cosh cospi exp exp2 exp10 fabs floor fract log log2 log10 rint
        round rsqrt precise::rsqrt precise::sqrt saturate sign sin sinh sinpi sqrt tan tanh tanpi trunc abs
        clz ctz fast::exp popcount reverse_bits""",
    "2": """atan2 copysign divide precise::divide fast::divide fdim fmod nextafter pow powr step min max fmin fmax mulhi
        rotate addsat subsat hadd rhadd mul24""",
    "3": "clamp fma mix smoothstep min3 max3 median3 fmin3 fmax3 fmedian3 madhi madsat mad24",
    "TEST": "isnan isinf isfinite isnormal signbit",
    "TEST_2": "isordered isunordered",
    "AND_RESULT": "modf sincos",
    "AND_EXPONENT": "frexp",
    "OF_EXPONENT": "ldexp",
    "EXPONENT": "ilogb",
    "BARE": "absdiff",
    "EXTRACT": "extract_bits",
    "INSERT": "insert_bits",
}
_FUNCTION_KINDS = {name: kind for kind, names in _VECTOR_FUNCTIONS.items() for name in names.split()}
_GEOMETRIC = frozenset(
    "dot length length_squared distance distance_squared normalize cross reflect refract faceforward select".split()
)


def _vector_function(name: str) -> str:
    """The macro that declares ``name`` for vectors, if it has a vector form."""
    if name in _FUNCTION_KINDS:
        return f"FUNCTION_{_FUNCTION_KINDS[name]}_MTL({name.replace('::', '_')}{RENAMED_SUFFIX})"
    return f"VECTOR_{name}_MTL" if name in _GEOMETRIC else ""


def is_passed_by_value(argument: Argument, launch: Launch) -> bool:
    """Whether an entry point takes the value of a ``constant T&`` instead of its address.

    Launches keep it in constant memory, which is read without waiting. Where users dispatch, code may rely on what lies
    behind the referenced value.
    """
    is_value = argument.address_space == "constant" and argument.is_reference and not argument.type.endswith("]")
    return launch == "whole" and is_value


OVERLAPPING_CAPABILITY = (9, 0)
"""The oldest GPUs whose launches may overlap: entry points of launch "whole" begin by waiting for earlier work."""


class CUDABackend(Backend):
    target = "cuda"
    address_spaces = {"device": "", "constant": "const", "threadgroup": "", "thread": ""}
    reserved = RESERVED_NAMES
    library_names = LIBRARY_NAMES
    threadgroup_variable = "__shared__"
    has_native_constructors = True
    has_inner_threadgroup_variables = True
    finds_functions_by_arguments = True
    has_wrapping_shifts = False
    has_increments_of_bools = False
    has_case_ranges = False
    has_statement_expressions = False
    has_bit_fields = True
    regroups_sums = False
    unrolls_too_much = False
    guards_flow = False
    waits_for_returned = False
    class_scalars = frozenset({"half", "bfloat"})
    most_threadgroup_bytes = 49152
    definitions = {"__MPSGRAD_CUDA__": "1"}

    def opening(self, library_names: Collection[str], members: Collection[str], launch: Launch) -> str:
        lines = []
        if launch != "whole":
            lines.append("#define ANY_GRID_MTL\n")
            if "thread_elements" in members:
                lines.append("#define ELEMENTS_KEPT_MTL\n")
        for width in (2, 3, 4):
            lines.append(f"#define SWIZZLES_{width}_MTL {swizzles(members, width, 'vec_mtl<T, {}>', 'T')}\n")
        functions = [_vector_function(name) for name in sorted(library_names)]
        lines.append(f"#define VECTOR_FUNCTIONS_MTL {' '.join(text for text in functions if text)}\n")
        return "".join(lines)

    def vector_type(self, name: str) -> str:
        return f"{name}{RENAMED_SUFFIX}"

    def pointer(self, argument: Argument) -> str:
        return "*" if argument.is_writable else "* __restrict__"

    def parameter(self, argument: Argument, type_name: str, name: str, launch: Launch) -> tuple[str, str] | None:
        if argument.address_space == "threadgroup":
            # The host says where in the block's one piece of threadgroup memory it begins.
            begin = f"({type_name} *)({MEMORY} + {name}_offset{RENAMED_SUFFIX})"
            declared = f"&{name} = *{begin};" if argument.is_reference else f"*{name} = {begin};"
            return f"uint {name}_offset{RENAMED_SUFFIX}", f"{DECLARATION} {type_name} {declared}"
        if is_passed_by_value(argument, launch):
            value = f"{name}_value{RENAMED_SUFFIX}"
            return f"const __grid_constant__ {type_name} {value}", f"const {type_name} &{name} = {value};"
        return None

    def kernel_head(
        self,
        kernel: Kernel,
        entry_point: str,
        threadgroup_size: int | None,
        is_exact: bool,
        uses_simdgroups: bool,
        has_long_vectors: bool,
        is_wide: bool,
    ) -> str:
        # An attribute that Metal does not know: only what CUDA reads has it.
        cluster = kernel.attribute("threadgroups_of_cluster")
        of_cluster = f" CLUSTER_MTL({''.join(token.text for token in cluster.arguments)})" if cluster else ""
        bounds = f"__launch_bounds__({threadgroup_size or LARGEST_BLOCK})"
        return f'extern "C" __global__ void{of_cluster} {bounds} {entry_point}'

    def launch_parameter(self, launch: Launch) -> tuple[str, str]:
        if launch == "whole":
            return "", ""
        return _LAUNCH_STRUCT, "const __grid_constant__ launch_mtl_t launch_mtl"

    def launch_prologue(self, launch: Launch) -> str:
        if launch == "whole":
            return f"begin_launch{RENAMED_SUFFIX}();"
        return "const place_mtl_t place_mtl = place_of_mtl(launch_mtl); if (threadIdx.x >= place_mtl.count) return;"

    def sizes(self, entry_point: str, type_names: Sequence[str]) -> str:
        stores = "".join(f" sizes_mtl[{index}] = sizeof({name});" for index, name in enumerate(type_names))
        return f' extern "C" __global__ void {entry_point}{SIZES_SUFFIX}(uint *sizes_mtl) {{{stores} }}'

    def simdgroup_prologue(self, names: Collection[str]) -> str:
        return ""

    def position(self, name: str, dimensions: int, flat: bool, launch: Launch) -> Sequence[str]:
        if launch != "whole" and name in _LAUNCH_POSITIONS:
            return [_LAUNCH_POSITIONS[name].format(axis) for axis in range(dimensions)]
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
            return integer_literal(text)
        digits, suffix = parts
        if suffix == "bf":
            return f"bfloat({digits}f)"
        return f"half({digits}f)" if suffix == "h" else digits + "f"
