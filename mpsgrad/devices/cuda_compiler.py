"""From translated kernels to machine code by NVRTC, which needs no GPU, and what the kernels take of one."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as once
from threading import Lock
from types import ModuleType
from typing import Any

from mpsgrad.devices import cache
from mpsgrad.devices.cuda_api import INSTALL_HINT
from mpsgrad.errors import DeviceError, ShaderError
from mpsgrad.msl import Translation, parse_compiler_log, shader_error

# "-v" makes the assembler report registers and spills, and the line numbers of the Metal source go to the profilers.
LANGUAGE: Mapping[str, Any] = {
    "device_as_default_execution_space": True,
    "lineinfo": True,
    "ptxas_options": ["-v"],
}
OWN_MATH: Mapping[str, Any] = {}
KERNELS_OF_PROGRAM = 8
"""So many take NVRTC four to five times as long as one of them: a reduction .2 s, eight 1.2, all 75 of halves 10."""
# Not use_fast_math: its exponential and sine lose most digits for large arguments.
FAST_MATH: Mapping[str, Any] = {"prec_div": False, "prec_sqrt": False}
STRICT_MATH: Mapping[str, Any] = {"fma": False}

_importing = Lock()
_COMPILING = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


_DESIGNATOR = re.compile(r"[{,]\s*\.\w+\s*=[^=]")


def standard(translated: str) -> str:
    """The C++ that ``translated`` is in: designated initialisers came with C++20, which changes what else there is."""
    return "c++20" if _DESIGNATOR.search(translated) else "c++17"


@once
def version() -> str:
    """The version of NVRTC; raises ``DeviceError`` if it is missing or cannot be loaded."""
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as failure:
        raise DeviceError(f"NVIDIA's run-time compiler cannot be loaded ({INSTALL_HINT}): {failure}") from failure
    if error:
        raise DeviceError(f"NVIDIA's run-time compiler does not work: {error.name}")
    return f"{major}.{minor}"


@once
def architectures() -> tuple[int, ...]:
    """The compute capabilities that NVRTC compiles for, times ten, in ascending order."""
    version()
    from cuda.bindings import nvrtc

    error, count = nvrtc.nvrtcGetNumSupportedArchs()
    if not error:
        error, found = nvrtc.nvrtcGetSupportedArchs()
        if not error:
            return tuple(sorted(found[:count]))
    raise DeviceError(f"NVIDIA's run-time compiler does not say what it compiles for: {error.name}")


def architecture_name(number: int) -> str:
    """What is compiled for GPUs of compute capability ``number`` / 10."""
    # Products of matrices in threadgroup memory are among what only GPUs of one capability have.
    return "sm_90a" if number == 90 else f"sm_{number}"


def _core() -> ModuleType:
    """``cuda.core``; raises ``DeviceError`` if it is missing."""
    # It cannot be imported by two threads at a time.
    with _importing:
        try:
            return importlib.import_module("cuda.core")
        except ImportError as error:
            raise DeviceError(f"the Python package cuda-core cannot be imported ({INSTALL_HINT}): {error}") from error


def cache_name(translated: str, architecture: str, math: Mapping[str, Any]) -> str:
    """What the machine code of ``translated`` is called in the cache on disk."""
    options = sorted({**LANGUAGE, **math, "std": standard(translated)}.items())
    return cache.key("cuda", translated, repr(options), architecture, version())


def compile_cubin(
    translation: Translation, source: str, name: str, architecture: str, math: Mapping[str, Any]
) -> tuple[bytes, str]:
    """Machine code for ``architecture`` (such as sm_90) and the compiler's log.

    Raises ``ShaderError`` that points at the Metal ``source``, called ``name``, and ``DeviceError`` if there is no
    compiler.
    """
    version()
    core = _core()
    log = io.StringIO()
    try:
        cxx = standard(translation.source)
        options = core.ProgramOptions(name=name, arch=architecture, std=cxx, **LANGUAGE, **math)
        code = core.Program(translation.source, "c++", options).compile("cubin", logs=log).code
    except Exception as error:
        # cuda.core has no public class for this.
        if not type(error).__name__.startswith("NVRTC"):
            raise
        raise _shader_error(str(error), translation, source, name) from error
    assert isinstance(code, bytes)
    return code, log.getvalue()


def _shader_error(log: str, translation: Translation, source: str, name: str) -> ShaderError:
    """The compiler's first error, pointing at the line of Metal source that it came from."""
    errors = [entry for entry in parse_compiler_log(log, "cuda", translation) if entry.severity == "error"]
    if not errors:
        return ShaderError(f"NVIDIA's run-time compiler failed:\n{log}", file=name)
    return shader_error(errors[0], source, name)


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """What one entry point takes of a multiprocessor: registers of a thread, and bytes of threadgroup memory, of stack,
    and of registers that are stored to memory and loaded again."""

    entry_point: str
    registers: int
    threadgroup_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


def kernel_usages(log: str) -> list[KernelUsage]:
    """What the assembler's messages in a compiler's log say of each entry point."""
    usages = []
    name, stack = "", (0, 0, 0)
    for line in log.splitlines():
        compiling, frame, used = _COMPILING.search(line), _STACK.search(line), _USED.search(line)
        if compiling:
            name, stack = compiling["name"], (0, 0, 0)
        elif frame:
            stack = (int(frame[1]), int(frame[2]), int(frame[3]))
        elif used and name:
            shared = _SHARED.search(line)
            usages.append(KernelUsage(name, int(used[1]), int(shared[1]) if shared else 0, *stack))
            name = ""
    return usages
