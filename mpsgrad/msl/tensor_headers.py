"""Metal 4's headers for tensors: Metal programs of this package, which are compiled as a part of the user's."""

from __future__ import annotations

from functools import cache
from importlib import resources

_PRIMITIVES = "MetalPerformancePrimitives"
_FILES = {
    "metal_tensor": "metal_tensor.h",
    "metal_cooperative_tensor": "metal_cooperative_tensor.h",
    f"{_PRIMITIVES}/{_PRIMITIVES}.h": "metal_convolution_primitives.h",
    f"{_PRIMITIVES}/MPPTensorOpsConvolution2d.h": "metal_convolution_primitives.h",
    f"{_PRIMITIVES}/MPPTensorOpsMatMul2d.h": "metal_performance_primitives.h",
}


def is_tensor_header(name: str) -> bool:
    """Whether ``#include <name>`` is for tensors."""
    return name in _FILES


@cache
def tensor_header(name: str) -> tuple[str, str]:
    """The text of the header, and the name that errors in it have: the same for both names of one."""
    file = resources.files("mpsgrad.msl") / "include" / "metal" / _FILES[name]
    return file.read_text(encoding="utf-8"), f"<{_FILES[name].removesuffix('.h')}>"
