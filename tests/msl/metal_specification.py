"""The names of metal_stdlib that a compute kernel can use at Metal 2.3, by the sections of Apple's specification."""

from __future__ import annotations

_VECTORS = "bool char uchar short ushort int uint long ulong half float"
_PACKED = "char uchar short ushort int uint long ulong half float"
_MATHEMATICAL = "E LOG2E LOG10E LN2 LN10 PI PI_2 PI_4 1_PI 2_PI 2_SQRTPI SQRT2 SQRT1_2"

SPECIFICATION: dict[str, frozenset[str]] = {
    "2.1 to 2.4 types": frozenset(
        f"""
        {_VECTORS} size_t ptrdiff_t int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t
        {" ".join(f"{name}{n}" for name in _VECTORS.split() for n in (2, 3, 4))} vec
        {" ".join(f"packed_{name}{n}" for name in _PACKED.split() for n in (2, 3, 4))}
        {" ".join(f"{t}{c}x{r}" for t in ("half", "float") for c in (2, 3, 4) for r in (2, 3, 4))}
        simdgroup_matrix simdgroup_half8x8 simdgroup_float8x8 atomic_int atomic_uint array as_type numeric_limits
        """.split()
    ),
    "6.2 common": frozenset("clamp mix saturate sign smoothstep step".split()),
    "6.3 integer": frozenset(
        """
        abs absdiff addsat clamp clz ctz extract_bits hadd insert_bits mad24 madhi madsat max max3 median3 min min3
        mul24 mulhi popcount reverse_bits rhadd rotate subsat
        """.split()
    ),
    "6.4 relational": frozenset(
        "all any isfinite isinf isnan isnormal isordered isunordered not select signbit".split()
    ),
    "6.5 math": frozenset(
        f"""
        acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh cospi divide exp exp2 exp10 fabs abs fdim floor
        fma fmax max fmax3 max3 fmedian3 median3 fmin min fmin3 min3 fmod fract frexp ilogb ldexp log log2 log10 modf
        nextafter pow powr rint round rsqrt sin sincos sinh sinpi sqrt tan tanh tanpi trunc
        MAXFLOAT HUGE_VALF INFINITY NAN MAXHALF HUGE_VALH
        {" ".join(f"M_{name}_{letter}" for name in _MATHEMATICAL.split() for letter in "FH")}
        """.split()
    ),
    "6.6 matrix": frozenset("determinant transpose".split()),
    "6.7 simdgroup matrix": frozenset(
        """
        make_filled_simdgroup_matrix simdgroup_load simdgroup_store simdgroup_multiply simdgroup_multiply_accumulate
        """.split()
    ),
    "6.8 geometric": frozenset(
        "cross distance distance_squared dot faceforward length length_squared normalize reflect refract".split()
    ),
    "6.9 synchronization": frozenset("threadgroup_barrier simdgroup_barrier mem_flags".split()),
    "6.9 simdgroup": frozenset(
        """
        simd_active_threads_mask simd_all simd_and simd_any simd_ballot simd_broadcast simd_broadcast_first
        simd_is_first simd_is_helper_thread simd_max simd_min simd_or simd_prefix_exclusive_product
        simd_prefix_exclusive_sum simd_prefix_inclusive_product simd_prefix_inclusive_sum simd_product simd_shuffle
        simd_shuffle_down simd_shuffle_rotate_down simd_shuffle_rotate_up simd_shuffle_up simd_shuffle_xor
        simd_shuffle_and_fill_down
        simd_shuffle_and_fill_up simd_sum simd_vote simd_xor
        """.split()
    ),
    "6.9 quadgroup": frozenset(
        """
        quad_active_threads_mask quad_all quad_and quad_any quad_ballot quad_broadcast quad_broadcast_first
        quad_is_first quad_is_helper_thread quad_max quad_min quad_or quad_prefix_exclusive_product
        quad_prefix_exclusive_sum quad_prefix_inclusive_product quad_prefix_inclusive_sum quad_product quad_shuffle
        quad_shuffle_down quad_shuffle_rotate_down quad_shuffle_rotate_up quad_shuffle_up quad_shuffle_xor
        quad_shuffle_and_fill_down
        quad_shuffle_and_fill_up quad_sum quad_vote quad_xor
        """.split()
    ),
    "6.14 pack and unpack": frozenset(
        f"pack_{t}_to_{layout}"
        for t in ("half", "float")
        for layout in ("unorm4x8", "snorm4x8", "srgb_unorm4x8", "unorm2x16", "snorm2x16", "unorm10a2", "unorm565")
    )
    | frozenset(
        f"unpack_{layout}_to_{t}"
        for t in ("half", "float")
        for layout in ("unorm4x8", "snorm4x8", "unorm4x8_srgb", "unorm2x16", "snorm2x16", "unorm10a2", "unorm565")
    ),
    "6.15 atomic": frozenset(
        """
        memory_order memory_order_relaxed atomic_store_explicit atomic_load_explicit atomic_exchange_explicit
        atomic_compare_exchange_weak_explicit atomic_fetch_add_explicit atomic_fetch_and_explicit
        atomic_fetch_max_explicit atomic_fetch_min_explicit atomic_fetch_or_explicit atomic_fetch_sub_explicit
        atomic_fetch_xor_explicit
        """.split()
    ),
}

LEFT_OUT = {
    "simd_is_helper_thread": "fragment functions only",
    "quad_is_helper_thread": "fragment functions only",
    "simd_shuffle_and_fill_down": "Metal 2.4",
    "simd_shuffle_and_fill_up": "Metal 2.4",
    "quad_shuffle_and_fill_down": "Metal 2.4",
    "quad_shuffle_and_fill_up": "Metal 2.4",
}
"""Names of the specification that are not tested, and why."""
