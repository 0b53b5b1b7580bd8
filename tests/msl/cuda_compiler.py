"""NVIDIA's run-time compiler, which needs no GPU: proves that Metal source is CUDA after its translation."""

from __future__ import annotations

import importlib.util

import pytest

from mpsgrad.devices.cuda_compiler import FAST_MATH, LANGUAGE
from mpsgrad.msl import translate

ARCHITECTURE = "sm_90a"
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None,
    reason="cuda-core is not installed (pip install 'mpsgrad[cuda]')",
)


def compile_for_cuda(source: str) -> None:
    """Compiles as far as LTO-IR, which does without code generation; raises what ``cuda.core`` raises."""
    from cuda.core import Program, ProgramOptions

    options = {name: value for name, value in LANGUAGE.items() if name != "ptxas_options"}
    translation = translate(source, "cuda", filename="test.metal", launch="box")
    options |= {"name": "test.metal", "arch": ARCHITECTURE, "link_time_optimization": True, **FAST_MATH}
    Program(translation.source, "c++", ProgramOptions(**options)).compile("ltoir")
