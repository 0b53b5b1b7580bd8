"""Several devices of one machine, each with its own images, kernels and command buffers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from fake_device import FakeDevice

import mpsgrad as mg
from mpsgrad import devices as registry

DEVICES = [device for device in mg.available_devices() if device.family == mg.default_device().family]
X = np.random.default_rng(8).standard_normal((3, 9, 8, 5)).astype(np.float32)
G = np.random.default_rng(9).standard_normal((3, 8, 7, 5)).astype(np.float32)

needs_several = pytest.mark.skipif(len(DEVICES) < 2, reason="needs two devices of one kind")


def step(device: mg.Device) -> tuple[mg.Image, mg.Image]:
    """A forward and a backward pass on ``device``."""
    window = {"kernel_width": 2, "kernel_height": 2, "device": device}
    forward, gradient = mg.PoolingMax(record_maxima=True, **window), mg.PoolingMaxGradient(**window)
    forward.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
    source, incoming = (mg.Image.from_array(each, device) for each in (X, G))
    with mg.CommandBuffer(device) as commands:
        y, state = forward.encode(commands, source, return_state=True)
        dx = gradient.encode(commands, incoming, source, state)
    return y, dx


@needs_several
def test_each_device_gives_the_same_bits() -> None:
    first, *others = [[np.asarray(image) for image in step(device)] for device in DEVICES]
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@needs_several
def test_threads_may_use_a_device_each() -> None:
    exact = [np.asarray(image) for image in step(DEVICES[0])]
    with ThreadPoolExecutor(len(DEVICES)) as pool:
        for images in pool.map(step, DEVICES * 5):
            for image, expected in zip(images, exact, strict=True):
                np.testing.assert_array_equal(np.asarray(image), expected)


@needs_several
def test_an_image_of_another_device_is_refused() -> None:
    ours, theirs = DEVICES[:2]
    with pytest.raises(mg.StateError, match=f"{theirs.identifier}.*{ours.identifier}"):
        mg.SoftMax(device=ours).encode(mg.CommandBuffer(ours), mg.Image.from_array(X, theirs))
    with pytest.raises(mg.StateError, match=f"{theirs.identifier}.*{ours.identifier}"):
        mg.SoftMax(device=ours).encode(mg.CommandBuffer(theirs), mg.Image.from_array(X, ours))


def test_threads_that_look_for_a_device_at_once_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices() -> list[FakeDevice]:
        time.sleep(0.05)
        return [FakeDevice()]

    monkeypatch.setattr(registry, "driver", lambda name: SimpleNamespace(devices=devices))
    monkeypatch.setattr(registry, "_devices_of", cache(registry._devices_of.__wrapped__))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(registry.find_device, ["opencl"] * 4))
    assert all(device is found[0] for device in found)
