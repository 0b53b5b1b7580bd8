"""The shaders of GPUs, wherever the tests run, and small images that threads share out as large ones."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_forms
import pytest

import mpsgrad as mg
from mpsgrad import testing
from mpsgrad.kernels import pointwise, strides


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


@pytest.fixture(scope="module", autouse=True)
def threads_share_out_small_images() -> Iterator[None]:
    """A threadgroup of a CPU has a few cache lines of an image at least, not as much as pays to wake a thread for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pointwise, "FEWEST_ELEMENTS_OF_THREADGROUP", pointwise.WHOLE_LINES)
        strides.elementwise.cache_clear()
        yield
    strides.elementwise.cache_clear()
