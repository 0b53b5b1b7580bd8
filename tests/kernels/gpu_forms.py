"""Which numbers the shaders of GPUs are tested with where there is none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import Library
from mpsgrad.image import FeatureChannelFormat

HALVES = mg.default_device().family != "cpu" or "MPSGRAD_TEST_GPU_HALVES" in os.environ
"""A CPU's compiler takes minutes for the vectors of halves of all families: they run on GPUs, and on CPUs nightly. All
runs compile them for CUDA."""
DTYPES = (np.float32, np.float16) if HALVES else (np.float32,)
FORMATS = tuple(FeatureChannelFormat.from_dtype(dtype) for dtype in DTYPES)

_UNROLL = re.compile(r"#pragma unroll.*")
# A CPU's compiler takes no longer to unroll what these have.
_UNROLLED = ("soft_max", "pooling")


def keep_loops(patch: pytest.MonkeyPatch, device: mg.Device) -> None:
    """Has a CPU's compiler leave loops as they are: it takes twice as long to unroll them, which computes the same."""
    if device.family != "cpu":
        return
    compile_source = device.compile

    def compile_loops(source: str, *, name: str, **options: Any) -> Library:
        if not any(word in name for word in _UNROLLED):
            source = _UNROLL.sub("#pragma clang loop unroll(disable)", source)
        return compile_source(source, name=name, **options)

    patch.setattr(device, "compile", compile_loops)


def of_halves(test: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a test of these shaders that only has halves."""
    return test if HALVES else pytest.mark.nightly(test)
