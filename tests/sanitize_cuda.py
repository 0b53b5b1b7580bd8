"""Runs every kernel of the package on an NVIDIA GPU in a way that compute-sanitizer can judge.

    compute-sanitizer --tool memcheck --error-exitcode 1 python tests/sanitize_cuda.py [PYTEST ARGUMENTS]

The tests of the kernels run with few examples. Each buffer is an allocation of its own and of its exact size, and is
freed when it is no longer used, so that memcheck sees what lies outside and initcheck what was not written. At the end
the kernels are listed that no test ran. The tools are memcheck, racecheck, initcheck and synccheck.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
os.environ["MPSGRAD_DEVICE"] = "cuda"
sys.path.insert(0, str(TESTS.parent))

import pytest  # noqa: E402

from mpsgrad.devices import cuda, cuda_launch, default_device  # noqa: E402
from mpsgrad.devices.cuda_api import api, checked  # noqa: E402
from mpsgrad.devices.cuda_memory import MemoryPool  # noqa: E402
from mpsgrad.msl import translate  # noqa: E402
from mpsgrad.shader import FAMILIES  # noqa: E402

started: set[str] = set()


class ExactMemory(MemoryPool):
    """Asks CUDA for each buffer."""

    def take(self, nbytes: int) -> tuple[int, int]:
        return int(checked(api().cuMemAlloc(nbytes))), nbytes

    def give_back(self, address: int, size: int) -> None:
        with self._device.active:
            checked(api().cuMemFree(address))


def kernels() -> set[str]:
    """The names of the kernel functions of all families."""
    found: set[str] = set()
    for family in FAMILIES.values():
        source = family.render(family.dtypes[0], "nvidia").with_line_directives()
        found |= set(translate(source, "cuda").kernels)
    return found


def main() -> int:
    device = default_device()
    assert isinstance(device, cuda.CUDADevice)
    device._pool = ExactMemory(device)
    launch = cuda_launch.CUDAFunction.launch

    def counted(self: Any, *arguments: Any) -> None:
        started.add(self.name)
        launch(self, *arguments)

    cuda_launch.CUDAFunction.launch = counted  # type: ignore[method-assign]
    os.environ["MPSGRAD_HYPOTHESIS_PROFILE"] = "sanitizer"
    arguments = sys.argv[1:] or [str(TESTS / "kernels")]
    status = pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", *arguments])
    never = sorted(kernels() - started)
    print(f"{len(started)} kernel functions ran; {len(never)} did not: {', '.join(never) or 'none'}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
