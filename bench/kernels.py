"""The package's kernels, compiled on every core before the first row, which would compile them one after the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import repeat

import mpsgrad as mg
from mpsgrad.errors import MPSGradError
from mpsgrad.shader import families


def all_kernels() -> list[tuple[str, str]]:
    """The names of all families of kernels, each with the Metal types of images that it is for."""
    return [(name, dtype) for name, family in families().items() for dtype in family.dtypes]


def compile_kernels(device: mg.Device, kernels: Sequence[tuple[str, str]]) -> None:
    """Compiles what the cache on disk does not hold, in processes of their own. What fails is left to its first use."""
    processes = min(os.cpu_count() or 1, len(kernels))
    context = multiprocessing.get_context("spawn")
    with contextlib.suppress(BrokenProcessPool), ProcessPoolExecutor(processes, context) as pool:
        for _ in pool.map(_compile, repeat(device.identifier), *zip(*kernels, strict=True)):
            pass


def _compile(identifier: str, name: str, dtype: str) -> None:
    with contextlib.suppress(MPSGradError):
        family, device = families()[name], mg.find_device(identifier)
        for kernel in family.kernels(device, dtype):
            family.function(device, kernel, dtype)
