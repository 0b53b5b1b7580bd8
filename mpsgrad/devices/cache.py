"""Compiled programs on disk: content-addressed files that may vanish, be damaged or be written by several processes.

Each file is the SHA-256 of its payload followed by the payload, written to a temporary name and renamed into place, so
a reader sees a whole file or none. A file that does not match its digest counts as absent, and no failure of the file
system is an error: it costs a compilation.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
from functools import cache as once
from pathlib import Path

_DIGEST_BYTES = 32


def directory() -> Path:
    """The folder of the cache: ``MPSGRAD_CACHE`` if set, else the user's cache folder.

    That is where each system keeps caches: ``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux, ``~/Library/Caches`` on macOS,
    ``%LOCALAPPDATA%`` on Windows. Three lines are not worth a package that GPU machines often lack.
    """
    chosen = os.environ.get("MPSGRAD_CACHE")
    if chosen:
        return Path(chosen)
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "mpsgrad" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "mpsgrad"
    # A relative path is invalid by the XDG specification and has to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else home / ".cache") / "mpsgrad"


def key(*parts: str) -> str:
    """The name under which a result that depends on all ``parts`` is kept."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@once
def processor() -> str:
    """What compiled programs for this machine's CPU depend on: its instruction sets, and Intel's settings for it."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("CL_CONFIG_CPU_"))
    return "\n".join([_instruction_sets(), *settings])


def _instruction_sets() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line for line in lines if line.startswith("flags")), "") or platform.processor()
    except OSError:
        return platform.processor()


def contains(name: str) -> bool:
    """Whether a file of that name exists; it may still turn out to be damaged."""
    try:
        return (directory() / name).is_file()
    except OSError:
        return False


def load(name: str) -> bytes | None:
    """The payload kept under ``name``, or None if there is none that is whole."""
    try:
        data = (directory() / name).read_bytes()
    except OSError:
        return None
    digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return payload if hashlib.sha256(payload).digest() == digest else None


def store(name: str, payload: bytes) -> None:
    """Keeps ``payload`` under ``name``; does nothing where the folder cannot be written."""
    folder = directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".partial-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(payload).digest())
                file.write(payload)
            os.replace(temporary, folder / name)
        except OSError:
            os.unlink(temporary)
    except OSError:
        return
