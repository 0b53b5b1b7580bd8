"""Checked runs whose process ends: what some threads do that come past a barrier alone is anything."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import opencl_checks_process
from mpsgrad.errors import DeviceError
from mpsgrad.runtime.findings import KernelFinding

pytestmark = pytest.mark.usefixtures("opencl_device")

SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void f(device int* x, uint i [[thread_position_in_grid]]) {
    if (i >= 5) return;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x[i] = 1;
}
"""
ENDING = """#!{python}
import os, signal
from pathlib import Path
import sys
from mpsgrad.devices import opencl_checks_process as process
{before}
process._main(Path(sys.argv[3]))
"""


def findings(monkeypatch: pytest.MonkeyPatch, folder: Path, before: str) -> tuple[KernelFinding, ...]:
    program = folder / "python"
    program.write_text(ENDING.format(python=sys.executable, before=before))
    program.chmod(0o755)
    monkeypatch.setattr(opencl_checks_process.sys, "executable", str(program))
    return mg.compile(SOURCE).function("f").check(64, np.zeros(64, np.int32))


def test_what_is_found_before_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = "process.CheckedKernel.run_here"
    before = f"run = {run}\n{run} = lambda *all: (run(*all), os.kill(os.getpid(), signal.SIGSEGV))"
    (found,) = findings(monkeypatch, tmp_path, before)
    assert found.line == 5
    assert "only 5 of 64 threads" in found.message


def test_nothing_found_is_an_error_that_says_how_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = r"^f: the checked kernel ended its process \(SIGSEGV\) before it found why: its last words$"
    with pytest.raises(DeviceError, match=words):
        findings(monkeypatch, tmp_path, "sys.stderr.write('its last words\\n')\nos.kill(os.getpid(), signal.SIGSEGV)")


def test_errors_of_the_device_are_raised_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = (
        "from mpsgrad.errors import DeviceError\n"
        "def run(*all): raise DeviceError('f: out of memory')\nprocess.CheckedKernel.run_here = run"
    )
    with pytest.raises(DeviceError, match="^f: out of memory$"):
        findings(monkeypatch, tmp_path, before)
