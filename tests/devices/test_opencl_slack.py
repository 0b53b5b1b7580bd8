"""Kernels that read and write some rows behind a buffer's end go on, as they do on Apple GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes
import mmap
import sys
import numpy as np
import mpsgrad as mg

GUARD = 1 << 21
libc = ctypes.CDLL(None)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Pages(mmap.mmap):
    "Faults behind its end."

    def __new__(cls, fileno, length, **others):
        self = super().__new__(cls, fileno, length + GUARD, **others)
        address = np.frombuffer(self, np.uint8).ctypes.data
        assert libc.mprotect(address + length, GUARD, 0) == 0
        return self


source = '''
kernel void copy(device const float* x, device float* y, device float* z, constant int& i) {
    y[0] = x[i];
    z[i] = 1.0f;
}
'''
device = mg.find_device("opencl")
copy = mg.compile(source, device=device).function("copy")
mmap.mmap = Pages
count = int(sys.argv[1])
x, z = (device.allocate(4 * count) for _ in range(2))
y = np.ones(1, np.float32)
copy(1, x, y, z, np.int32(count + (1 << 14) - 1))
print(y[0])
"""


@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize("count", [1024, 7 * 1024, 1 << 20])
def test_what_lies_behind_a_buffer_may_be_used(count: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(count)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "0.0\n", (run.returncode, run.stderr)
