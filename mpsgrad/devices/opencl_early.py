"""Starts the compiler of users' sources before the device is found.

A process's first source would else wait for it: Intel's runtime has to be loaded in both processes, and the compiler's
first program takes longer than a source takes to be translated. How the compiler was started last time, and for which
device, is in the cache on disk; where that is outdated the process is not used.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence

from mpsgrad.devices import cache
from mpsgrad.devices.opencl_compiler import OPTIONS, OpenCLCompiler, start_early

# What finding the device and importing pyopencl set, and the library with OpenCL's interface needs.
_VARIABLES = ("OCL_ICD_VENDORS", "PYOPENCL_HOME")


def remember(kind: str, compiler: OpenCLCompiler, device: Sequence[str]) -> None:
    """Keeps how the ``kind`` of compiler is started that this is, and what ``device`` it is for."""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    record = json.dumps([compiler.arguments, compiler.environment, device, variables]).encode()
    if cache.load(_name(kind)) != record:
        cache.store(_name(kind), record)


def start(kind: str, is_compiled: Callable[[Sequence[str]], bool]) -> None:
    """Starts that kind of compiler, unless ``is_compiled`` says of its device that it is not needed."""
    record = cache.load(_name(kind))
    if record is None:
        return
    with contextlib.suppress(ValueError, TypeError, AttributeError, OSError):
        arguments, environment, device, variables = json.loads(record)
        is_as_before = all(os.environ.get(name, variables.get(name)) == variables.get(name) for name in _VARIABLES)
        if is_as_before and not is_compiled(device):
            start_early(tuple(arguments), environment, variables)


def _name(kind: str) -> str:
    return cache.key("opencl-compiler", kind, sys.prefix, os.environ.get(OPTIONS, ""))
