"""NVIDIA's run-time compiler, which needs no GPU: proves that Metal source is CUDA after its translation."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import pytest

from mpsgrad.devices.cuda_compiler import FAST_MATH, LANGUAGE, standard
from mpsgrad.msl import Translation, translate

ARCHITECTURE = "sm_90a"
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None,
    reason="cuda-core is not installed (pip install 'mpsgrad[cuda]')",
)


def compile_for_cuda(source: str) -> None:
    """Translates and compiles; raises what ``cuda.core`` raises."""
    check_for_cuda(translate(source, "cuda", filename="test.metal", launch="box"), FAST_MATH)


def check_for_cuda(translation: Translation, math: Mapping[str, Any]) -> None:
    """Compiles as far as LTO-IR, which does without code generation; raises what ``cuda.core`` raises."""
    from cuda.core import Program, ProgramOptions

    options = {name: value for name, value in LANGUAGE.items() if name != "ptxas_options"} | dict(math)
    options |= {"name": "test.metal", "arch": ARCHITECTURE, "link_time_optimization": True}
    options["std"] = standard(translation.source)
    Program(translation.source, "c++", ProgramOptions(**options)).compile("ltoir")
