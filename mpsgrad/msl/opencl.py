"""C++ for OpenCL 2021 as Intel's CPU runtime reads it.

The kernel function is rewritten in place, because threadgroup variables may stand only in a kernel function's own
scope. ``constant`` becomes ``const __global``: the address space ``__constant`` does not convert to the generic one, so
objects in it could be neither copied nor passed on. References in a signature become ``__restrict`` pointers, which
tells the compiler again that nothing else writes them. Pointers become numbers where ``is_passed_as_number`` says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mpsgrad.msl.backend import Backend, floating_literal, integer_literal, swizzles
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX, SIZES_SUFFIX
from mpsgrad.msl.opencl_names import LIBRARY_NAMES, RESERVED_NAMES
from mpsgrad.msl.program import Kernel
from mpsgrad.msl.signature import WIDE_ROWS, Argument, Launch, is_passed_as_number

SIMD_WIDTH = 32

# What Intel's clang takes for errors and Apple's does not: flag++, 3 > 2 > 1; and narrowing, which the lint looks at.
_NO_ERRORS = ("c++11-narrowing", "parentheses", "increment-bool")

# The vectorizer turns an access into a gather as soon as it cannot prove that neighbouring lanes touch neighbouring
# elements, so each index says how large it can be, and what is equal in a whole simdgroup says so by a broadcast. The
# bounds are no powers of two: below one, "base + lane" would become "base | lane", which it does not see through.
_POSITIONS = {
    "thread_position_in_grid": "position_mtl(get_global_id({}))",
    "thread_position_in_threadgroup": "local_position_mtl(get_local_id({}))",
    "threadgroup_position_in_grid": "position_mtl(get_group_id({}))",
    "threads_per_grid": "position_mtl(get_global_size({}))",
    "threads_per_threadgroup": "local_position_mtl(get_local_size({}))",
    "dispatch_threads_per_threadgroup": "local_position_mtl(get_enqueued_local_size({}))",
    "threadgroups_per_grid": "position_mtl(get_num_groups({}))",
    "thread_index_in_threadgroup": "local_position_mtl(get_local_linear_id())",
    "thread_index_in_simdgroup": "lane_mtl(get_sub_group_local_id())",
    "thread_index_in_quadgroup": "(lane_mtl(get_sub_group_local_id()) & 3)",
    "simdgroup_index_in_threadgroup": "sub_group_broadcast(get_sub_group_id(), 0)",
    "quadgroup_index_in_threadgroup": "(get_sub_group_id() * 8 + get_sub_group_local_id() / 4)",
    "simdgroups_per_threadgroup": "get_num_sub_groups()",
    "dispatch_simdgroups_per_threadgroup": "get_enqueued_num_sub_groups()",
    "quadgroups_per_threadgroup": "(get_num_sub_groups() * 8)",
    "dispatch_quadgroups_per_threadgroup": "(get_enqueued_num_sub_groups() * 8)",
    "threads_per_simdgroup": str(SIMD_WIDTH),
    "thread_execution_width": str(SIMD_WIDTH),
}

# What is one more in the next thread of those that run abreast.
_NEIGHBOURS = {
    "thread_position_in_grid": "position_mtl(get_global_id(0))",
    "thread_position_in_threadgroup": "local_position_mtl(get_local_id(0))",
    "thread_index_in_threadgroup": "local_position_mtl(get_local_id(0))",
    "thread_index_in_simdgroup": "lane_mtl(get_sub_group_local_id())",
}

# What holds where the threadgroup is known to be a row, and is cheaper than the general form.
_FLAT_POSITIONS = {
    "thread_index_in_threadgroup": "local_position_mtl(get_local_id(0))",
    "simdgroup_index_in_threadgroup": f"sub_group_broadcast((uint)get_local_id(0) / {SIMD_WIDTH}, 0)",
    "quadgroup_index_in_threadgroup": "((uint)get_local_id(0) / 4)",
    "simdgroups_per_threadgroup": f"(((uint)get_local_size(0) + {SIMD_WIDTH - 1}) / {SIMD_WIDTH})",
}

# A launch of any grid: OpenCL on CPUs runs only whole threadgroups of one size, so a driver cuts the grid into parts
# with threadgroups of ``extents``, gives each as its offset the position of its first thread, and says here what the
# functions of OpenCL cannot know of the rest.
_LAUNCH_STRUCT = (
    "typedef struct { uint grid[3], threadgroup[3], threadgroups[3], first_threadgroup[3], extents[3]; }"
    " launch_mtl_t;\n"
    "inline uint box_position_mtl(launch_mtl_t launch, int axis) {\n"
    "    uint index = get_local_id(0);\n"
    "    uint row = index / launch.extents[0];\n"
    "    if (axis == 0) return index - row * launch.extents[0];\n"
    "    return axis == 1 ? row % launch.extents[1] : row / launch.extents[1];\n"
    "}\n"
)
_LAUNCH_POSITIONS = {
    "threadgroup_position_in_grid": "position_mtl(get_group_id({0}) + launch_mtl.first_threadgroup[{0}])",
    "threads_per_grid": "launch_mtl.grid[{}]",
    "dispatch_threads_per_threadgroup": "launch_mtl.threadgroup[{}]",
    "threadgroups_per_grid": "launch_mtl.threadgroups[{}]",
    "dispatch_simdgroups_per_threadgroup": (
        f"((launch_mtl.threadgroup[0] * launch_mtl.threadgroup[1] * launch_mtl.threadgroup[2] + {SIMD_WIDTH - 1})"
        f" / {SIMD_WIDTH})"
    ),
    "dispatch_quadgroups_per_threadgroup": (
        "((launch_mtl.threadgroup[0] * launch_mtl.threadgroup[1] * launch_mtl.threadgroup[2] + 3) / 4)"
    ),
    "quadgroups_per_threadgroup": (
        "((launch_mtl.extents[0] * launch_mtl.extents[1] * launch_mtl.extents[2] + 3) / 4)"
    ),
}

# OpenCL starts a new subgroup with each row of a threadgroup, Metal only after 32 threads. So a threadgroup of several
# rows that has simdgroups runs as one row, and each thread finds out where it would have been.
_BOX_POSITIONS = {
    "thread_position_in_threadgroup": "local_position_mtl(box_position_mtl(launch_mtl, {}))",
    "thread_position_in_grid": (
        "position_mtl((get_group_id({0}) + launch_mtl.first_threadgroup[{0}]) * launch_mtl.threadgroup[{0}]"
        " + box_position_mtl(launch_mtl, {0}))"
    ),
    "threads_per_threadgroup": "local_position_mtl(launch_mtl.extents[{}])",
}


# The compiler drops the work items that a condition on the position leaves without an effect, though others read their
# lanes by a shuffle. An effect in each work item prevents that. It knows of these functions that they need every lane.
# It does not know that the first lane's election and broadcasts, products and their scans are functions of subgroups,
# and would run a kernel without other ones thread by thread in threadgroups that are no multiple of 32. Asking for the
# size of a subgroup tells it.
_KEPT_TOGETHER = frozenset(
    {"simd_sum", "simd_max", "simd_min", "simd_broadcast", "simd_all", "simd_any", "simd_ballot", "simdgroup_barrier"}
)

_IN_PLACE = [
    "template <typename T> constexpr inline T in_place_mtl(T divisor) { return divisor; }\n",
    "#define IN_PLACE_MTL(type, element) \\\n",
    "  constexpr inline type in_place_mtl(type divisor) { return divisor ^ (element)never_mtl(); }\n",
    *(
        "".join(f"IN_PLACE_MTL({element}{width}, {element}) " for width in ("", "2", "3", "4")) + "\n"
        for element in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
    ),
]
"""Functions that give a divisor of which a compiler knows nothing."""
_OF_THREAD = [
    "template <typename T> constexpr inline T of_thread_mtl(T value) { return value; }\n",
    "#define OF_THREAD_MTL(type, bits) constexpr inline type of_thread_mtl(type value) { \\\n",
    "  if (__builtin_is_constant_evaluated()) return value; \\\n",
    "  return as_##type((bits)(as_##bits(value) | (bits)(never_mtl() ? get_global_id(0) : 0))); }\n",
    *(
        f"OF_THREAD_MTL({element}, {'uint' if element == 'float' else 'ushort' if element == 'half' else element})\n"
        for element in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float")
    ),
]
"""Functions that give a number of which a compiler takes it that each thread may have another."""

# What the names of swizzles begin with, the type of the vectors, and that of their elements.
_CLASS_VECTORS = (
    ("", "vec_mtl<T, {}>", "T"),
    ("BOOL_", "bool_vector_mtl<{}>", "bool"),
    ("BFLOAT_", "bfloat_vector_mtl<{}>", "bfloat"),
)


class OpenCLBackend(Backend):
    target = "opencl"
    address_spaces = {
        "device": "__global",
        "constant": "const __global",
        "threadgroup": "__local",
        "thread": "__private",
    }
    reserved = RESERVED_NAMES
    library_names = LIBRARY_NAMES
    threadgroup_variable = "__local"
    has_native_constructors = False
    has_inner_threadgroup_variables = False
    finds_functions_by_arguments = False
    has_wrapping_shifts = True
    has_increments_of_bools = True
    has_case_ranges = True
    has_statement_expressions = True
    has_bit_fields = False
    regroups_sums = True
    unrolls_too_much = True
    guards_flow = True
    neighbours = _NEIGHBOURS
    knows_wide_rows = True
    last_position = "(get_global_offset({0}) + (get_group_id({0}) + 1) * get_local_size({0}) - 1)"
    waits_for_returned = True
    class_scalars = frozenset({"bfloat"})
    is_compiled_in_parts = True

    def opening(self, library_names: Collection[str], members: Collection[str], launch: Launch) -> str:
        lines = [f'#pragma clang diagnostic ignored "-W{name}"\n' for name in _NO_ERRORS]
        if launch != "whole":
            lines.append("#define TOGETHER_MTL\n")
            lines.append("constexpr inline int zero_mtl() {\n")
            lines.append("  return __builtin_is_constant_evaluated() ? 0 : get_global_id(0) >> 32;\n}\n")
            lines.append("constexpr inline bool never_mtl(uint dimension = 0) {\n")
            lines.append("  return !__builtin_is_constant_evaluated() && get_global_size(dimension) == 0;\n}\n")
            lines.append("constexpr inline bool apart_mtl(bool condition) {\n")
            lines.append("  return condition != (!__builtin_is_constant_evaluated() && get_work_dim() == 0);\n}\n")
            lines += _IN_PLACE
            lines += _OF_THREAD
        for width in (2, 3, 4):
            for name, vector, element in _CLASS_VECTORS:
                if element == "bfloat" and "bfloat" not in library_names:
                    continue
                found = swizzles(members, width, vector, element)
                lines.append(f"#define {name}SWIZZLES_{width}_MTL {found}\n")
        return "".join(lines)

    def vector_type(self, name: str) -> str:
        return name

    def pointer(self, argument: Argument) -> str:
        return "* __restrict" if argument.is_reference else "*"

    def parameter(self, argument: Argument, type_name: str, name: str, launch: Launch) -> tuple[str, str] | None:
        if not is_passed_as_number(argument, launch):
            return None
        number = f"{name}_number{RENAMED_SUFFIX}"
        pointer = f"{'' if argument.is_writable else 'const '}__global {type_name} *"
        return f"ulong {number}", f"{pointer}{name} = ({pointer}){number};"

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
        head = ""
        if uses_simdgroups:
            head += f"__attribute__((intel_reqd_sub_group_size({SIMD_WIDTH}))) "
        if is_exact:
            head += f"__attribute__((reqd_work_group_size({threadgroup_size}, 1, 1))) "
        if not uses_simdgroups and (has_long_vectors or (is_exact and threadgroup_size == 1)):
            # Intel's compiler would also make a form for several threads at once. With one thread it is never run, and
            # where a thread has whole registers it gathers and scatters their elements.
            head += "__attribute__((intel_vec_len_hint(1))) "
        elif is_wide:
            head += f"__attribute__((intel_vec_len_hint({WIDE_ROWS}))) "
        return f"{head}__kernel void {entry_point}"

    def launch_parameter(self, launch: Launch) -> tuple[str, str]:
        return ("", "") if launch == "whole" else (_LAUNCH_STRUCT, "launch_mtl_t launch_mtl")

    def launch_prologue(self, launch: Launch) -> str:
        return ""

    def sizes(self, entry_point: str, type_names: Sequence[str]) -> str:
        stores = "".join(f" sizes_mtl[{index}] = sizeof({name});" for index, name in enumerate(type_names))
        return f" __kernel void {entry_point}{SIZES_SUFFIX}(__global uint* sizes_mtl) {{{stores} }}"

    def simdgroup_prologue(self, names: Collection[str]) -> str:
        return "volatile int kept_mtl = get_sub_group_size();" if set(names) - _KEPT_TOGETHER else ""

    def position(self, name: str, dimensions: int, flat: bool, launch: Launch) -> Sequence[str]:
        if flat and name in _FLAT_POSITIONS:
            return [_FLAT_POSITIONS[name]]
        expressions = _POSITIONS
        if launch != "whole":
            expressions = _POSITIONS | _LAUNCH_POSITIONS
        if launch == "box":
            expressions = expressions | _BOX_POSITIONS
        return [expressions[name].format(axis) for axis in range(dimensions)]

    def vector(self, type_name: str, components: Sequence[str]) -> str:
        return f"({type_name})({', '.join(components)})"

    def vector_cast(self, type_name: str) -> str:
        return type_name if type_name.startswith(("bool", "bfloat")) else f"({type_name})"

    def vector_maker(self, type_name: str, packed: bool) -> str:
        # Some initialise constants, which has to be done when the program is compiled: there are no constructors.
        maker = f"constexpr {type_name} make_{type_name}_mtl"
        element, width = type_name[:-1], type_name[-1]
        if element in ("bool", "bfloat"):
            return f"template <typename E> {maker}(E x) {{ return {type_name}(x); }}\n"
        text = f"template <typename E> {maker}(E x) {{ return spread_mtl<{type_name}, {element}>(x, 0); }}\n"
        convert = f"{{ return converted_vector_mtl<{type_name}>(x); }}"
        text += f"template <typename E> {maker}(vec_mtl<E, {width}> x) {convert}\n"
        convert = f"{{ return x.template convert<{element}>(); }}"
        text += f"template <typename E, int N> {maker}(class_vector_mtl<E, N> x) {convert}\n"
        if packed:
            unpack = f"{{ return make_{type_name}_mtl(unpack_mtl(x)); }}"
            text += f"template <typename E, typename V> {maker}(packed_vector_mtl<E, {width}, V> x) {unpack}\n"
        view = f"{{ return make_{type_name}_mtl(x.operator V()); }}"
        text += f"template <typename V, typename E, int M, int... I> {maker}(swizzle_mtl<V, E, M, I...> x) {view}\n"
        return text

    def number(self, text: str) -> str:
        parts = floating_literal(text)
        if parts is None:
            return integer_literal(text)
        if parts[1] == "bf":
            return f"bfloat({parts[0]}f)"
        return parts[0] + (parts[1] or "f")
