"""The shaders of GPUs, wherever the tests run."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_forms
import pytest

import mpsgrad as mg
from mpsgrad import testing
from mpsgrad.kernels import strides


@pytest.fixture(scope="class")
def shaders_of_gpus(device: mg.Device) -> Iterator[None]:
    """The kernels are rendered and dispatched as on a GPU, wherever they then run, and small images as large ones."""
    with pytest.MonkeyPatch.context() as patch:
        gpu_forms.leave_unoptimized(patch, device)
        patch.setattr(device, "family", "gpu")
        patch.setattr(type(device), "has_clusters", False)
        patch.setattr(testing, "CHANNEL_FORMATS", gpu_forms.FORMATS)
        patch.setattr(strides, "FEWEST_ELEMENTS_OF_FLAT", 128)
        yield
