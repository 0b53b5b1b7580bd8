"""Names that CUDA C++ defines: those that Metal lacks belong to the user there and must be renamed."""

from __future__ import annotations

import re

# What the library defines is renamed by itself; these are left.
LIBRARY_NAMES = frozenset({"main"})

_RESERVED = frozenset(
    """
    threadIdx blockIdx blockDim gridDim warpSize dim3 erf erfc erfinv erfcinv erfcx lgamma tgamma log1p expm1
    cbrt rcbrt hypot rhypot norm rnorm norm3d norm4d rnorm3d rnorm4d j0 j1 jn y0 y1 yn remainder remquo nan nanf
    logb scalbn scalbln lrint llrint lround llround nearbyint nexttoward cyl_bessel_i0 cyl_bessel_i1 normcdf
    normcdfinv sincospi fdividef printf malloc free memcpy memset memcmp assert clock clock64 trap labs llabs
    fma pow acos acosh asin asinh atan atan2 double2 double3 double4 longlong2 ulonglong2 cudaError_t
    cudaStream_t surfaceReference textureReference M_PI M_E global shared host min max
    """.split()
)

_PATTERN = re.compile(
    r"""(?:
    (?:a?(?:sin|cos|tan)h?|atan2|exp|exp2|exp10|expm1|log|log2|log10|log1p|r?sqrt|cbrt|pow|fabs|floor|ceil|round|trunc
      |rint|fmod|fma|fmin|fmax|erfc?|[lt]gamma|hypot|sinpi|cospi|sincos|ldexp|frexp|modf|copysign|fdim|nextafter|i?logb)[fl]
  | atomic(?:Add|Sub|Exch|Min|Max|Inc|Dec|CAS|And|Or|Xor)\w* | (?:tex|surf)\d?D?\w*Object_t | make_\w+\d
  | (?:char|uchar|short|ushort|int|uint|long|ulong|float)1
  )$""",
    re.VERBOSE,
)


class _Reserved(frozenset):
    """The set of reserved names, families included."""

    def __contains__(self, name: object) -> bool:
        return frozenset.__contains__(self, name) or (isinstance(name, str) and _PATTERN.match(name) is not None)


RESERVED_NAMES: frozenset[str] = _Reserved(_RESERVED)
