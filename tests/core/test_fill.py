"""Filling with zeros: every element that is asked for, and no other."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.fill import ELEMENTS_OF_FILL_THREAD, FILL_THREADS, fill_buffer_with_zeros

THREADGROUP = FILL_THREADS * ELEMENTS_OF_FILL_THREAD


@pytest.mark.parametrize("metal_type", ["float", "half"])
@pytest.mark.parametrize("count", [1, 255, 257, THREADGROUP - 1, THREADGROUP, THREADGROUP + 1, 3 * THREADGROUP + 77])
def test_as_many_elements_as_are_asked_for(count: int, metal_type: str) -> None:
    dtype = np.dtype(np.float32 if metal_type == "float" else np.float16)
    before = np.arange(1, count + 2 * THREADGROUP).astype(dtype)
    buffer = mg.default_device().allocate(before.nbytes)
    buffer.write(before.tobytes())
    with mg.CommandBuffer() as commands:
        fill_buffer_with_zeros(commands, buffer, count, metal_type)
    after = buffer.read(0, before.nbytes).view(dtype)
    assert not after[:count].any()
    np.testing.assert_array_equal(after[count:], before[count:])
