"""Random programs of statements: what a C++ compiler computes of the same text, Metal computes bit for bit.

They hold no number that a float or a half does not have exactly. ``g++`` is asked for; the long run fails without it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fuzz_statement_programs import StatementProgram
from fuzz_typed import INPUTS, LANES, SLOTS
from host_programs import run_on_host
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
PROGRAMS_PER_SOURCE = 10
QUICK_PROGRAMS, NIGHTLY_PROGRAMS = 3, 400
NOTHING_LEFT_OPEN = ("-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover")


def inputs(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1001, (LANES, INPUTS)).astype(np.int32)


def drawn(seeds: Sequence[int]) -> tuple[list[StatementProgram], str]:
    """Programs, those of odd seeds with lambda expressions, and the source of all."""
    programs = [StatementProgram(seed, has_lambdas=seed % 2 == 1) for seed in seeds]
    return programs, HEADER + "".join(program.source for program in programs)


def refused(program: StatementProgram) -> str:
    try:
        mg.compile(HEADER + program.source, language_version="3.2").function(program.name)
    except ShaderError as error:
        return f"{error}\n{program.source}"
    return ""


def check(seeds: Sequence[int], folder: Path, *options: str) -> None:
    programs, source = drawn(seeds)
    x = inputs(seeds[0])
    expected = run_on_host(source, [program.name for program in programs], x, (LANES, SLOTS), folder, *options)
    try:
        library = mg.compile(source, language_version="3.2")
        functions = [library.function(program.name) for program in programs]
    except ShaderError:
        pytest.fail("\n".join(refused(program) for program in programs))
    for program, function, wanted in zip(programs, functions, expected, strict=True):
        y = np.zeros((LANES, SLOTS), np.int32)
        function(LANES, x, y, threadgroup=LANES)
        np.testing.assert_array_equal(y, wanted, err_msg=program.source)


def batches(first: int, last: int) -> list[range]:
    return [range(start, start + PROGRAMS_PER_SOURCE) for start in range(first, last, PROGRAMS_PER_SOURCE)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_random_statements(tmp_path: Path) -> None:
    check(range(QUICK_PROGRAMS), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_PROGRAMS, NIGHTLY_PROGRAMS), ids=str)
def test_many_random_statements(seeds: range, tmp_path: Path) -> None:
    check(seeds, tmp_path, *NOTHING_LEFT_OPEN)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_PROGRAMS, NIGHTLY_PROGRAMS), ids=str)
def test_statements_for_nvidia(seeds: range) -> None:
    _, source = drawn(seeds)
    compile_for_cuda(translate(source, "cuda", launch="row", definitions={"__METAL_VERSION__": "320"}).source, "a.cu")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(0, NIGHTLY_PROGRAMS, 20))
def test_nothing_is_found_in_statements_that_mean_something(seed: int, opencl_device: mg.Device) -> None:
    (program,), source = drawn([seed])
    function = mg.compile(source, language_version="3.2", device=opencl_device).function(program.name)
    findings = function.check(LANES, inputs(seed), np.zeros((LANES, SLOTS), np.int32), threadgroup=LANES)
    assert not findings, f"{findings}\n{source}"
