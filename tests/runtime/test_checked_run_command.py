"""``mpsgrad check --run`` and ``KernelFunction.check``: their arguments, output and exit statuses."""

# Kernels are easier to read on lines of their own length.
# ruff: noqa: E501
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import cli
from mpsgrad.devices import opencl
from mpsgrad.errors import FormatError, GeometryError

pytestmark = pytest.mark.usefixtures("opencl_device")

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SHIFT = HEAD + (
    "kernel void shift(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {\n"
    "\ty[i] = x[i + OFFSET];\n"
    "}\n"
)


def check(*arguments: object) -> int:
    return cli.main(["check", *map(str, arguments)])


@pytest.fixture
def shift(tmp_path: Path) -> Path:
    (tmp_path / "shift.metal").write_text(SHIFT)
    return tmp_path / "shift.metal"


def test_findings_look_like_a_compilers(shift: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = ("--run", shift, "shift", "--grid", 8, "--arg", "float:1,2,3,4,5,6,7,8", "--arg", "zeros:float:8")
    assert check("-D", "OFFSET=1", *launch) == 1
    output = capsys.readouterr()
    assert output.out == (
        f"{shift}:4:9: error: out-of-bounds read of element 8 of 'x', which has 8 elements, by thread 7 [out-of-bounds]\n"
        "    \ty[i] = x[i + OFFSET];\n    \t       ^\n"
    )
    assert output.err == "1 error; 'mpsgrad check --explain out-of-bounds' says why\n"
    assert check("-D", "OFFSET=0", *launch) == 0
    assert capsys.readouterr().out == ""


def test_json(shift: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--arg", "zeros:float:8", "--arg", "undefined:float:9")
    assert check("--json", "-DOFFSET=1", "--run", shift, "shift", "--grid", "8", "--threadgroup", 4, *arguments) == 1
    unwritten, outside = json.loads(capsys.readouterr().out)
    assert (unwritten["name"], unwritten["severity"], unwritten["line"]) == ("unwritten-output", "warning", 3)
    assert outside == {
        "file": str(shift), "line": 4, "column": 9, "severity": "error", "rule": None, "name": "out-of-bounds",
        "message": "out-of-bounds read of element 8 of 'x', which has 8 elements, by thread 7",
        "kernel": "shift", "count": 1, "thread": [7, 0, 0], "threadgroup": [1, 0, 0], "argument": "x", "index": 8,
        "length": 8, "other": None,
    }  # fmt: skip


def test_a_race_names_both_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.metal"
    file.write_text(HEAD + "kernel void k(device uint* y, uint i [[thread_position_in_grid]]) {\n    y[0] = i;\n}\n")
    assert check("--json", "--run", file, "k", "--grid", 8, "--threadgroup", 4, "--arg", "zeros:uint:1") == 1
    (race,) = json.loads(capsys.readouterr().out)
    assert (race["thread"], race["count"]) == ([1, 0, 0], 7)
    assert race["other"] == {"thread": [0, 0, 0], "file": str(file), "line": 4, "column": 5}


def test_stray_threads_of_metalcompute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.metal"
    kernel = "kernel void k(device float* y, uint i [[thread_position_in_grid]]) { y[i] = 1; }\n"
    file.write_text(f"{HEAD}[[max_total_threads_per_threadgroup(64)]] {kernel}")
    launch = ("--run", file, "k", "--grid", 100, "--arg", "zeros:float:100")
    assert check(*launch) == 0
    assert check("--metalcompute", *launch) == 1
    output = capsys.readouterr().out
    assert "by thread 100, a stray one: the grid of 100 threads is rounded up to 128 [out-of-bounds]" in output


def test_errors_of_the_rules_and_of_the_compiler_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "k.metal"
    file.write_text(HEAD + "kernel void k(device float* y) { double d = 1; y[1] = d; }\n")
    launch = ("--run", file, "k", "--grid", 1, "--arg", "zeros:float:1")
    assert check(*launch) == 1
    output = capsys.readouterr().out
    assert "[rule 8]" in output and "out-of-bounds" not in output
    file.write_text(HEAD + "kernel void k(device float* y) { y[1] = nothing; }\n")
    assert check(*launch) == 1
    assert f"{file}:3:41: error: use of undeclared identifier 'nothing'" in capsys.readouterr().out


def test_wrong_usage_gives_2(
    shift: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("--run", shift, "--grid", 1) == 2
    assert "--run takes FILE and KERNEL, but 1 were given" in capsys.readouterr().err
    assert check("--run", shift, "shift") == 2
    assert "--run needs --grid" in capsys.readouterr().err
    assert check("-DOFFSET=0", "--run", shift, "shaft", "--grid", 1) == 2
    assert "no kernel function 'shaft'; there are shift" in capsys.readouterr().err
    assert check("-DOFFSET=0", "--run", shift, "shift", "--grid", 1, "--arg", "float:x") == 2
    assert "--arg: 'float:x' is no argument" in capsys.readouterr().err
    assert check("-DOFFSET=0", "--run", shift, "shift", "--grid", 1, "--arg", "nowhere.npy") == 2
    assert "nowhere.npy" in capsys.readouterr().err
    assert check("-DOFFSET=0", "--run", shift, "shift", "--grid", 1, "--arg", "zeros:float:1") == 2
    assert "shift: takes 2 arguments" in capsys.readouterr().err
    monkeypatch.setattr(opencl, "devices", list)
    monkeypatch.setattr(opencl, "unavailable_reason", lambda: "pyopencl is not installed")
    assert check("-DOFFSET=0", "--run", shift, "shift", "--grid", 1) == 2
    message = "mpsgrad check: --run checks kernels on the CPU by OpenCL: pyopencl is not installed\n"
    assert message in capsys.readouterr().err


def test_included_files_and_constants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "at.h").write_text("inline float at(device const float* x, uint i) {\n    return x[i];\n}\n")
    file = tmp_path / "k.metal"
    file.write_text(
        HEAD + '#include "at.h"\nconstant uint pace [[function_constant(0)]];\n'
        "kernel void k(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {\n"
        "    y[i] = at(x, pace * i);\n}\n"
    )
    launch = ("--run", file, "k", "--grid", 4, "--arg", "zeros:float:4", "--arg", "zeros:float:4", "--constant")
    assert check(*launch, "pace=1") == 0
    assert check(*launch, "pace=2") == 1
    assert f"{tmp_path / 'at.h'}:2:12: error: out-of-bounds read of element 4 of 'x'" in capsys.readouterr().out


# From Python.


def function(body: str, parameters: str = "device float* y", before: str = "") -> mg.runtime.KernelFunction:
    head = f"{HEAD}{before}kernel void k({parameters}, uint i [[thread_position_in_grid]],"
    return mg.compile(f"{head} uint t [[thread_index_in_threadgroup]]) {{ {body} }}").function("k")


def test_arguments_stay_as_they_are() -> None:
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    assert function("y[i] = 2 * x[i]; x[i] = 3;", "device float* x, device float* y").check(4, x, y) == ()
    assert (x == 1).all() and (y == 0).all()


def test_what_a_call_refuses_is_refused() -> None:
    kernel = function("y[i] = 1;")
    y = np.zeros(4, np.float32)
    with pytest.raises(FormatError, match="takes 1 arguments"):
        kernel.check(4)
    with pytest.raises(FormatError, match="undefined names 'z', but the arguments are y"):
        kernel.check(4, y, undefined=["z"])
    with pytest.raises(FormatError, match="undefined names 1"):
        kernel.check(4, y, undefined=[1])
    with pytest.raises(FormatError, match="undefined is 'y'; it has to be a sequence of names"):
        kernel.check(4, y, undefined="y")
    with pytest.raises(GeometryError, match="at least 1"):
        kernel.check(0, y)
    with pytest.raises(GeometryError, match="above the device's limit of 1024"):
        kernel.check(4, y, threadgroup=2048)
    with pytest.raises(FormatError, match="it has to be float32"):
        kernel.check(4, y.astype(np.float64))


def test_memory_of_the_device_and_empty_arrays(device: mg.Device) -> None:
    vector = mg.Vector.from_array(np.arange(4, dtype=np.float32), device)
    kernel = function("y[i] = x[i];", "device const float* x, device float* y")
    assert kernel.check(4, vector, np.zeros(4, np.float32)) == ()
    (found,) = kernel.check(1, np.zeros(0, np.float32), np.zeros(4, np.float32))
    assert found.message.startswith("out-of-bounds read of element 0 of 'x', which has 0 elements")


def test_positions_in_grids_of_three_dimensions() -> None:
    source = (
        HEAD + "kernel void k(device float* y, uint3 p [[thread_position_in_grid]]) {\n"
        "    if (p.x == 4 && p.y == 2 && p.z == 1) y[1] = 0;\n}\n"
    )
    kernel = mg.compile(source).function("k")
    (found,) = kernel.check((5, 3, 2), np.zeros(1, np.float32), threadgroup=(2, 2, 2))
    assert (found.thread, found.threadgroup) == ((4, 2, 1), (2, 1, 0))
    assert "by thread (4, 2, 1)" in found.message
    (found,) = kernel.check((3, 2, 1), np.zeros(1, np.float32), threadgroup=(2, 2, 2), grid_of_threadgroups=True)
    assert found.thread == (4, 2, 1)
    assert kernel.check((3, 2, 1), np.zeros(1, np.float32), threadgroup=(2, 2, 2)) == ()


def test_simdgroups_in_threadgroups_of_several_rows() -> None:
    source = (
        HEAD + "kernel void k(device float* y, uint2 p [[thread_position_in_grid]],"
        " uint t [[thread_index_in_threadgroup]]) {\n"
        "    float s = simd_sum(1.0f);\n    y[p.y * 16 + p.x] = simd_shuffle_xor(s, 1);\n    if (t == 17) y[99] = s;\n}\n"
    )
    y = np.zeros(64, np.float32)
    (found,) = mg.compile(source).function("k").check((16, 4), y, threadgroup=(16, 4))
    assert (found.thread, found.line) == ((1, 1, 0), 6)


def test_instances_of_templates() -> None:
    source = HEAD + (
        "template <typename T, int N> kernel void k(device T* y, uint i [[thread_position_in_grid]]) {\n"
        "    y[i + N] = T(1);\n}\n"
        'template [[host_name("by_0")]] kernel void k<float, 0>(device float*, uint);\n'
        'template [[host_name("by_1")]] kernel void k<half, 1>(device half*, uint);\n'
    )
    library = mg.compile(source)
    assert library.function("by_0").check(4, np.zeros(4, np.float32)) == ()
    (found,) = library.function("by_1").check(4, np.zeros(4, np.float16))
    assert (found.line, found.index) == (4, 4)


# What is no mistake, though it may look like one.

HARMLESS = {
    "several threads write one value": ("device uint* y", "threadgroup uint any; any = 1; y[0] = 7;"),
    "a name of the library": ("device uint* y", "threadgroup uint as[4]; as[t] = 1; y[0] = 7;"),
    "components of one vector": ("device float4* y", "threadgroup float4 v; v[t] = 1; y[0][t] = 2;"),
    "members of one struct": ("device Pair* y", "if (t == 0) y[0].a = 1; else if (t == 1) y[0].b = half(2);"),
    "a struct with a hole": ("device Pair* y", "Pair p; p.a = 1; y[i] = p; Pair q = y[i]; y[i].b = half(q.a);"),
    "neighbouring bytes": ("device uchar* y", "threadgroup uchar b[4]; b[t] = uchar(t); y[i] = b[t];"),
    "the address behind the end": ("device float* y", "device float* e = &y[4]; *(e - 4 + i) = 1;"),
    "the size of an element": ("device float* y", "y[i] = sizeof(y[100]);"),
    "a reference that reads": ("device float* y", "device const float& r = y[3 - i]; float s = r; s += 1;"),
    "reading as another type": ("device uint* y", "y[i] = ((device ushort*)y)[2 * i + 1];"),
    "the number behind a vector": ("device packed_float3* y", "if (i < 1) { y[0][2] = 1; y[0].x = y[0].z; }"),
    "a constant table": ("device float* y", "y[i] = table[i].xy.y + numbers::more[i % 2] + size;"),
    "a loop of no iterations": ("device int* y", "for (int k = y[i]; k-- > 0;) y[k] = 1;"),
    "a local array": ("device float* y", "float v[2][2] = {{1, 2}, {3, 4}}; float4x4 m(1); m[t][t] += v[t / 2][t % 2]; y[i] = m[t][t];"),
    "a division in a constant": ("device float* y", "const int n = 4 / 2; float v[n * 2 / 2]; v[i % n] = 1; y[i] = v[i % n] / 2;"),
    "a pointer that is compared": ("device float* y", "device float* p = y + 4; while (p-- != y) if (p == y + i) *p = 1;"),
    "an atomic in a struct": ("device Counter* y", "atomic_fetch_add_explicit(&y->count, 1, memory_order_relaxed);"),
    "what an empty name does": ("device float* y", "auto add = y[i] + (i, 1.0f); (y[i]) = (add); { ; } y[i]++, --y[i];"),
    "a switch": ("device int* y", "switch (t) { case 0: y[i] = 1; break; case 1: { y[i] = 2; } default: y[i] += 3; }"),
    "conversions on the way": ("device half4* y", "y[i] = half4(1, 2, 3, 4); y[i] *= 2; y[i].xz = half2(y[i].y); y[i] = y[i] + 1;"),
}  # fmt: skip
BEFORE = """
struct Pair { float a; half b; };
struct Counter { uint before; atomic_uint count; };
constant float4 table[4] = {1, 2, 3, 4};
constant float size = 3;
namespace numbers { constant float more[] = {5, 6}; }
"""


@pytest.mark.parametrize("name", HARMLESS)
def test_nothing_is_found_in_what_is_no_mistake(name: str) -> None:
    parameters, body = HARMLESS[name]
    y = np.zeros(48, np.uint8)
    found = function(body, parameters, BEFORE).check(4, y.view(_dtype(parameters)), threadgroup=4)
    assert found == (), "\n".join(map(str, found))


def _dtype(parameters: str) -> str:
    return {"device uint*": "u4", "device float4*": "f4", "device Pair*": "V8", "device uchar*": "u1",
            "device int*": "i4", "device half4*": "f2", "device Counter*": "V8"}.get(parameters[:-2], "f4")  # fmt: skip
