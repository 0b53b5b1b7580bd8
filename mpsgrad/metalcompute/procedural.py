"""Version 0.1 of the interface: one device, one function, one input and one output, kept by the module."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np

from mpsgrad.metalcompute.buffer import Buffer
from mpsgrad.metalcompute.exception import error
from mpsgrad.metalcompute.objects import Device, Function, Kernel, require_string

_FORMATS = ("f", "B")
_SMALLEST_COUNT, _LARGEST_COUNT = -(2**31), 2**31 - 1


@dataclass
class _State:
    """What the calls so far have left behind."""

    device: Device | None = None
    function: Function | None = None
    buffers: tuple[Buffer, Buffer] | None = None
    is_compiled: bool = False
    is_bound: bool = False


_state = _State()
_lock = RLock()


def init(index: int = -1, /) -> None:
    """Opens a device, as ``Device`` does."""
    device = Device(index)
    with _lock:
        _state.device = device
        _state.is_compiled = False


def release() -> None:
    """Forgets the device, the function and the buffers; never fails."""
    global _state
    with _lock:
        _state = _State()


def compile(program: str, function_name: str, /) -> None:
    """Compiles Metal source and keeps its function; raises ``error`` with the compiler's messages."""
    require_string(program, 1)
    require_string(function_name, 2)
    with _lock:
        if _state.device is None:
            raise error("Not ready to compile")
        function = Kernel(_state.device, program)._find(function_name)
        if function is None:
            raise error("Failed to find function")
        _state.function = function
        _state.is_compiled, _state.is_bound = True, False


def run(input: Any, output: Any, count: int, /) -> None:
    """Runs the function with a copy of ``input`` and a zeroed buffer as long as ``output``, then fills ``output``.

    Both are contiguous and of float32 (``f``) or bytes (``B``). Other Python threads run meanwhile.
    """
    threads = _c_integer(count)
    source = _view(input, "Unsupported input format")
    destination = _view(output, "Unsupported output format")
    if destination.readonly:
        raise error("Unsupported output format")
    for view, words in ((destination, "Unsupported output format"), (source, "Unsupported input format")):
        if view.format not in _FORMATS:
            raise error(words)
    with _lock:
        if not _state.is_compiled:
            raise error("Not ready to compute")
        _state.buffers = (
            _buffer(source, "Failed to make input buffer"),
            _buffer(destination.nbytes, "Failed to make output buffer"),
        )
        _state.is_bound = True
        _run(threads)
        np.frombuffer(destination, np.uint8)[:] = np.frombuffer(_state.buffers[1], np.uint8)


def rerun(count: int, /) -> None:
    """Runs the function once more with the buffers of the last ``run``; its result stays where it is."""
    threads = _c_integer(count)
    with _lock:
        _run(threads)


def _run(threads: int) -> None:
    if not _state.is_bound or _state.function is None or _state.buffers is None:
        # "Not ready to run", which metalcompute's C half takes for another number.
        raise error("Failed to make output buffer")
    _state.function(threads, *_state.buffers)


def _view(value: Any, words: str) -> memoryview:
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        raise error(words) from None
    if not view.c_contiguous:
        raise error(words)
    return view


def _buffer(length_or_buffer: Any, words: str) -> Buffer:
    assert _state.device is not None
    try:
        return _state.device.buffer(length_or_buffer)
    except error as refusal:
        raise error(words) from refusal


def _c_integer(value: Any) -> int:
    """``value`` as C's ``int``; raises what Python's reader of C arguments raises."""
    number = operator.index(value)
    if number > _LARGEST_COUNT:
        raise OverflowError("signed integer is greater than maximum")
    if number < _SMALLEST_COUNT:
        raise OverflowError("signed integer is less than minimum")
    return number
