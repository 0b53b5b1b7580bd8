"""Names that OpenCL defines: those that Metal lacks belong to the user there and must be renamed."""

from __future__ import annotations

import re

# Functions that both languages have, with the same meaning or a wrapper of ours: a kernel function cannot be called so.
LIBRARY_NAMES = frozenset(
    """
    abs acos acosh all any asin asinh atan atan2 atanh barrier ceil clamp clz copysign cos cosh cospi cross ctz distance
    dot exp exp10 exp2 fabs fdim floor fma fmax fmin fmod fract frexp hadd ilogb isequal isfinite isgreater
    isgreaterequal isinf isless islessequal islessgreater isnan isnormal isnotequal isordered isunordered ldexp length
    log log10 log2 mad24 max min mix modf mul24 nextafter normalize popcount pow powr rhadd rint rotate round rsqrt
    select sign signbit sin sincos sinh sinpi smoothstep sqrt step tan tanh tanpi trunc main
    """.split()
)

_RESERVED = frozenset(
    """
    abs_diff acospi add_sat asinpi async_work_group_copy async_work_group_strided_copy atan2pi atanpi barrier
    bit_reverse bitfield_extract_signed bitfield_extract_unsigned bitfield_insert bitselect
    capture_event_profiling_info cbrt create_user_event degrees dot_acc_sat enqueue_kernel enqueue_marker erf erfc
    expm1 fast_distance fast_length fast_normalize hypot is_valid_reserve_id lgamma lgamma_r log1p logb mad mad_hi
    mad_sat maxmag mem_fence minmag mul_hi nan ndrange_1D ndrange_2D ndrange_3D pown prefetch printf radians
    read_mem_fence release_event remainder remquo retain_event rootn set_user_event_status shuffle shuffle2 sub_sat
    tgamma upsample wait_group_events write_mem_fence reserve_read_pipe reserve_write_pipe commit_read_pipe
    commit_write_pipe read_pipe write_pipe to_global to_local to_private addrspace_cast vec_step work_group_barrier
    sub_group_barrier bitalign

    global local constant private_ generic pipe uniform read_only write_only read_write complex imaginary quad
    atomic_float atomic_double atomic_half atomic_long atomic_ulong atomic_flag atomic_intptr_t atomic_uintptr_t
    atomic_size_t atomic_ptrdiff_t
    sampler_t event_t queue_t clk_event_t reserve_id_t ndrange_t cl_mem_fence_flags

    M_E M_LOG2E M_LOG10E M_LN2 M_LN10 M_PI M_PI_2 M_PI_4 M_1_PI M_2_PI M_2_SQRTPI M_SQRT2 M_SQRT1_2 HUGE_VAL
    CLINKAGE ATOMIC_VAR_INIT ATOMIC_FLAG_INIT kernel_exec MAX_WORK_DIM H INSTRUMENTOR_RUNTIME_H
    """.split()
)

_PATTERN = re.compile(
    r"""(?:
    convert_\w+ | as_(?!type$)\w+ | sub_group_\w+ | work_group_\w+ | intel_\w+ | vload\w* | vstore\w* | atom_\w+
  | amd_\w+ | arm_\w+ | half_(?:cos|divide|exp|exp10|exp2|log|log10|log2|powr|recip|rsqrt|sin|sqrt|tan)
  | native_\w+ | read_image\w* | write_image\w*
  | get_(?:image_\w+|work_dim|global_\w+|local_\w+|num_\w+|group_id|sub_group_\w+)
  | get_(?:enqueued_\w+|max_sub_group_size|default_queue|fence)
  | atomic_(?:add|sub|inc|dec|min|max|and|or|xor|xchg|cmpxchg|init|load|store|exchange|flag\w*|work_item_fence)
  | atomic_(?:fetch_\w+|compare_exchange_\w+)(?<!_explicit)
  | clock_read_\w+ | dot_\w*packed\w* | image\d\w+_t | CLK_\w+
  | (?:char|uchar|short|ushort|int|uint|long|ulong|half|float)(?:8|16) | double\d+ | DBL_\w+
  )$""",
    re.VERBOSE,
)


class _Reserved(frozenset):
    """The set of reserved names, families included."""

    def __contains__(self, name: object) -> bool:
        return frozenset.__contains__(self, name) or (isinstance(name, str) and _PATTERN.match(name) is not None)


RESERVED_NAMES: frozenset[str] = _Reserved(_RESERVED)
