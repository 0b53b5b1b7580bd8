"""``Vector``: float32 values in device memory, for the slots of optimizers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from mpsgrad.checked_attribute import fixed
from mpsgrad.command import CommandBuffer
from mpsgrad.data_type import require_unmasked
from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import Buffer, Device, require_device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import integer
from mpsgrad.image_descriptor import LARGEST_ELEMENT_COUNT


class Vector(DeviceBound):
    """``length`` float32 values, zero at first. Source: ``MPSVector``.

    Raises ``GeometryError`` if ``length`` is below 1 or above 2**31 - 1, the most values that kernels count.
    """

    length: int = fixed("_length", "How many values there are.")
    device: Device = fixed("_device", "Where the memory is.")
    buffer: Buffer = fixed("_buffer", "The memory.")

    def __init__(self, length: int, device: Device | None = None) -> None:
        self._length = integer("Vector", "length", length, 1)
        if self.length > LARGEST_ELEMENT_COUNT:
            raise GeometryError(f"Vector: length is {self.length}; the largest vector has {LARGEST_ELEMENT_COUNT}")
        self._device = require_device("Vector", device)
        self._buffer = self.device.allocate(4 * self.length)
        self.buffer.write(np.zeros(self.length, np.float32))
        self._writer: CommandBuffer | None = None

    @classmethod
    def from_array(cls, array: Any, device: Device | None = None) -> Vector:
        """A vector with a copy of ``array`` in row-major order. Raises ``FormatError`` unless it is float32."""
        require_unmasked("Vector.from_array", array)
        values = np.asarray(array)
        if values.dtype != np.float32 or not values.dtype.isnative:
            raise FormatError(f"Vector.from_array: the array is {values.dtype!r}; it has to be native float32")
        vector = cls(values.size, device)
        vector.buffer.write(np.ascontiguousarray(values))
        return vector

    @classmethod
    def of_buffer(cls, buffer: Buffer, length: int) -> Self:
        """The first ``length`` values of ``buffer``, which is shared."""
        vector = cls.__new__(cls)
        vector._length, vector._device, vector._buffer, vector._writer = length, buffer.device, buffer, None
        return vector

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of the values, after the command buffer that writes them has completed.

        Raises ``StateError`` if that has not been committed.
        """
        if self._writer is not None:
            self._writer._wait_for("Vector", "read", needs_result=True)
        if copy is False:
            raise ValueError("a Vector cannot be read without a copy")
        values = self.buffer.read(0, 4 * self.length).view(np.float32)
        return values if dtype is None else values.astype(dtype)

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"<Vector of {self.length} float32 on {self.device.identifier}>"
