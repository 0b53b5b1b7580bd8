"""Buffers: memory of a device, with room behind it for stray threads and the buffer protocol in front of it."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from mpsgrad import devices
from mpsgrad.errors import DeviceError
from mpsgrad.metalcompute.exception import error

LEAST_SLACK_BYTES = 1 << 16
"""Enough for the stray threads of a threadgroup to write 64 bytes each."""
MOST_SLACK_BYTES = 1 << 24


def allocate(device: devices.Device, nbytes: int) -> devices.Buffer:
    """``nbytes`` of zeros, and behind them the zeros that stray threads may read and write."""
    if nbytes <= 0:
        raise error("Could not make buffer")
    padded = nbytes + min(max(nbytes, LEAST_SLACK_BYTES), MOST_SLACK_BYTES)
    try:
        buffer = device.allocate_shared(padded)
    except DeviceError as refused:
        raise error("Could not make buffer") from refused
    assert buffer.memory is not None
    buffer.memory[:] = 0
    return buffer


def allocate_for(device: devices.Device, length_or_buffer: Any) -> tuple[devices.Buffer, int]:
    """A buffer as long as a number says or with a copy of an object's bytes; and its length without the slack."""
    data = _contents(length_or_buffer)
    if isinstance(data, int):
        return allocate(device, data), data
    buffer = allocate(device, data.size)
    buffer.write(data)
    return buffer, data.size


def _contents(length_or_buffer: Any) -> np.ndarray | int:
    """The bytes of an object with the buffer protocol, else the length that it stands for as ``int`` reads it."""
    try:
        return np.frombuffer(length_or_buffer, np.uint8)
    except (TypeError, ValueError, BufferError):
        pass
    try:
        return int(length_or_buffer)
    except (TypeError, ValueError, OverflowError):
        raise error("Unsupported input format") from None


class Buffer(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """``metalcompute.Buffer``: bytes that ``memoryview`` and ``numpy.frombuffer`` read and write in place.

    It is an array only because Python before 3.12 lets no other class written in Python have the buffer protocol;
    what else an array can do, metalcompute's buffers cannot, and neither can these.
    """

    _memory: devices.Buffer
    _owner: Any
    _length: int

    __array_ufunc__ = None  # type: ignore[assignment]

    @classmethod
    def _make(cls, owner: Any, device: devices.Device, length_or_buffer: Any) -> Buffer:
        """``owner`` is the ``metalcompute.Device`` whose calls may use the buffer."""
        memory, length = allocate_for(device, length_or_buffer)
        assert memory.memory is not None
        buffer = memory.memory[:length].view(cls)
        buffer._memory = memory
        buffer._owner = owner
        buffer._length = length
        return buffer

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            raise AttributeError(f"'metalcompute.Buffer' object has no attribute '{name}'")
        return super().__getattribute__(name)

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("a metalcompute.Buffer has the buffer protocol and nothing else; use memoryview(buffer)")

    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = _refuse  # type: ignore[assignment]
    __int__ = __float__ = __complex__ = __index__ = _refuse  # type: ignore[assignment]
    __copy__ = __deepcopy__ = __reduce__ = __reduce_ex__ = _refuse  # type: ignore[assignment]
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__  # type: ignore[assignment]
    __ne__ = object.__ne__  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"metalcompute.Buffer(length={self._length})"

    def __repr__(self) -> str:
        return f"<metalcompute.Buffer object at {id(self):#x}>"
