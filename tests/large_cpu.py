"""A plug-in for pytest: kernels are planned and rendered as for a CPU with AVX-512 and 16 cores, on any CPU.

``PYTHONPATH=tests pytest -p large_cpu tests/kernels`` runs the kernels of those CPUs.
"""

from __future__ import annotations

import pytest

from mpsgrad.devices import available_devices
from mpsgrad.devices.opencl import OpenCLDevice

COMPUTE_UNITS = 16
_patch = pytest.MonkeyPatch()


def pytest_configure() -> None:
    _patch.setattr(OpenCLDevice, "tuning", property(lambda device: device.family))
    for device in available_devices():
        if isinstance(device, OpenCLDevice):
            _patch.setattr(device, "compute_units", COMPUTE_UNITS)


def pytest_unconfigure() -> None:
    _patch.undo()
