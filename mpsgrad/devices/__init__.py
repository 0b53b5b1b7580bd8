"""The devices of this machine: what there is, which one is the default, and what to install when there is none.

``MPSGRAD_DEVICE`` chooses the default: a driver (``metal``, ``cuda``, ``opencl``) or one device of it (``opencl:0``).
Without it the best one present is taken: Metal on macOS, else CUDA, else OpenCL.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Sequence
from functools import cache as once
from types import ModuleType

from mpsgrad.devices import cuda_api
from mpsgrad.devices.contract import (
    Buffer,
    CompileOptions,
    Device,
    Dispatch,
    Function,
    Library,
    RecordedWork,
    Submission,
)
from mpsgrad.errors import DeviceNotFoundError, FormatError

__all__ = [
    "DRIVERS",
    "Buffer",
    "CompileOptions",
    "Device",
    "Dispatch",
    "Function",
    "Library",
    "RecordedWork",
    "Submission",
    "available_devices",
    "best_device",
    "default_device",
    "driver",
    "find_device",
    "is_default_surely",
    "require_device",
    "set_default_device",
    "unavailable",
]

DRIVERS = ("metal", "cuda", "opencl")


def driver(name: str) -> ModuleType:
    """The driver module called ``name``: it has ``devices()`` and ``unavailable_reason()``."""
    return importlib.import_module(f"mpsgrad.devices.{name}")


_looking = threading.RLock()
"""Held while devices are looked for: threads that use the first one at once have to get the same."""


def _found(name: str) -> tuple[Device, ...]:
    with _looking:
        return _devices_of(name)


@once
def _devices_of(name: str) -> tuple[Device, ...]:
    return tuple(driver(name).devices()) if _may_have_devices(name) else ()


def _may_have_devices(name: str) -> bool:
    """Whether there is what a driver needs, found without its modules: they take as long as Intel's runtime to load."""
    if name == "metal":
        return importlib.util.find_spec("metalcompute") is not None
    return name != "cuda" or cuda_api.missing() is None


def available_devices(drivers: Sequence[str] = DRIVERS) -> list[Device]:
    """Every device of ``drivers`` that can run Metal kernels, the best first."""
    return [device for name in drivers for device in _found(name)]


def unavailable() -> dict[str, str]:
    """For each driver without a device: the reason, in words that say what to install."""
    reasons = {}
    for name in DRIVERS:
        if not _found(name):
            reasons[name] = driver(name).unavailable_reason() or "no device of this kind was found"
    return reasons


def find_device(identifier: str) -> Device:
    """The device called ``identifier``, a driver's name (its first device) or ``driver:index``.

    Raises ``DeviceNotFoundError`` that lists what there is and why the others are missing.
    """
    name, _, index = identifier.strip().lower().partition(":")
    if name not in DRIVERS:
        raise DeviceNotFoundError(
            f"no driver {name!r} (asked for {identifier!r}); the drivers are {', '.join(DRIVERS)}"
        )
    found = _found(name)
    if index and not index.isdecimal():
        raise DeviceNotFoundError(f"{identifier!r} is not a driver with an index, such as {name}:0")
    position = int(index or 0)
    if position >= len(found):
        reason = unavailable().get(name, f"the last one of this kind is {name}:{len(found) - 1}")
        raise DeviceNotFoundError(f"no device {identifier!r}: {reason}")
    return found[position]


_default: Device | None = None


def set_default_device(device: Device) -> None:
    """Makes ``device`` the one that is used where none is named."""
    global _default
    _default = device


def default_device() -> Device:
    """The device that is used where none is named.

    Raises ``DeviceNotFoundError`` that says what was looked for and what to install.
    """
    global _default
    if _default is None:
        _default = best_device()
    return _default


def is_default_surely(name: str) -> bool:
    """Whether the default device, which nobody has asked for yet, is the driver's called ``name`` if there is one."""
    chosen = os.environ.get("MPSGRAD_DEVICE", "").strip().lower()
    if _default is not None or chosen:
        return _default is None and chosen.partition(":")[0] == name
    return not any(map(_may_have_devices, DRIVERS[: DRIVERS.index(name)]))


def require_device(owner: str, device: Device | None) -> Device:
    """``device``, or the default device for None; raises ``FormatError`` if it is anything else."""
    if device is None:
        return default_device()
    if device is not _default and not isinstance(device, Device):
        raise FormatError(
            f"{owner}: device is {device!r}; it has to be a Device (find_device gives the one called opencl:0)"
        )
    return device


def best_device() -> Device:
    """The device that ``MPSGRAD_DEVICE`` names, else the best one present; raises what ``default_device`` raises."""
    chosen = os.environ.get("MPSGRAD_DEVICE")
    if chosen:
        return find_device(chosen)
    for name in DRIVERS:
        found = _found(name)
        if found:
            return found[0]
    looked = "\n".join(f"  {name}: {reason}" for name, reason in unavailable().items())
    raise DeviceNotFoundError(f"no device that can run Metal kernels was found; looked for\n{looked}")
