"""An array of a library that NumPy does not know, which lends its memory by DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad.dlpack import CPU, capsule_of


class LentArray:
    """The memory of ``array`` as another library has it. ``place`` is its device in DLPack."""

    def __init__(self, array: np.ndarray, place: tuple[int, int] = (CPU, 0)) -> None:
        self.array = array
        self.place = place

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def as_strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> LentArray:
        steps = [stride * self.array.itemsize for stride in strides]
        return LentArray(np.lib.stride_tricks.as_strided(self.array, shape, steps))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, **options: Any) -> Any:
        address = self.array.__array_interface__["data"][0]
        return capsule_of(self.array, address, self.place, self.array.dtype, self.shape, self.stride())


class ConstantArray(LentArray):
    """One of a library whose arrays never change."""

    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        shown = self.array.view()
        shown.flags.writeable = False
        return shown
