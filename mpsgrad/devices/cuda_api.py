"""NVIDIA's driver interface through ``cuda.bindings``, with errors that are raised instead of being returned."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from functools import cache as once
from types import ModuleType
from typing import Any

MODULE = "cuda.bindings.driver"
INSTALL_HINT = "pip install 'mpsgrad[cuda]'"

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# Errors after which CUDA gives every later call of the process the same answer.
_FAULTS = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
_OUT_OF_MEMORY = 2
NOT_READY = 600
"""What a query of work answers that has not ended yet."""


class CUDAError(Exception):
    """A call that CUDA refused, or the failure of earlier work that it reported."""

    def __init__(self, code: Any) -> None:
        self.code = int(code)
        name = getattr(code, "name", str(self.code))
        error, text = api().cuGetErrorString(code)
        super().__init__(name if error else f"{name}, {text.decode()}")

    @property
    def is_fault(self) -> bool:
        """Whether a kernel failed while it ran, which ends the process's use of the device."""
        return self.code in _FAULTS

    @property
    def is_out_of_memory(self) -> bool:
        return self.code == _OUT_OF_MEMORY


@once
def api() -> ModuleType:
    """The driver's interface; raises ``ImportError`` where ``cuda.bindings`` is not installed."""
    return importlib.import_module(MODULE)


def checked(result: tuple[Any, ...]) -> Any:
    """What a call returned beside its error, which is raised as ``CUDAError``."""
    if result[0]:
        raise CUDAError(result[0])
    return result[1] if len(result) == 2 else result[1:]


def missing() -> str | None:
    """What the machine lacks before a device can be asked for, or None."""
    try:
        found = importlib.util.find_spec(MODULE)
    except (ImportError, ValueError):
        found = None
    if found is None:
        return f"the Python package cuda-core is not installed ({INSTALL_HINT})"
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return f"NVIDIA's driver is not installed: {_LIBRARY} was not found"
    return None
