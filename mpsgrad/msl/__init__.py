"""Metal Shading Language in, C++ for OpenCL 2021 or CUDA C++ out, with what a caller must know of each kernel."""

from mpsgrad.msl.diagnostics import SIZES_SUFFIX, Diagnostic, parse_compiler_log
from mpsgrad.msl.signature import Argument, FunctionConstant, KernelSignature, Launch, Translation
from mpsgrad.msl.translate import shader_error, translate

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
