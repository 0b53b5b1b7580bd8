"""Compiling the float32 kernels when the package is imported, on every core, and finding that it was done before.

``import mpsgrad`` compiles them. Importing a module inside the package, as ``import mpsgrad.metalcompute`` and the
``mpsgrad`` command do, compiles nothing: kernels are then compiled at their first use, or by ``compile_once``.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mpsgrad.devices import Device, cache, default_device, find_device
from mpsgrad.errors import MPSGradError, ShaderError
from mpsgrad.shader import ShaderFamily, families, shader_directory

PROGRESS_AFTER_SECONDS = 1.0
DTYPES_AT_IMPORT = ("float",)
"""Kernels for float16 images are compiled at their first use, which halves the first import."""

_HELPERS_AT_MOST = 3
_HELPER_MARK = "MPSGRAD_COMPILES_FOR_ANOTHER"
_IMPORT_SYSTEM = ("importlib._bootstrap", "_frozen_importlib", "runpy")
_DRIVER_DISTRIBUTIONS = ("metalcompute", "cuda-core", "pyopencl", "intel-opencl-rt")

Kernel = tuple[ShaderFamily, str, str]
"""A family, the name of a kernel function in it, and the type of images that it is for."""


def compile_library(device: Device | None = None) -> float:
    """Compiles what the cache on disk does not hold yet, with a progress line when that takes more than a second.

    Returns the seconds it took. A shader that the device's compiler refuses raises at its first use, not here. Raises
    ``DeviceNotFoundError`` without a device.
    """
    device = device or default_device()
    started = time.perf_counter()
    waiting = _waiting(device)
    with _helpers(device, len(waiting)):
        for done, (family, name, dtype) in enumerate(waiting, 1):
            with contextlib.suppress(ShaderError):
                family.function(device, name, dtype)
            if time.perf_counter() - started > PROGRESS_AFTER_SECONDS:
                _progress(f"mpsgrad: compiling Metal kernels for {device.name}: {done}/{len(waiting)}")
    seconds = time.perf_counter() - started
    if waiting and seconds > PROGRESS_AFTER_SECONDS:
        _progress(f"mpsgrad: compiled {len(waiting)} Metal kernels in {seconds:.1f} s", end="\n")
    return seconds


def _waiting(device: Device) -> list[Kernel]:
    return [
        (family, name, dtype)
        for family in families().values()
        if family.ahead_of_time
        for dtype in family.dtypes
        if dtype in DTYPES_AT_IMPORT
        for name in _kernels(family, dtype, device)
        if not _is_compiled(family, name, dtype, device)
    ]


def _kernels(family: ShaderFamily, dtype: str, device: Device) -> tuple[str, ...]:
    try:
        return family.kernels(device, dtype)
    except ShaderError:
        return ()


def _is_compiled(family: ShaderFamily, name: str, dtype: str, device: Device) -> bool:
    return device.is_compiled(family.function_source(device, name, dtype), name=family.path)


@contextlib.contextmanager
def _helpers(device: Device, count: int) -> Iterator[None]:
    """Processes that compile kernels into the cache on disk while the block runs.

    Intel's compiler builds one program at a time in a process, so threads would not help. Each process goes round the
    kernels from a place of its own and passes over those that the cache holds by then, as the block does. Without them,
    or if they fail, the block compiles everything itself.
    """
    helpers: list[subprocess.Popen[bytes]] = []
    cores = min(device.compute_units, os.cpu_count() or 1)
    if sys.executable and count > 1:
        for index in range(1, min(cores, count, _HELPERS_AT_MOST + 1)):
            command = [sys.executable, "-m", "mpsgrad.precompile", device.identifier, str(index / cores)]
            with contextlib.suppress(OSError):
                helpers.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, _HELPER_MARK: "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
    try:
        yield
    finally:
        for helper in helpers:
            helper.terminate()
        for helper in helpers:
            helper.wait()


def _help(identifier: str, start: float) -> None:
    """What such a process does: ``start`` is its first kernel's place in the list, from 0 to 1."""
    device = find_device(identifier)
    waiting = _waiting(device)
    first = int(start * len(waiting))
    for family, name, dtype in waiting[first:] + waiting[:first]:
        if not _is_compiled(family, name, dtype, device):
            with contextlib.suppress(ShaderError):
                family.function(device, name, dtype)


def _progress(text: str, end: str = "") -> None:
    if sys.stderr is not None:
        lead = "\r\x1b[K" if sys.stderr.isatty() else ""
        if lead or end:
            print(f"{lead}{text}", end=end, file=sys.stderr, flush=True)


def _stamp(device: Device | None) -> str:
    """A name for the state of everything that compiled shaders depend on, found without loading a driver.

    Files count by size and time of change, packages by version.
    """
    package = str(Path(__file__).parent)
    files = [*_files(package, (".py", ".h", ".toml")), *_files(str(shader_directory()), (".j2",))]
    marks = []
    for file in sorted(files):
        status = os.stat(file)
        marks.append(f"{file}:{status.st_size}:{status.st_mtime_ns}")
    for name in _DRIVER_DISTRIBUTIONS:
        try:
            marks.append(f"{name}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    chosen = device.identifier if device is not None else os.environ.get("MPSGRAD_DEVICE", "")
    return "compiled-" + cache.key(*marks, chosen, cache.processor())


def _files(folder: str, endings: tuple[str, ...]) -> Iterator[str]:
    """The files below ``folder`` with one of the ``endings``; ``Path.rglob`` takes three to five times as long."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(endings):
                yield f"{parent}{os.sep}{name}"


def compile_once(device: Device | None = None) -> None:
    """``compile_library``, unless the cache on disk says that this was done before for ``device``."""
    stamp = _stamp(device)
    if not cache.contains(stamp):
        compile_library(device)
        cache.store(stamp, b"")


def _is_for_a_module_inside() -> bool:
    """Whether the package is being imported because one of its modules is.

    Python runs a package's ``__init__`` first and does not tell it what for; the import system's own calls, further
    down the stack, do. Where they do not, the answer is no.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in _IMPORT_SYSTEM:
            wanted = frame.f_locals.get("mod_name") or frame.f_locals.get("name")
            if isinstance(wanted, str) and wanted.startswith(f"{__package__}."):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def compile_at_import() -> None:
    """What ``import mpsgrad`` does, unless it is only for a module inside: ``compile_once`` for the default device.

    Without a device, or where the device fails, the first use says what is wrong.
    """
    if _HELPER_MARK not in os.environ and not _is_for_a_module_inside():
        with contextlib.suppress(MPSGradError):
            compile_once()


if __name__ == "__main__":
    _help(sys.argv[1], float(sys.argv[2]))
