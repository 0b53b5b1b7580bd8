"""Random programs of expressions: integers equal bit for bit, floats within the bounds that their errors add up to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fuzz_choices import ChoicesProgram, WaitingChoicesProgram
from fuzz_classes import ClassProgram
from fuzz_constructs import ConstructProgram
from fuzz_flow import FlowProgram, WaitingProgram
from fuzz_loops import LoopProgram
from fuzz_programs import LANES, Generator, Program
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import translate

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
PROGRAMS_PER_SOURCE = 25
QUICK_PROGRAMS, NIGHTLY_PROGRAMS = 100, 2500
QUICK_LOOPS, QUICK_FLOW, QUICK_CONSTRUCTS, QUICK_CHOICES, QUICK_CLASSES = 50, 25, 12, 6, 50


def mistake(program: Program, library: mg.KernelLibrary) -> str:
    arrays = program.arguments()
    library.function(program.name)(LANES, *arrays)
    return program.mistake(arrays)


def is_wrong(program: Program) -> str:
    """Why ``program`` alone is wrong, or empty."""
    try:
        return mistake(program, mg.compile(HEADER + program.source()))
    except ShaderError as error:
        return str(error)


def shortest(program: Program) -> Program:
    """The first statements of ``program`` up to the one that makes it wrong."""
    counts = range(len(program.statements) + 1)
    return next((p for p in map(program.shortened, counts) if is_wrong(p)), program)


def check(seeds: Sequence[int]) -> None:
    programs = [Generator(seed).program() for seed in seeds]
    try:
        library = mg.compile(HEADER + "".join(program.source() for program in programs))
    except ShaderError:
        wrong = [program for program in programs if is_wrong(program)]
    else:
        wrong = [program for program in programs if mistake(program, library)]
    reports = [f"{is_wrong(small)}\n{small.source()}" for small in map(shortest, wrong[:3])]
    assert not wrong, f"{len(wrong)} of {len(programs)} programs are wrong\n" + "\n".join(reports)


def batches(first: int, last: int) -> list[range]:
    return [range(start, start + PROGRAMS_PER_SOURCE) for start in range(first, last, PROGRAMS_PER_SOURCE)]


@pytest.mark.parametrize("seeds", batches(0, QUICK_PROGRAMS), ids=str)
def test_random_programs(seeds: range) -> None:
    check(seeds)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_PROGRAMS, NIGHTLY_PROGRAMS), ids=str)
def test_many_random_programs(seeds: range) -> None:
    check(seeds)


def check_threads(kind: type[LoopProgram] | type[FlowProgram] | type[ClassProgram], seeds: Sequence[int]) -> None:
    programs = [kind(seed) for seed in seeds]
    # Lambda expressions came with the language's version 3.2.
    version = "3.2" if issubclass(kind, ConstructProgram) else "2.3"
    library = mg.compile(HEADER + "".join(program.source() for program in programs), language_version=version)
    x = np.random.default_rng(seeds[0]).integers(-20, 20, 3 * LANES).astype(np.int32).view(np.uint32)
    for program in programs:
        expected = program.expected(x, 3)
        y = np.zeros(expected.shape, np.uint32)
        library.function(program.name)(LANES, x, y, np.int32(3))
        np.testing.assert_array_equal(y, expected, err_msg=program.source())


@pytest.mark.parametrize("seeds", batches(0, QUICK_LOOPS), ids=str)
def test_random_loops(seeds: range) -> None:
    check_threads(LoopProgram, seeds)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_LOOPS, NIGHTLY_PROGRAMS), ids=str)
def test_many_random_loops(seeds: range) -> None:
    check_threads(LoopProgram, seeds)


@pytest.mark.parametrize("seeds", batches(0, QUICK_CLASSES), ids=str)
def test_random_classes(seeds: range) -> None:
    check_threads(ClassProgram, seeds)


def test_random_classes_compile_for_cuda() -> None:
    source = HEADER + "".join(ClassProgram(seed).source() for seed in range(PROGRAMS_PER_SOURCE))
    compile_for_cuda(translate(source, "cuda", launch="box").source, "classes.metal")


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_CLASSES, NIGHTLY_PROGRAMS), ids=str)
def test_many_random_classes(seeds: range) -> None:
    check_threads(ClassProgram, seeds)


@pytest.mark.parametrize("seeds", batches(0, QUICK_FLOW), ids=str)
def test_random_flow(seeds: range) -> None:
    check_threads(FlowProgram, seeds)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_FLOW, NIGHTLY_PROGRAMS), ids=str)
def test_much_random_flow(seeds: range) -> None:
    check_threads(FlowProgram, seeds)


@pytest.mark.parametrize("seeds", [range(QUICK_CONSTRUCTS)], ids=str)
def test_random_constructs(seeds: range) -> None:
    check_threads(ConstructProgram, seeds)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_CONSTRUCTS, NIGHTLY_PROGRAMS), ids=str)
def test_many_random_constructs(seeds: range) -> None:
    check_threads(ConstructProgram, seeds)


@pytest.mark.parametrize("seeds", batches(0, QUICK_FLOW), ids=str)
def test_random_barriers(seeds: range) -> None:
    check_threads(WaitingProgram, seeds)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_FLOW, NIGHTLY_PROGRAMS), ids=str)
def test_many_random_barriers(seeds: range) -> None:
    check_threads(WaitingProgram, seeds)


@pytest.mark.parametrize("kind", [ChoicesProgram, WaitingChoicesProgram])
def test_random_choices(kind: type[ChoicesProgram]) -> None:
    check_threads(kind, range(QUICK_CHOICES))


def test_templates_that_wait_have_the_positions_of_their_threads() -> None:
    """They are called at several places: the compiler gave one that it left apart the first sixteen positions."""
    check_threads(WaitingChoicesProgram, range(930, 940))


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", batches(QUICK_CHOICES, NIGHTLY_PROGRAMS), ids=str)
@pytest.mark.parametrize("kind", [ChoicesProgram, WaitingChoicesProgram])
def test_many_random_choices(kind: type[ChoicesProgram], seeds: range) -> None:
    check_threads(kind, seeds)


def test_the_programs_use_every_kind_of_construct() -> None:
    text = "".join(Generator(seed).program().source() for seed in range(QUICK_PROGRAMS))
    for construct in ("select(", "any(", "as_type<", "for (int", "if (", "else {", " ? ", "dot(", ".zx", "[1] ", "+= ",
                      "half3(", "uchar4(", "bool2", "static_cast<", "_function", "<<"):  # fmt: skip
        assert construct in text, construct
