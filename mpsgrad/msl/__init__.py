"""Metal Shading Language in, C++ for OpenCL 2021 or CUDA C++ out, with what a caller must know of each kernel."""

from typing import TYPE_CHECKING, Any

from mpsgrad.msl.diagnostics import SIZES_SUFFIX, Diagnostic, parse_compiler_log, shader_error
from mpsgrad.msl.signature import Argument, FunctionConstant, KernelSignature, Launch, Translation

if TYPE_CHECKING:
    from mpsgrad.msl.translator import translate

__all__ = [
    "SIZES_SUFFIX",
    "Argument",
    "Diagnostic",
    "FunctionConstant",
    "KernelSignature",
    "Launch",
    "Translation",
    "parse_compiler_log",
    "shader_error",
    "translate",
]


def __getattr__(name: str) -> Any:
    """The translator takes long to import, and kernels that are compiled already need none."""
    if name == "translate":
        from mpsgrad.msl.translator import translate

        return translate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
