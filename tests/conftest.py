"""Settings that every test shares: Hypothesis profiles and the devices of this machine."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import mpsgrad as mg
from mpsgrad.devices.opencl import OpenCLDevice

KERNELS_OF_PROGRAM = 4

settings.register_profile(
    "default", deadline=None, max_examples=12, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", parent=settings.get_profile("default"), max_examples=1000, derandomize=False)
# For runs under compute-sanitizer: more examples reach more kernels.
settings.register_profile("sanitizer", parent=settings.get_profile("default"), max_examples=16)
settings.load_profile(os.environ.get("MPSGRAD_HYPOTHESIS_PROFILE", "default"))


def pytest_collection_finish() -> None:
    """The collected tests stay to the end: a garbage collection need not go through them each time. And what a
    translation makes lives as long as it does: collections in between find little of it to free."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="module")
def several_kernels_at_a_time() -> Iterator[None]:
    """For files that ask for nearly all kernels of their shaders: the compiler takes long to begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenCLDevice, "kernels_of_program", KERNELS_OF_PROGRAM)
        yield


@pytest.fixture(scope="session")
def device() -> mg.Device:
    return mg.default_device()


@pytest.fixture(scope="session")
def opencl_device() -> mg.Device:
    """The CPU, for what only its driver does."""
    try:
        return mg.find_device("opencl")
    except mg.DeviceNotFoundError as missing:
        pytest.skip(str(missing))
