"""Compiles translated source by NVIDIA's run-time compiler, which needs no GPU, straight through its C interface."""

from __future__ import annotations

import ctypes
import importlib.metadata
from functools import cache

import pytest

from mpsgrad.devices.cuda_compiler import standard

OPTIONS = ("--gpu-architecture=compute_80", "-default-device")


@cache
def _library() -> ctypes.CDLL | None:
    """The compiler; None where it is not installed."""
    for distribution in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = importlib.metadata.files(distribution) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnvrtc.so"):
                return ctypes.CDLL(str(file.locate()))
    return None


def compile_for_cuda(source: str, name: str) -> str:
    """What ``source`` is in PTX. Fails the test unless it compiles; skips it where there is no compiler."""
    compiler = _library()
    if compiler is None:
        pytest.skip("NVIDIA's run-time compiler is not installed (pip install nvidia-cuda-nvrtc)")
    program = ctypes.c_void_p()
    assert compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None) == 0
    options = [option.encode() for option in (*OPTIONS, f"--std={standard(source)}")]
    failed = compiler.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetProgramLog(program, log)
    compiler.nvrtcGetPTXSize(program, ctypes.byref(size))
    assembly = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetPTX(program, assembly)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, log.value.decode()[:4000]
    return assembly.value.decode()
