"""What the translation finds out about vectors is found in the program as it is then."""

from __future__ import annotations

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.declarations import read_program
from mpsgrad.msl.library_names import LibraryNames
from mpsgrad.msl.opencl import OpenCLBackend
from mpsgrad.msl.preprocessor import Preprocessor
from mpsgrad.msl.vector_forms import VectorForms

PROGRAM = "kernel void f(device float4* x, uint i [[thread_position_in_grid]]) { float4 y = x[i]; x[i] = y * 2; }"


def test_a_program_is_analysed_once_until_its_tokens_change() -> None:
    program = read_program(Preprocessor(None, {}).run(PROGRAM, "<metal>"), True)
    before = Source(program.tokens, program, (2, 3), False, PROGRAM, "<metal>")
    backend = OpenCLBackend()
    forms = VectorForms(program, backend, LibraryNames(program, backend, (2, 3), True, []), "<metal>", False, before)
    assert forms._source() is before
    place = before.places("y")[0]
    program.tokens[place].text = "z"
    after = forms._source()
    assert after is not before
    assert (before.text(place), after.text(place)) == ("y", "z")
    assert forms._source() is after
