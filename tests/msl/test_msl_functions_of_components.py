"""Functions of vectors in simdgroups: Intel's compiler does not call them for one thread after another."""

from __future__ import annotations

import re

import pytest
from metal_runner import LIBRARY

import mpsgrad as mg
from mpsgrad.devices.contract import CompileOptions

OPERATIONS = [
    "abs(v)", "fmin(v, w)", "max(v, w)", "clamp(v, -w, w)", "fma(v, w, w)", "sign(v)", "step(v, w)", "mix(v, w, v)",
    "float4(int4(v))",
]  # fmt: skip
VARIABLE = re.compile(r"\b([vw])\b")
CALLS = ["exp2(v)", "log(v)", "cos(v)", "atan(v)", "tanh(v)", "pow(v, w)", "fmod(v, w)"]


def code_size(statements: str) -> int:
    """The bytes of the program of a kernel of simdgroups with these statements."""
    import pyopencl as cl

    source = (
        f"{LIBRARY}kernel void f(device float4* x, uint i [[thread_position_in_grid]])"
        f" {{ float4 v = x[i], w = x[i + 1]; {statements} x[i] = v * simd_sum(w.x); }}"
    )
    function = mg.default_device().compile(source, name="f.metal", options=CompileOptions()).function("f")
    program = function.kernel.get_info(cl.kernel_info.PROGRAM)  # type: ignore[attr-defined]
    return len(program.get_info(cl.program_info.BINARIES)[0])


def component_of(expression: str, component: str) -> str:
    return VARIABLE.sub(rf"\1.{component}", expression).replace("t4(", "t(")


@pytest.mark.skipif(not mg.default_device().identifier.startswith("opencl"), reason="is about a compiler for CPUs")
@pytest.mark.parametrize("expressions", [OPERATIONS, CALLS], ids=["operations", "calls"])
def test_code_is_about_that_of_components(expressions: list[str]) -> None:
    vectors = [f"v = {expression};" for expression in expressions]
    components = [f"v.{c} = {component_of(expression, c)};" for expression in expressions for c in "xyzw"]
    assert code_size(" ".join(vectors)) < 1.15 * code_size(" ".join(components))
