"""A plug-in for pytest: kernels are planned and rendered as for a CPU with AVX-512, which this one need not be.

``PYTHONPATH=tests pytest -p wide_registers tests/kernels`` runs the kernels of those CPUs on any other.
"""

from __future__ import annotations

import pytest

from mpsgrad.devices.opencl import OpenCLDevice

_patch = pytest.MonkeyPatch()


def pytest_configure() -> None:
    _patch.setattr(OpenCLDevice, "tuning", property(lambda device: device.family))


def pytest_unconfigure() -> None:
    _patch.undo()
