"""Kernels that calls keep: one that has encoded images of some size before encodes such ones in a tenth of the time."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsgrad.devices import default_device

KERNELS_KEPT = 256
"""Of each thread; then it starts again with none."""

_VALUES = (str, int, float, np.generic, enum.Enum, type)
"""What does not change, so that a kernel made of it is the same the next time."""


class _Kernels(threading.local):
    """Each thread has its own: an encode changes its kernel."""

    def __init__(self) -> None:
        self.made: dict[Any, Any] = {}


_kernels = _Kernels()


def kept(make: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """The kernel that ``make`` makes of these arguments, the same one for the same arguments.

    Arguments that can change, as arrays and padding policies, make a new one each time.
    """
    if not all(map(_is_value, arguments)) or not all(map(_is_value, named.values())):
        return make(*arguments, **named)
    # 2 and 2.0 are equal, but not every argument may be either.
    key = (make, default_device(), arguments, tuple(named.items()), repr((arguments, named)))
    kernel = _kernels.made.get(key)
    if kernel is None:
        kernel = make(*arguments, **named)
        if len(_kernels.made) >= KERNELS_KEPT:
            _kernels.made.clear()
        _kernels.made[key] = kernel
    return kernel


def _is_value(value: Any) -> bool:
    return value is None or isinstance(value, _VALUES) or (type(value) is tuple and all(map(_is_value, value)))
