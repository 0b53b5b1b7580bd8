"""Checkpoints: what is written comes back, damage is named, and a failure leaves the ones from before whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad.training import checkpoint as module
from mpsgrad.training.checkpoint import Checkpoint, CheckpointFolder, read, to_bytes

RANDOM = np.random.default_rng(4)


def made(step: int) -> Checkpoint:
    strided = RANDOM.random((1, 2, 2, 3), np.float32).T
    arrays = {"none": np.zeros((0, 2), np.float32), "first.weights": strided, "first.biases": strided[:, 0, 0, 0]}
    return Checkpoint(step, arrays, {"rate": 0.1, "generator": RANDOM.bit_generator.state, "losses": [1 / 3]})


def same(one: Checkpoint | None, other: Checkpoint) -> bool:
    return (
        one is not None
        and (one.step, one.numbers, one.arrays.keys()) == (other.step, other.numbers, other.arrays.keys())
        and all((array == one.arrays[name]).all() for name, array in other.arrays.items())
    )


def test_what_is_saved_comes_back_and_the_last_two_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "new" / "checkpoints")
    assert folder.last() == (None, []) and folder.files() == {}
    saved = [made(step) for step in (5, 10, 15)]
    for each in saved:
        folder.save(each)
        last, damaged = folder.last()
        assert same(last, each) and not damaged
    assert sorted(path.name for path in folder.folder.iterdir()) == [
        "checkpoint-00000010.safetensors",
        "checkpoint-00000015.safetensors",
    ]
    (folder.folder / "checkpoint-00000020.safetensors.unfinished").write_bytes(b"half")
    folder.save(made(12))
    assert list(folder.files()) == [12, 10] and len(list(folder.folder.iterdir())) == 2


CONTENT = to_bytes(made(7))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 8 * len(CONTENT) - 1), truncates=st.booleans())
def test_a_flipped_bit_or_a_missing_end_is_found(tmp_path: Path, place: int, truncates: bool) -> None:
    folder = CheckpointFolder(tmp_path)
    damaged = bytearray(CONTENT)
    damaged[place // 8] ^= 1 << place % 8
    file = tmp_path / "checkpoint-00000007.safetensors"
    file.write_bytes(CONTENT[: place // 8] if truncates else damaged)
    before = made(3)
    tmp_path.joinpath("checkpoint-00000003.safetensors").write_bytes(to_bytes(before))
    last, errors = folder.last()
    assert same(last, before)
    (error,) = errors
    assert str(file) in str(error) and "damaged" in str(error)


@pytest.mark.parametrize(
    ("written", "other"), [(b'"F32"', b'"I32"'), (b"[3,2,2,1]", b"[2,3,2,1]"), (b"[0,2]", b"[2,0]")]
)
def test_types_and_extents_belong_to_the_checksum(tmp_path: Path, written: bytes, other: bytes) -> None:
    file = tmp_path / "checkpoint-00000007.safetensors"
    assert written in CONTENT
    file.write_bytes(CONTENT.replace(written, other, 1))
    with pytest.raises(mg.CheckpointError, match="is damaged: its contents do not have its checksum"):
        read(file)


def test_other_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint-00000001.safetensors"
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(3)}, file)
    with pytest.raises(mg.CheckpointError, match="is no checkpoint, or damaged: it has no mpsgrad.checkpoint"):
        read(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "VERSION", 99)
        file.write_bytes(to_bytes(made(1)))
    with pytest.raises(mg.CheckpointError, match="has version 99; this program reads version 1"):
        read(file)
    with pytest.raises(mg.CheckpointError, match="cannot be read"):
        read(tmp_path / "nothing")


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_full_disk_is_an_error_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    folder = CheckpointFolder(tmp_path)
    kept = made(1)
    folder.save(kept)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Half:
        """A file on a disk that is full after half of the bytes."""

        def __init__(self, *arguments: Any) -> None:
            self.file = open(*arguments)

        def __enter__(self) -> Half:
            return self

        def __exit__(self, *_: Any) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[: len(data) // 2])
            full()

    with monkeypatch.context() as patch:
        if failing == "write":
            patch.setattr(module, "open", Half, raising=False)
        else:
            patch.setattr(os, failing, full)
        with pytest.raises(mg.CheckpointError) as caught:
            folder.save(made(2))
    said = str(caught.value)
    assert "checkpoint-00000002.safetensors: cannot write" in said and os.strerror(errno.ENOSPC) in said
    assert "the last checkpoint is " in said and "checkpoint-00000001.safetensors" in said
    last, damaged = folder.last()
    assert same(last, kept) and not damaged
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.safetensors"]
    folder.save(made(2))
    assert list(folder.files()) == [2, 1]


def test_the_file_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        sync(descriptor)

    def noted_replace(source: Any, target: Any) -> None:
        calls.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    CheckpointFolder(tmp_path).save(made(1))
    assert calls == ["file", "name", "folder"] or not os.path.isdir("/proc/self/fd")
