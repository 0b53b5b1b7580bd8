"""The plugin that lets kernels fault where they leave their buffers does so, and only there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy as np
import guard_pages
import mpsgrad as mg

source = "kernel void copy(device const float* x, device float* y, constant int& i) { y[0] = x[i]; }"
device = mg.find_device("opencl")
x = device.allocate(4 * 333)
x.write(np.arange(333, dtype=np.float32))
y = np.zeros(1, np.float32)
mg.compile(source, device=device).function("copy")(1, x, y, np.int32(int(sys.argv[1])))
print(y[0])
"""


@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize(("guard", "inside", "outside"), [("end", 332, 333), ("front", 0, -1)])
def test_elements_outside_fault(guard: str, inside: int, outside: int) -> None:
    folder = Path(__file__).parents[1]
    path = os.pathsep.join((str(folder), str(folder.parent)))
    environment = {**os.environ, "MPSGRAD_GUARD": guard, "PYTHONPATH": path}

    def run(i: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, str(i)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    good, bad = run(inside), run(outside)
    assert good.stdout == f"{inside:.1f}\n", good.stderr
    assert bad.returncode == -signal.SIGSEGV, bad.stderr
