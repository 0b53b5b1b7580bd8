"""Every name of metal_stdlib in every type and width against float64 and exact integers, within Metal's accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import pytest
from cuda_compiler import compile_for_cuda, needs_compiler
from metal_functions import Function
from metal_manifest import FUNCTIONS
from metal_probes import PROBES, Probe
from metal_programs import HEADER, Case, cases_of, program, programs

import mpsgrad as mg
from mpsgrad.devices import DRIVERS, available_devices

PROBES_PER_PROGRAM = 20
ENGINES = [
    next(device for device in available_devices() if device.identifier.startswith(driver))
    for driver in DRIVERS
    if any(device.identifier.startswith(driver) for device in available_devices())
]
SLOW_FUNCTIONS = [function for function in FUNCTIONS if cases_of(function, thorough=True) != cases_of(function)]


@cache
def groups(fast_math: bool, thorough: bool) -> tuple[tuple[Case, ...], ...]:
    return programs(FUNCTIONS, fast_math, thorough=thorough)


@lru_cache(maxsize=4)
def library(device: mg.Device, cases: tuple[Case, ...]) -> mg.KernelLibrary:
    return mg.compile(program(cases), device=device, fast_math=cases[0].fast_math)


@cache
def probe_groups() -> tuple[tuple[Probe, ...], ...]:
    return tuple(
        tuple(PROBES[first : first + PROBES_PER_PROGRAM]) for first in range(0, len(PROBES), PROBES_PER_PROGRAM)
    )


@lru_cache(maxsize=2)
def probe_library(device: mg.Device, probes: tuple[Probe, ...]) -> mg.KernelLibrary:
    return mg.compile(HEADER + "".join(probe.source for probe in probes), device=device)


def check(device: mg.Device, function: Function, *, thorough: bool) -> None:
    wrong = []
    for case in cases_of(function, thorough=thorough):
        together = next(group for group in groups(case.fast_math, thorough) if case in group)
        worst = case.worst(case.run(library(device, together)))
        if worst.error > case.bound + 1e-6:
            wrong.append(worst.description)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("device", ENGINES, ids=lambda device: device.identifier)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.identifier)
def test_function(function: Function, device: mg.Device) -> None:
    check(device, function, thorough=False)


@pytest.mark.nightly
@pytest.mark.parametrize("device", ENGINES, ids=lambda device: device.identifier)
@pytest.mark.parametrize("function", SLOW_FUNCTIONS, ids=lambda function: function.identifier)
def test_function_in_every_width(function: Function, device: mg.Device) -> None:
    check(device, function, thorough=True)


@pytest.mark.parametrize("device", ENGINES, ids=lambda device: device.identifier)
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.kernel_name)
def test_probe(probe: Probe, device: mg.Device) -> None:
    together = next(group for group in probe_groups() if probe in group)
    assert probe.run(probe_library(device, together)) <= probe.bound


@needs_compiler
@pytest.mark.parametrize("cases", groups(True, False), ids=lambda cases: cases[0].function.identifier + " ...")
def test_functions_compile_for_cuda(cases: Sequence[Case]) -> None:
    compile_for_cuda(program([case for case in cases if not case.in_simdgroup]))


@needs_compiler
@pytest.mark.parametrize("probes", probe_groups(), ids=lambda probes: probes[0].kernel_name + " ...")
def test_probes_compile_for_cuda(probes: Sequence[Probe]) -> None:
    compile_for_cuda(HEADER + "".join(probe.source for probe in probes))
