"""``mpsgrad run``: a kernel of a Metal file from the shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import cli

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant bool negate [[function_constant(0)]];
constant int offset [[function_constant(1)]];

kernel void saxpy(constant float& a, device const float* x, device float* y, uint i [[thread_position_in_grid]]) {
    y[i] += a * x[i];
}
kernel void places(device uint* y, uint2 g [[thread_position_in_grid]], uint2 n [[threads_per_grid]],
                   uint2 t [[threads_per_threadgroup]]) {
    y[g.y * n.x + g.x] = 100 * t.x + t.y;
}
kernel void constants(device int* y) { y[0] = negate ? -offset : offset; }
kernel void first(device float* y, constant float4& v, threadgroup float* t [[threadgroup(0)]]) {
    t[0] = v.w;
    y[0] = t[0];
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "k.metal").write_text(SOURCE)
    (tmp_path / "text.npy").write_text("1 2 3")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    return cli.main(["run", "k.metal", *arguments])


def test_arrays_from_and_to_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(5, dtype=np.float32)
    np.save("x.npy", x)
    np.save("y.npy", np.ones(5, np.float32))
    arguments = ["--arg", "2.0f", "--arg", "x.npy", "--arg", "y.npy", "--out", "y=out.npy", "--out", "1"]
    assert run("saxpy", "--grid", "5", *arguments) == 0
    output = capsys.readouterr().out
    np.testing.assert_array_equal(np.load("out.npy"), 1 + 2 * x)
    np.testing.assert_array_equal(np.load("y.npy"), np.ones(5))
    assert "y: wrote float32 5 to out.npy" in output
    assert "x = [0. 1. 2. 3. 4.]" in output
    assert re.search(r"^GPU time: \d+\.\d{3} ms$", output, re.MULTILINE)


def test_zeros_and_shapes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--arg", "zeros:uint:2x4", "--out", "0"]
    assert run("places", "--grid", "4,2", "--threadgroup", "3,2", *arguments) == 0
    assert "[[302 302 302 102]\n [302 302 302 102]]" in capsys.readouterr().out
    assert run("places", "--grid", "2,1", "--threadgroup", "2,2", "--grid-of-threadgroups", *arguments) == 0
    assert "[[202 202 202 202]\n [202 202 202 202]]" in capsys.readouterr().out


def test_function_constants_and_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--grid", "1", "--arg", "zeros:int32:1", "--out", "y", "--strict-math", "--language-version", "2.4"]
    assert run("constants", *arguments, "--constant", "negate=true", "--constant", "1=7") == 0
    assert "y = [-7]" in capsys.readouterr().out
    assert run("constants", *arguments) == 1
    assert "the function constants negate, offset have no value" in capsys.readouterr().err


def test_typed_values_and_threadgroup_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--arg", "float:0", "--arg", "float4:1,2,3,-4.5", "--threadgroup-memory", "16", "--out", "y"]
    assert run("first", "--grid", "1", *arguments) == 0
    assert "y = [-4.5]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("missing", "--grid", "1"), 2, "no kernel function 'missing'; there are constants, first, places, saxpy"),
        (("saxpy", "--grid", "1", "--arg", "nothing.npy"), 1, "No such file or directory: 'nothing.npy'"),
        (("saxpy", "--grid", "1", "--arg", "text.npy"), 1, "'text.npy' is no .npy file of numbers"),
        (("saxpy", "--grid", "1", "--arg", "1"), 1, "saxpy: takes 3 arguments"),
        (("saxpy", "--grid", "0", "--arg", "1", "--arg", "float:1", "--arg", "float:1"), 1, "grid is (0,)"),
        (("saxpy", "--grid", "1", "--arg", "one"), 2, "'one' is no argument; it has to be a .npy file"),
        (("saxpy", "--grid", "1", "--arg", "zeros:float"), 2, "has to be like zeros:float:1024"),
        (("saxpy", "--grid", "4", "--arg", "zeros:float:0"), 2, "--arg zeros:float:0: an array without elements"),
        (("saxpy", "--grid", "1", "--arg", "zeros:fluat:4"), 2, "'fluat' is no type of Metal or NumPy"),
        (("saxpy", "--grid", "1", "--arg", "uchar:256"), 2, "not every number fits into uchar"),
        (("saxpy", "--grid", "1", "--arg", "int:1.5"), 2, "not every number fits into int"),
        (("saxpy", "--grid", "1", "--arg", "1", "--out", "z"), 2, "no argument 'z'; the kernel has 0 a, 1 x, 2 y"),
        (("saxpy", "--grid", "1", "--arg", "1", "--out", "a"), 2, "argument 'a' is a number or a struct, not an array"),
        (("saxpy", "--grid", "1", "--arg", "{1}"), 2, "'{1}' is no JSON: Expecting property name"),
        (("saxpy", "--grid", "1", "--arg", "{}", *("--arg", "float:1") * 2), 1, "is a dict; it has to be a float"),
        (("saxpy", "--grid", "1", "--device", "abacus"), 1, "no driver 'abacus'"),
    ],
)
def test_what_cannot_run(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, words: str
) -> None:
    assert run(*arguments) == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("saxpy",), ("saxpy", "--grid", "4,x"), ("saxpy", "--grid", "1", "--constant", "a")]
)
def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert "usage: mpsgrad run" in capsys.readouterr().err


def test_broken_source_and_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.metal").write_text("kernel void f(device float* x) {\n  x[0] = y;\n}\n")
    assert cli.main(["run", "broken.metal", "f", "--grid", "1"]) == 1
    assert re.search(r"broken.metal:2:10: .*\n +x\[0\] = y;\n +\^", capsys.readouterr().err)
    assert cli.main(["run", "absent.metal", "f", "--grid", "1"]) == 1
    assert "absent.metal" in capsys.readouterr().err
    (folder / "x.npy").write_bytes(b"no array")
    assert run("saxpy", "--grid", "1", "--arg", "x.npy") == 1
    assert capsys.readouterr().err.startswith("mpsgrad run: ")


def test_help_explains_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    text = capsys.readouterr().out
    assert all(word in text for word in ("zeros:float:64x32", "--out y=y.npy", "--constant", "example:"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no child processes that begin where this one is")
def test_a_kernel_that_ends_the_process_is_an_error(folder: Path) -> None:
    if not mg.default_device().identifier.startswith("opencl"):
        pytest.skip("a GPU ends no process")
    (folder / "far.metal").write_text(
        "kernel void far(device float* y, uint i [[thread_position_in_grid]]) { y[(i + 1) * 0x10000000ul] = 1; }"
    )
    command = [sys.executable, "-m", "mpsgrad", "run", "--device", mg.default_device().identifier]
    done = subprocess.run([*command, "far.metal", "far", "--grid", "64", "--arg", "zeros:float:4"], capture_output=True)
    assert done.returncode == 1
    assert b"mpsgrad run: far ended its process (SIG" in done.stderr
    assert b"'mpsgrad check --run far.metal far' with the same options says where" in done.stderr
    saxpy = ["k.metal", "saxpy", "--grid", "2", "--arg", "2.0f", "--arg", "float:1,2", "--arg", "zeros:float:2"]
    done = subprocess.run([*command, *saxpy, "--out", "y"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"y = [2. 4.]")
