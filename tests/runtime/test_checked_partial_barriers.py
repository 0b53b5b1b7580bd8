"""Checked runs of kernels in which only some threads may come to a barrier: in these runs all do, or it is told."""

# Kernels are easier to read on lines of their own length.
# ruff: noqa: E501
from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import opencl_checks

sys.path.append(str(Path(__file__).parents[1] / "msl"))

from fuzz_choices import WaitingChoicesProgram
from fuzz_flow import LANES, WaitingProgram
from test_checked_runs import BARRIER, HEAD, Defect, I, T, floats

pytestmark = pytest.mark.usefixtures("opencl_device")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has loops end sooner that do not end."""
    monkeypatch.setattr(opencl_checks, "MOST_STEPS", 5000)


ONE_GROUP = {"threadgroup": 64}
TURNED = f"""
static float turned(threadgroup float* s, uint t, float v) {{
    s[t] = v;
    {BARRIER};
    float r = s[t ^ 1];
    {BARRIER};
    return r;
}}"""

DEFECTS = [
    Defect("behind a return in a loop", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float s[64];
    for (uint k = 0; k < 3; k++) {{
        if (x[i] > 100) return;
        s[t] = x[i] + k;
        {BARRIER};
        y[i] = s[t ^ 1];
        {BARRIER};
    }}
    y[i <<+ 1||>>] = 1; // here
}}""", 64, floats(64, 64), ("data-race", "out-of-bounds"), "out-of-bounds write of element 64 of 'y'", ONE_GROUP),
    Defect("between barriers that a condition decides", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float s[64];
    if (x[i] < 100) {{
        s[t] = x[i];
        {BARRIER};
        y[i] = s[t ^ 1]; // here
        <<||{BARRIER};>>
        s[t] = 2;
    }} else {{
        {BARRIER};
    }}
}}""", 64, floats(64, 64), ("data-race",), "data race on element", ONE_GROUP),
    Defect("in a loop that goes on for as long as a thread asks", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float s[64];
    float v = x[i] - x[i] + 3, sum<<|| = 0>>;
    while (v > 0) {{
        s[t] = v;
        {BARRIER};
        sum += s[t ^ 1]; // here
        {BARRIER};
        v -= 1;
    }}
    y[i] = sum;
}}""", 64, floats(64, 64), ("uninitialised-memory",), "'sum' is read before it has a value", ONE_GROUP),
    Defect("an argument of a function that waits in an arm", f"""{TURNED}
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float s[64];
    y[i] = x[i] < 100 ? turned(s, t, x[i<< + 1||>>]) : 0; // here
}}""", 64, floats(64, 64), ("out-of-bounds",), "out-of-bounds read of element 64 of 'x'", ONE_GROUP),
    Defect("a reference that a function that waits writes to", f"""
static void add(threadgroup float* s, uint t, float v, device float& r) {{
    s[t] = v;
    {BARRIER};
    r += s[t ^ 1];
    {BARRIER};
}}
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float s[64];
    if (x[i] < 100) add(s, t, x[i], y[i<< + 64||>>]); // here
}}""", 64, floats(64, 64), ("out-of-bounds",), "out-of-bounds access of element 64 of 'y'", ONE_GROUP),
    Defect("in a section of a switch that waits", f"""
kernel void f(device const int* x, device int* y, {I}, {T}) {{
    threadgroup int s[64];
    switch (x[i]) {{
    case 7:
        s[t] = i;
        {BARRIER};
        y[i] = 100 / <<s[t ^ 1]||(s[t ^ 1] + 1)>>; // here
        break;
    default:
        y[i] = 2;
    }}
}}""", 64, lambda: (np.full(64, 7, np.int32), np.zeros(64, np.int32)), ("division-by-zero",), "integer division by zero, by thread 1", ONE_GROUP),
    Defect("a loop whose barriers all threads come to for ever", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    for (float v = x[i]; v > 0; v -= <<0||100>>) {{
        {BARRIER};
        for (float k = 0; k < x[i]; k++) y[i] = k; // here
    }}
    y[i] = 1;
}}""", 8, floats(8, 8), ("endless-loop",), "this loop had not ended after 5000 steps", {"threadgroup": 8}),
    Defect("a condition with a barrier in it, asked for ever", f"""
