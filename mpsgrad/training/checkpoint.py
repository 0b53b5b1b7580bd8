"""Checkpoints: a training run's arrays and numbers in a safetensors file that is whole or not there.

A file ``checkpoint-STEP.safetensors`` has the arrays as tensors. Its metadata has two entries: ``mpsgrad.checkpoint``,
a JSON object with ``version``, ``step`` and the ``numbers`` of the run, and ``sha256``, the checksum of that text and
of the names, types, extents and bytes of all tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpsgrad.errors import CheckpointError

VERSION = 1
KEPT = 2

_ENTRY = "mpsgrad.checkpoint"
_CHECKSUM = "sha256"
_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after ``step`` steps: arrays by name, and numbers that JSON can hold."""

    step: int
    arrays: Mapping[str, np.ndarray]
    numbers: dict[str, Any] = field(default_factory=dict)


class CheckpointFolder:
    """The checkpoints of one run: a folder of files, of which the last ``KEPT`` are there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> dict[int, Path]:
        """The files by their steps, the last one first."""
        found = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for file in self.folder.iterdir():
                match = _NAME.fullmatch(file.name)
                if match:
                    found[int(match[1])] = file
        return dict(sorted(found.items(), reverse=True))

    def save(self, checkpoint: Checkpoint) -> Path:
        """Writes ``checkpoint`` and then removes all but this one and the one before it.

        The bytes go to a new file, which is synced and then renamed, and the folder is synced; so a process or machine
        that stops at any moment leaves the checkpoints from before whole. Raises ``CheckpointError`` if the file cannot
        be written, as on a full disk; the checkpoints from before are then as they were.
        """
        data = to_bytes(checkpoint)
        file = self.folder / f"checkpoint-{checkpoint.step:08d}.safetensors"
        unfinished = file.with_name(file.name + _UNFINISHED)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                _write_synced(unfinished, data)
                os.replace(unfinished, file)
            except OSError:
                with contextlib.suppress(OSError):
                    unfinished.unlink(missing_ok=True)
                raise
            _sync_folder(self.folder)
            self._remove_all_but_the_last(checkpoint.step)
        except OSError as error:
            before = next(iter(self.files().values()), None)
            rest = f"the last checkpoint is {before}" if before else "there is no checkpoint from before"
            raise CheckpointError(
                f"{file}: cannot write {len(data)} bytes: {error.strerror or error}; {rest}"
            ) from error
        return file

    def _remove_all_but_the_last(self, step: int) -> None:
        """Files above ``step`` go, too: they are damaged or of a run that this one takes the place of."""
        files = self.files()
        kept = [each for each in files if each <= step][:KEPT]
        for each, file in files.items():
            if each not in kept:
                file.unlink(missing_ok=True)
        for file in self.folder.glob(f"checkpoint-*{_UNFINISHED}"):
            file.unlink(missing_ok=True)

    def last(self) -> tuple[Checkpoint | None, list[CheckpointError]]:
        """The last checkpoint that is whole, or None without one; and what is wrong with those after it."""
        damaged: list[CheckpointError] = []
        for file in self.files().values():
            try:
                return read(file), damaged
            except CheckpointError as error:
                damaged.append(error)
        return None, damaged


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """The contents of a checkpoint's file."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in checkpoint.arrays.items()}
    text = json.dumps({"version": VERSION, "step": checkpoint.step, "numbers": checkpoint.numbers}, sort_keys=True)
    return save(arrays, {_ENTRY: text, _CHECKSUM: _checksum(text, arrays)})


def read(file: Path) -> Checkpoint:
    """The checkpoint in ``file``. Raises ``CheckpointError`` if that cannot be read, is damaged or of another version.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{file}: is damaged: {error}") from None
    text, checksum = metadata.get(_ENTRY), metadata.get(_CHECKSUM)
    if text is None or checksum is None:
        raise CheckpointError(f"{file}: is no checkpoint, or damaged: it has no {_ENTRY} or no {_CHECKSUM}")
    if _checksum(text, arrays) != checksum:
        raise CheckpointError(f"{file}: is damaged: its contents do not have its checksum")
    found = json.loads(text)
    if found["version"] != VERSION:
        raise CheckpointError(f"{file}: has version {found['version']}; this program reads version {VERSION}")
    return Checkpoint(found["step"], arrays, found["numbers"])


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()


def _write_synced(file: Path, data: bytes) -> None:
    with open(file, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    """Has the folder's entries written, so that a rename outlives a failure of the power. Windows does it by itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
