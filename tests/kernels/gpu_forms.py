"""Which numbers the shaders of GPUs are tested with where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import opencl
from mpsgrad.image import FeatureChannelFormat

HALVES = mg.default_device().family != "cpu" or "MPSGRAD_TEST_GPU_HALVES" in os.environ
"""A CPU's compiler takes minutes for the vectors of halves of all families: they run on GPUs, and on CPUs nightly. All
runs compile them for CUDA."""
DTYPES = (np.float32, np.float16) if HALVES else (np.float32,)
FORMATS = tuple(FeatureChannelFormat.from_dtype(dtype) for dtype in DTYPES)


def leave_unoptimized(patch: pytest.MonkeyPatch, device: mg.Device) -> None:
    """Has a CPU's compiler optimize nothing, which takes a third as long: no CPU runs these kernels."""
    if device.family == "cpu":
        patch.setattr(opencl, "BUILD_OPTIONS", (*opencl.BUILD_OPTIONS, "-cl-opt-disable"))


def of_halves(test: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a test of these shaders that only has halves."""
    return test if HALVES else pytest.mark.nightly(test)
