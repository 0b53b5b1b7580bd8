"""Kernels that are compiled before the first row."""

from __future__ import annotations

import mpsgrad as mg
from bench.kernels import all_kernels, compile_kernels
from mpsgrad.shader import families


def test_they_are_in_the_cache_then(device: mg.Device, tmp_path, monkeypatch):
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path))
    monkeypatch.setenv("MPSGRAD_COMPILES_FOR_ANOTHER", "1")
    family = families()["fill"]
    assert ("fill", "float") in all_kernels()
    (kernel,) = family.kernels(device, "float")
    source = family.function_source(device, kernel, "float")
    assert not device.is_compiled(source, name=family.path)
    compile_kernels(device, [("fill", "float")])
    assert device.is_compiled(source, name=family.path)
