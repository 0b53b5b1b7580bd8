"""Metal Shading Language in, C++ for OpenCL 2021 or CUDA C++ out, with what a caller must know of each kernel."""

from mpsgrad.msl.diagnostics import Diagnostic, parse_compiler_log
from mpsgrad.msl.signature import Argument, KernelSignature, Translation
from mpsgrad.msl.translate import shader_error, translate

__all__ = [
    "Argument",
    "Diagnostic",
    "KernelSignature",
    "Translation",
    "parse_compiler_log",
    "shader_error",
    "translate",
]
