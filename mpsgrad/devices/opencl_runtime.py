"""Which OpenCL devices there are: where pip put Intel's runtime, and what a device needs to run translated Metal."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mpsgrad.devices import cache

if TYPE_CHECKING:
    import pyopencl

INSTALL_HINT = "pip install pyopencl intel-opencl-rt intel-cmplr-lib-rt"

_RUNTIME_DISTRIBUTION = "intel-opencl-rt"
_RUNTIME_LIBRARY = "intelocl64.dll" if sys.platform == "win32" else "libintelocl.so"
_REQUIRED_EXTENSIONS = ("cl_khr_fp16", "cl_khr_subgroup_shuffle", "cl_intel_required_subgroup_size")


def _runtime_library() -> Path | None:
    """The runtime's shared library as pip installed it, or None."""
    try:
        files = importlib.metadata.files(_RUNTIME_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == _RUNTIME_LIBRARY:
            return Path(str(file.locate())).resolve()
    return None


def _register_runtime() -> None:
    """Tells the OpenCL loader where pip put the runtime; must run before ``pyopencl`` is imported.

    The ``.icd`` files inside the wheel name a folder that does not exist on the user's machine. A folder of corrected
    ones is written beside the cache, with the system's own entries, unless the user points the loader elsewhere.
    """
    library = _runtime_library()
    if library is None:
        return
    if sys.platform == "win32":
        os.environ.setdefault("OCL_ICD_FILENAMES", str(library))
        return
    if "OCL_ICD_VENDORS" in os.environ:
        return
    entries = {"mpsgrad-intel-cpu.icd": f"{library}\n"}
    for system in sorted(Path("/etc/OpenCL/vendors").glob("*.icd")):
        try:
            entries[system.name] = system.read_text()
        except OSError:
            continue
    name = f"vendors-{cache.key(*entries, *entries.values())[:16]}"
    for parent in (cache.directory(), Path(tempfile.gettempdir()) / f"mpsgrad-{os.getuid()}"):
        folder = parent / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in entries.items():
                path = folder / file
                if not path.is_file() or path.read_text() != content:
                    partial = folder / f".{os.getpid()}-{file}"
                    partial.write_text(content)
                    os.replace(partial, path)
        except OSError:
            continue
        os.environ["OCL_ICD_VENDORS"] = str(folder)
        return


def unavailable_reason() -> str | None:
    """Why no device of this driver can be used, in words that say what to install; None if there is one."""
    if importlib.util.find_spec("pyopencl") is None:
        return f"the Python package pyopencl is not installed ({INSTALL_HINT})"
    if usable():
        return None
    return f"{'; '.join(refused()) or 'no OpenCL device was found'} ({INSTALL_HINT})"


def usable() -> list[pyopencl.Device]:
    """The devices that can run translated Metal kernels."""
    return [handle for handle in _handles() if _missing(handle) is None]


def refused() -> list[str]:
    """One line for each OpenCL device that is present but cannot run Metal kernels, with the reason."""
    return [
        f"{handle.name.strip()} ({handle.platform.name.strip()}): {reason}"
        for handle in _handles()
        if (reason := _missing(handle)) is not None
    ]


def _handles() -> list[pyopencl.Device]:
    """Every OpenCL device; none without ``pyopencl``, without a platform, and on platforms that do not answer."""
    if importlib.util.find_spec("pyopencl") is None:
        return []
    _register_runtime()
    import pyopencl as cl

    handles: list[pyopencl.Device] = []
    with contextlib.suppress(cl.Error):
        for platform in cl.get_platforms():
            with contextlib.suppress(cl.Error):
                handles += platform.get_devices()
    return handles


def _missing(device: pyopencl.Device) -> str | None:
    """What ``device`` lacks, or None if it has everything."""
    extensions = device.extensions.split()
    missing = [name for name in _REQUIRED_EXTENSIONS if name not in extensions]
    if missing:
        return "lacks " + ", ".join(missing)
    if not device.host_unified_memory:
        return "does not share memory with the host"
    if not _takes_addresses(device):
        return "does not let kernels use any address of the host's"
    return None


def _takes_addresses(device: pyopencl.Device) -> bool:
    import pyopencl as cl

    with contextlib.suppress(cl.Error):
        return bool(device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM)
    return False
