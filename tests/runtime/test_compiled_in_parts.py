"""Sources whose kernel functions are compiled at their first use: what is compiled when, and what is found at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import CompileOptions
from mpsgrad.devices.opencl import OpenCLDevice
from mpsgrad.msl import parts, translate
from mpsgrad.msl.signature import WHOLE

SOURCE = """#include <metal_stdlib>
using namespace metal;
constant float addend = 3;
float once_more(float x) { return x + addend; }
kernel void first(device float* x, uint i [[thread_position_in_grid]]) { x[i] = once_more(x[i]); }
template <typename T>
kernel void second(device T* x, constant short4& y, uint i [[thread_position_in_grid]]) { x[i] = x[i] * T(y.w); }
template [[host_name("second_half")]] kernel void second<half>(device half*, constant short4&, uint);
float twice(float x) { return 2 * x; }
kernel void third(device float* x, uint i [[thread_position_in_grid]]) { x[i] = twice(once_more(simd_sum(x[i]))); }
"""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_MOST_TOKENS", 5)
    monkeypatch.setattr(parts, "_MOST_PARTS_OF_WHOLE", 3)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that the compiler is given from now on; the cache on disk is empty."""
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path))
    build = OpenCLDevice._build
    options: list[str] = []

    def noted(self: OpenCLDevice, translation: Any, source: str, name: str, build_options: Any, is_users: bool) -> Any:
        options.append(build_options[-1])
        return build(self, translation, source, name, build_options, is_users)

    monkeypatch.setattr(OpenCLDevice, "_build", noted)
    return options


def part_of(source: str, version: str = "230") -> dict[str, int]:
    translation = translate(source, "opencl", launch="row", definitions={"__METAL_VERSION__": version})
    return {name: kernel.part for name, kernel in translation.kernels.items()}


def run(library: mg.KernelLibrary, name: str) -> np.ndarray:
    x = np.ones(4, np.float16 if name == "second_half" else np.float32)
    others = [np.array([1, 2, 3, 4], np.int16)] if name == "second_half" else []
    library.function(name)(4, x, *others)
    return x


def test_each_function_is_compiled_at_its_first_use(opencl_device: mg.Device, built: list[str]) -> None:
    library = mg.compile(SOURCE, device=opencl_device)
    assert library.function_names == ("first", "second_half", "third")
    assert built == []
    np.testing.assert_array_equal(run(library, "third"), [14] * 4)
    np.testing.assert_array_equal(run(library, "second_half"), [4] * 4)
    assert built == ["-DPART_MTL=3", "-DPART_MTL=2"]
    library.function("third")
    again = mg.compile(SOURCE, device=opencl_device)
    np.testing.assert_array_equal(run(again, "third"), [14] * 4)
    assert len(built) == 2
    np.testing.assert_array_equal(run(again, "first"), [4] * 4)
    assert built[2:] == ["-DPART_MTL=1"]


def test_threads_share_what_one_of_them_compiles(opencl_device: mg.Device, built: list[str]) -> None:
    library = mg.compile(SOURCE, device=opencl_device)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: library.function("first")._function, range(8)))
    assert len(set(map(id, found))) == 1
    assert built == ["-DPART_MTL=1"]


def test_errors_in_any_function_are_found_at_once(opencl_device: mg.Device, built: list[str]) -> None:
    with pytest.raises(mg.ShaderError, match="undeclared identifier 'missing'") as caught:
        mg.compile(SOURCE.replace("twice(once", "missing(once"), device=opencl_device)
    assert (caught.value.file, caught.value.line, caught.value.column) == ("<metal>", 10, 81)
    assert built == []


def test_the_functions_of_a_part_are_those_that_together_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert part_of(SOURCE) == {"first": 1, "second_half": 2, "third": 3}
    monkeypatch.setattr(parts, "_MOST_TOKENS", 60)
    assert part_of(SOURCE) == {"first": 1, "second_half": 1, "third": 2}
    monkeypatch.setattr(parts, "_MOST_TOKENS", 1000)
    assert part_of(SOURCE) == {"first": WHOLE, "second_half": WHOLE, "third": WHOLE}


@pytest.mark.parametrize(
    "more",
    [
        "float lacks_a_body(float x);",
        "struct Lacking { float body(float x); };",
        "float endless(float x) { return endless(x); }",
        "float odd(float x) { return even(x - 1); } float even(float x) { return odd(x - 1); }",
    ],
)
def test_what_only_the_last_steps_of_a_compiler_find_is_found_at_once(more: str) -> None:
    assert set(part_of(SOURCE + more, "240").values()) == {WHOLE}


def test_what_only_the_last_steps_of_a_compiler_find_in_long_sources_is_found_at_the_first_use(
    opencl_device: mg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_MOST_PARTS_OF_WHOLE", 2)
    source = SOURCE.replace("float twice", "float lacks_a_body(float x);\nfloat twice")
    source = source.replace("twice(once", "lacks_a_body(1) + twice(once")
    library = mg.compile(source, device=opencl_device)
    with pytest.raises(mg.ShaderError, match="lacks_a_body"):
        library.function("third")
    np.testing.assert_array_equal(run(library, "first"), [4] * 4)


@pytest.mark.parametrize(
    "more",
    [
        "struct Whole { float sum; float add(float x) { float y(x); return sum + y; } };",
        'static_assert(sizeof(float) == 4, "");',
        'template <typename T> struct Checked { static_assert(sizeof(T) == 4, ""); T value; };',
        "float total(float x) { float total = x; return total + twice(x); }",
    ],
)
def test_other_functions_and_structs_do_not_keep_a_source_whole(more: str) -> None:
    assert part_of(SOURCE + more) == part_of(SOURCE)


def test_the_package_s_own_shaders_and_other_targets_are_not_divided(opencl_device: mg.Device) -> None:
    for translation in (translate(SOURCE, "opencl"), translate(SOURCE, "cuda", launch="box")):
        assert {kernel.part for kernel in translation.kernels.values()} == {WHOLE}
        assert "PART_MTL" not in translation.source


def test_a_failure_of_the_compiler_s_last_steps_is_a_shader_error(
    opencl_device: mg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpsgrad.msl.reach.Reach.may_recurse", lambda self: False)
    endless = "float f(float x, uint i) { return x < 1 ? x : f(x - 1, i) + f(x / 2, i); }\n"
    source = SOURCE.replace("float twice", endless + "float twice").replace("twice(once", "f(1, i) + twice(once")
    library = opencl_device.compile(source, name="recursive.metal", options=CompileOptions())
    with pytest.raises(mg.ShaderError, match="recursive"):
        library.function("third")
    library.function("first")
