"""Runs a checked kernel in a process of its own, which threads may end that come past a barrier alone.

What the checks have found until then is in a file that both processes have in memory.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpsgrad.devices import find_device
from mpsgrad.devices.opencl import OpenCLDevice
from mpsgrad.devices.opencl_checks import CheckedKernel, CheckedLaunch, Outcome, no_findings
from mpsgrad.errors import DeviceError
from mpsgrad.msl import Launch, Translation
from mpsgrad.own_processes import environment_of_modules

if TYPE_CHECKING:
    import pyopencl

_REQUEST, _FINDINGS, _OUTCOME = "request", "findings", "outcome"


def run_apart(
    device: OpenCLDevice, compiled: Mapping[Launch, tuple[pyopencl.Program, Translation]], launch: CheckedLaunch
) -> Outcome:
    """What ``CheckedKernel.run_here`` finds with what is ``compiled`` for each launch.

    If the process ends that it runs in, there is what was found before, and the regions are as they were. Raises
    ``DeviceError`` if that is nothing.
    """
    import pyopencl as cl

    programs = {
        each: (program.get_info(cl.program_info.BINARIES)[0], translation)  # type: ignore[index]
        for each, (program, translation) in compiled.items()
    }
    translation = compiled["row"][1]
    checks = translation.instrumentation
    assert checks is not None
    with tempfile.TemporaryDirectory(prefix="mpsgrad-") as name:
        folder = Path(name)
        (folder / _REQUEST).write_bytes(pickle.dumps((device.identifier, programs, launch)))
        nothing = no_findings(len(checks.sites))
        (folder / _FINDINGS).write_bytes(nothing.tobytes())
        ended = subprocess.run(
            [sys.executable, "-m", "mpsgrad.devices.opencl_checks_process", name],
            env=environment_of_modules(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if (folder / _OUTCOME).exists():
            outcome = pickle.loads((folder / _OUTCOME).read_bytes())
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        findings = np.fromfile(folder / _FINDINGS, nothing.dtype).reshape(nothing.shape)
    if not findings["count"].any():
        kernel = next(iter(translation.kernels))
        how = signal.Signals(-ended.returncode).name if ended.returncode < 0 else f"status {ended.returncode}"
        said = "".join(f": {line}" for line in ended.stderr.decode(errors="replace").strip().splitlines()[-1:])
        raise DeviceError(f"{kernel}: the checked kernel ended its process ({how}) before it found why{said}")
    return Outcome(findings, tuple(each.data for each in launch.regions), (None,) * len(launch.regions), False)


def _main(folder: Path) -> None:
    identifier, programs, launch = pickle.loads((folder / _REQUEST).read_bytes())
    device = find_device(identifier)
    assert isinstance(device, OpenCLDevice)

    def new_findings(sites: int) -> np.ndarray:
        nothing = no_findings(sites)
        findings = np.memmap(folder / _FINDINGS, nothing.dtype, "r+", shape=nothing.shape)
        findings[...] = nothing
        return findings

    def compiled(launch: Launch) -> tuple[pyopencl.Program, Translation]:
        binary, translation = programs[launch]
        program = device._from_binary(binary)
        assert program is not None
        return program, translation

    try:
        outcome: Outcome | Exception = CheckedKernel(device, compiled, new_findings).run_here(launch)
    except DeviceError as error:
        outcome = error
    (folder / "unfinished").write_bytes(pickle.dumps(outcome))
    (folder / "unfinished").rename(folder / _OUTCOME)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