static bool goes_on(threadgroup float* s, uint t, float v) {{
    s[t] = v;
    {BARRIER};
    bool r = s[t ^ 1] > 0;
    {BARRIER};
    return r;
}}
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float s[8];
    float v = x[i];
    while (goes_on(s, t, v)) {{
        v -= <<0||100>>;
        for (float k = 0; k < x[i]; k++) y[i] = k; // here
    }}
    y[i] = 1;
}}""", 8, floats(8, 8), ("endless-loop",), "this loop had not ended after 5000 steps", {"threadgroup": 8}),
    Defect("a thread that leaves a loop before the others", f"""
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float s[64];
    for (uint k = 0; k < 3; k++) {{
        if (<<t == 5 && k == 2||x[i] > 100>>) break;
        s[t] = k;
        {BARRIER}; // here
        y[i] = s[t ^ 1];
        {BARRIER};
    }}
}}""", 64, floats(64, 64), ("divergent-barrier",), "only 63 of 64 threads of the threadgroup come to this barrier: thread 5 does not", ONE_GROUP),
    Defect("a return in a function's arm before it waits", f"""
static float g(threadgroup float* s, uint t, float v) {{
    if (v < <<6||0>>) {{
        return 1;
    }}
    s[t] = v;
    {BARRIER}; // here
    return s[t ^ 1];
}}
kernel void f(device const float* x, device float* y, {I}, {T}) {{
    threadgroup float s[64];
    y[i] = g(s, t, x[i]);
}}""", 64, floats(64, 64), ("divergent-barrier",), "only 59 of 64 threads of the threadgroup come to this barrier: thread 0 does not", ONE_GROUP),
]  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found_where_all_threads_come_to_barriers(defect: Defect) -> None:
    source, found = defect.check(0)
    line = 1 + source[: source.index("// here")].count("\n")
    text = "\n".join(map(str, found))
    assert tuple(each.name for each in found) == defect.found, text
    assert any(defect.says in each.message for each in found if each.line == line), text


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_nothing_is_found_where_all_threads_come_to_barriers(defect: Defect) -> None:
    found = defect.check(1)[1]
    assert found == (), "\n".join(map(str, found))


def check_random_programs(kind: type[WaitingProgram], seeds: Sequence[int]) -> None:
    """Nothing is found but barriers that some threads do not come to, and these wherever there are such threads."""
    for seed in seeds:
        program = kind(seed)
        x = np.random.default_rng(seed).integers(-20, 20, 3 * LANES).astype(np.int32).view(np.uint32)
        y = np.zeros(program.expected(x, 3).shape, np.uint32)
        function = mg.compile(HEAD + program.source(), language_version="3.2").function(program.name)
        found = {each.name for each in function.check(LANES, x, y, np.int32(3))} - {"element-not-written"}
        assert found == ({"divergent-barrier"} if program.leaves_some_out else set()), program.source()


@pytest.mark.parametrize("seed", [7005, 7022, 7003, 7009])
def test_random_programs_that_wait_are_checked(seed: int) -> None:
    check_random_programs(WaitingChoicesProgram, [seed])


def test_barriers_that_no_thread_comes_to_stand_for_nothing() -> None:
    """Threads that were led past one may be behind the next one that all come to."""
    check_random_programs(WaitingProgram, [30021])


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [WaitingProgram, WaitingChoicesProgram])
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_many_random_programs_that_wait_are_checked(kind: type[WaitingProgram], first: int) -> None:
    check_random_programs(kind, range(first, first + 10))
