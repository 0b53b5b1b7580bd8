"""``mg.compile``: where source comes from, what is refused and how, options, and function constants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import cache, opencl_early

TWICE = """#include <metal_stdlib>
using namespace metal;
kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }
template <typename T>
kernel void fill(device T* x, uint i [[thread_position_in_grid]]) { x[i] = T(3); }
template [[host_name("fill_half")]] kernel void fill<half>(device half*, uint);
"""


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_source_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "twice.metal"
    path.write_text(TWICE)
    marked = tmp_path / "marked.metal"
    marked.write_bytes(b"\xef\xbb\xbf" + TWICE.replace("\n", "\r\n").encode())
    for source in (TWICE, path, str(path), marked):
        library = mg.compile(source)
        assert library.function_names == ("twice", "fill_half")
        x = f32(1, 2)
        library.function("twice")(2, x)
        np.testing.assert_array_equal(x, [2, 4])
    halves = np.zeros(3, np.float16)
    library.function("fill_half")(3, halves)
    assert (halves == 3).all()


def test_included_files(tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text("#pragma once\nconstant float factor = 3;\n")
    path = tmp_path / "scale.metal"
    path.write_text('#include "factor.h"\nkernel void scale(device float* x) { x[0] *= factor; }\n')
    x = f32(2)
    mg.compile(path).function("scale")(1, x)
    assert x[0] == 6
    with pytest.raises(mg.ShaderError, match="'factor.h' file not found"):
        mg.compile(path.read_text())


def test_included_files_of_included_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "one.h").write_text('#pragma once\n#include "two.h"\n#include "../b/three.h"\n')
    (tmp_path / "a" / "two.h").write_text("constant float two = 2;\n")
    (tmp_path / "b" / "three.h").write_text("#pragma once\nconstant float three = 3;\n")
    source = '#include "a/one.h"\n%s\nkernel void f(device float* x) { x[0] = two * three; }\n'
    path = tmp_path / "f.metal"
    path.write_text(source % '#include "b/three.h"')
    for library in (mg.compile(path), mg.compile(source % "#include <b/three.h>", include_folders=[tmp_path])):
        x = f32(0)
        library.function("f")(1, x)
        assert x[0] == 6
    with pytest.raises(mg.FormatError, match="include_folders is 'a'; it has to be a sequence of folders"):
        mg.compile(path, include_folders="a")
    with pytest.raises(mg.FormatError, match="function_constants is a list; it has to be a dict of values"):
        mg.compile(path, function_constants=[1])  # type: ignore[arg-type]


def test_broken_kernels_point_at_their_source(tmp_path: Path) -> None:
    path = tmp_path / "broken.metal"
    path.write_text("#include <metal_stdlib>\nkernel void f(device float* x) {\n    x[0] = unknown(1);\n}\n")
    with pytest.raises(mg.ShaderError, match="unknown") as caught:
        mg.compile(path)
    error = caught.value
    assert (error.file, error.line, error.column) == (str(path), 3, 12)
    assert error.source_line == "    x[0] = unknown(1);"


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "bytes.metal").write_bytes(b"\xff\xfe")
    with pytest.raises(mg.FormatError, match=r"bytes\.metal is not UTF-8 text"):
        mg.compile(tmp_path / "bytes.metal")


def test_names_that_do_not_exist() -> None:
    with pytest.raises(KeyError, match="no kernel function 'thrice'; there are fill_half, twice"):
        mg.compile(TWICE).function("thrice")
    with pytest.raises(KeyError, match="no kernel function 'k'; there are none"):
        mg.compile("int one() { return 1; }").function("k")
    with pytest.raises(FileNotFoundError):
        mg.compile("nowhere.metal")
    with pytest.raises(mg.FormatError, match="source_or_path is an empty string; it has to be Metal source"):
        mg.compile("")
    with pytest.raises(mg.FormatError, match="a path has no null characters"):
        mg.compile("\0")
    with pytest.raises(mg.FormatError, match="source_or_path is an int"):
        mg.compile(3)  # type: ignore[arg-type]
    with pytest.raises(mg.FormatError, match="language_version is '1.0'"):
        mg.compile(TWICE, language_version="1.0")
    with pytest.raises(mg.FormatError, match="compile: device is 'cpu'"):
        mg.compile(TWICE, device="cpu")  # type: ignore[arg-type]


def test_descriptions() -> None:
    library = mg.compile(TWICE)
    assert repr(library) == f"<KernelLibrary of twice, fill_half on {library.device.identifier}>"
    assert repr(library.function("twice")).startswith("<KernelFunction twice(device float* x) on")
    assert library.function("twice").max_total_threads_per_threadgroup is None


@pytest.mark.parametrize(("version", "number"), [("2.3", 230), ("2.4", 240), ("3.1", 310)])
def test_the_language_version_is_what_the_program_sees(version: str, number: int) -> None:
    x = f32(0)
    library = mg.compile("kernel void f(device float* x) { x[0] = __METAL_VERSION__; }", language_version=version)
    library.function("f")(1, x)
    assert x[0] == number


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path / "cache"))
    yield cache.directory()


def test_fast_math_is_part_of_what_the_cache_keeps(own_cache: Path) -> None:
    for fast_math in (True, False, True, False):
        x = f32(1)
        mg.compile(TWICE, fast_math=fast_math).function("twice")(1, x)
        assert x[0] == 2
    kept = {*os.listdir(own_cache)} - {opencl_early._name("short")}
    assert len(kept) == 4, "for each a program and what is to be known of it"


@pytest.mark.parametrize("fast_math", [True, False])
def test_nan_and_infinity_with_either_math(fast_math: bool) -> None:
    library = mg.compile(
        """
        #include <metal_stdlib>
        using namespace metal;
        kernel void f(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {
            y[i] = isnan(x[i]) ? 1 : isinf(x[i]) ? 2 : x[i] > -INFINITY ? 3 : 4;
        }
        """,
        fast_math=fast_math,
    )
    y = f32(0, 0, 0, 0)
    library.function("f")(4, f32(np.nan, np.inf, -np.inf, 5), y)
    np.testing.assert_array_equal(y, [1, 2, 2, 3])


def test_strict_math_divides_exactly() -> None:
    source = """
        kernel void f(device float* x, constant float& by, uint i [[thread_position_in_grid]]) { x[i] /= by; }
    """
    x = np.arange(1, 10_000, dtype=np.float32)
    expected = x / np.float32(7)
    mg.compile(source, fast_math=False).function("f")(x.size, x, 7)
    np.testing.assert_array_equal(x, expected)


# Function constants

CONSTANTS = """
#include <metal_stdlib>
using namespace metal;
constant bool negate [[function_constant(0)]];
constant int count [[function_constant(1)]];
constant float4 weights [[function_constant(2)]];
constant bool has_bias [[function_constant(10)]];
constant half small [[function_constant(11)]];
constant uint64_t large [[function_constant(12)]];
constant int steps = is_function_constant_defined(count) ? count : 7;
constant bool biased = has_bias && !negate;

float weighted(float x) { return x * weights.y; }

kernel void plain(device float* x) { x[0] = 5; }
kernel void sign(device float* x) { x[0] = negate ? -1 : 1; }
kernel void sum(device float* x) { for (int i = 0; i < steps; ++i) x[0] += 1; }
kernel void scale(device float* x, device const float* bias [[buffer(1), function_constant(biased)]],
                  constant float& more [[buffer(2), function_constant(has_bias)]]) {
    x[0] = weighted(x[0]);
    if (biased) x[0] += bias[0];
    if (has_bias) x[0] += more;
}
kernel void numbers(device float* x) { x[0] = small; x[1] = large == 18446744073709551615ul; }
"""


def value(kernel: str, *arguments: Any, start: float = 0, **constants: Any) -> float:
    x = f32(start, 0)
    mg.compile(CONSTANTS, function_constants=constants).function(kernel)(1, x, *arguments)
    return float(x[0])


def test_function_constants_by_name_and_index() -> None:
    assert value("sign", negate=True) == -1
    assert value("sign", negate=False) == 1
    assert value("sum", count=3) == 3
    x = f32(0, 0)
    mg.compile(CONSTANTS, function_constants={1: 4}).function("sum")(1, x)
    assert x[0] == 4
    mg.compile(CONSTANTS, function_constants={11: -0.1, "large": 2**64 - 1}).function("numbers")(1, x)
    np.testing.assert_array_equal(x, [np.float16(-0.1), 1])
    assert value("numbers", small=-np.inf, large=1) == -np.inf
    assert np.isnan(value("numbers", small=np.nan, large=1))


def test_function_constants_that_are_not_defined() -> None:
    assert value("sum") == 7
    assert value("plain") == 5
    library = mg.compile(CONSTANTS)
    with pytest.raises(mg.FormatError, match="sign: the function constants negate have no value; give them with"):
        library.function("sign")
    with pytest.raises(mg.FormatError, match="scale: the function constants has_bias, negate, weights have no value"):
        library.function("scale")


def test_arguments_that_depend_on_function_constants() -> None:
    weights = (0, 3, 0, 0)
    bias = f32(10)
    assert value("scale", start=2, weights=weights, has_bias=False, negate=False) == 6
    assert value("scale", bias, 100, start=2, weights=weights, has_bias=True, negate=False) == 116
    assert value("scale", 100, start=2, weights=weights, has_bias=True, negate=True) == 106


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"negated": True}, r"there is no function constant 'negated'; the source has negate \(0\), count \(1\)"),
        ({5: True}, "there is no function constant 5"),
        ({"negate": 2}, "function constant negate is 2; it has to be a bool"),
        ({"count": 1.5}, "function constant count is 1.5; it has to be an int"),
        ({"count": 2**31}, "it has to be an int"),
        ({"count": "1"}, "function constant count is '1'"),
        ({"weights": (1, 2, 3)}, "it has to be a float4"),
        ({"count": 1, 1: 2}, "function constant count is given by its name and by its index"),
    ],
)
def test_function_constants_that_do_not_fit(constants: Any, words: str) -> None:
    with pytest.raises(mg.FormatError, match=words):
        mg.compile(CONSTANTS, function_constants=constants)


@pytest.mark.parametrize("name", ["parts", "whole"])
def test_a_source_may_ask_for_safe_math(name: str, opencl_device: mg.Device) -> None:
    body = "const float s = x[i] + 1e8f, v = s - x[i]; y[i] = (x[i] - (s - v)) + (1e8f - v);"
    parameters = "device const float* x, device float* y, uint i [[thread_position_in_grid]]"
    kernels = f"kernel void f({parameters}) {{ {body} }}\n"
    if name == "parts":
        # Many kernels are compiled at their first use.
        kernels += "".join(kernels.replace("void f(", f"void f{k}(") for k in range(40))
    x = np.random.default_rng(3).random(64).astype(np.float32)
    # The sum is rounded to 1e8.
    asking = "#if __METAL_VERSION__ >= {}\n#pragma METAL fp math_mode(safe)\n#endif\n"
    for version, is_safe in ((230, True), (240, False)):
        source = f"{asking.format(version)}#include <metal_stdlib>\nusing namespace metal;\n{kernels}"
        for _ in range(2):
            y = np.zeros_like(x)
            mg.compile(source, device=opencl_device).function("f")(64, x, y)
            assert np.array_equal(y, x) == is_safe
