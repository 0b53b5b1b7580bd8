"""The OpenCL driver's memory: recycling while work is in flight, and views that outlive their buffers."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.errors import ShaderError

SHAPE = (16, 56, 56, 64)


def test_memory_of_a_dropped_submission_is_not_recycled_while_it_runs(opencl_device: mg.Device) -> None:
    source = mg.Image.from_array(np.ones(SHAPE, np.float32), opencl_device)
    kernel = mg.SoftMax(device=opencl_device)
    for _ in range(10):
        commands = mg.CommandBuffer(opencl_device)
        for _ in range(4):
            result = kernel.encode(commands, source)
        commands.commit()
        del result, commands
        reused = [mg.Image.from_array(np.full(SHAPE, 7, np.float32), opencl_device) for _ in range(4)]
        marker = mg.CommandBuffer(opencl_device)
        kernel.encode(marker, source)
        marker.commit()
        marker.wait_until_completed()
        assert all((np.asarray(image) == 7).all() for image in reused)


def test_a_view_keeps_its_memory(opencl_device: mg.Device) -> None:
    image = mg.Image.from_array(np.full(SHAPE, 3, np.float32), opencl_device)
    view = np.asarray(image)
    del image
    gc.collect()
    others = [mg.Image.from_array(np.zeros(SHAPE, np.float32), opencl_device) for _ in range(3)]
    assert (view == 3).all()
    assert len(others) == 3


def test_parts_of_a_buffer_keep_its_memory(opencl_device: mg.Device) -> None:
    alignment = opencl_device.part_alignment
    assert alignment is not None
    whole = opencl_device.allocate(4 * alignment)
    parts = [whole.part(k * alignment, alignment) for k in range(4)]
    for number, part in enumerate(parts):
        part.write(np.full(alignment, number, np.uint8))
    np.testing.assert_array_equal(whole.read(0, whole.nbytes), np.repeat(np.arange(4, dtype=np.uint8), alignment))
    del whole
    gc.collect()
    other = opencl_device.allocate(4 * alignment)
    other.write(np.full(4 * alignment, 9, np.uint8))
    assert [part.read(0, 1)[0] for part in parts] == [0, 1, 2, 3]


def test_freed_memory_is_used_again(opencl_device: mg.Device) -> None:
    first = opencl_device.allocate(1 << 20)
    address = first.memory.ctypes.data if first.memory is not None else 0
    del first
    gc.collect()
    second = opencl_device.allocate(1 << 20)
    assert second.memory is not None
    assert second.memory.ctypes.data == address


def test_too_much_memory_names_what_was_asked_for(opencl_device: mg.Device) -> None:
    with pytest.raises(mg.DeviceError, match=r"cannot allocate \d+ bytes; the device has \d+"):
        opencl_device.allocate(1 << 60)


def test_source_that_does_not_compile_leaves_no_file(
    opencl_device: mg.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ShaderError, match="use of undeclared identifier"):
        mg.compile("kernel void f(device float* x) { x[0] = undeclared; }", device=opencl_device)
    assert list(tmp_path.iterdir()) == []
