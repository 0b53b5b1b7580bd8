"""Kernels whose arguments hold pointers, which Metal calls argument buffers."""

# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad import devices, metalcompute
from mpsgrad.devices import metal
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Arguments {
  device float* out [[id(0)]];
  constant float* scale [[id(1)]];
  uint count;
  const device float4* vectors [[id(2)]] [2];
};
typedef struct { array<device int*, 3> parts; int used; } Parts;
struct Nested { Parts parts; packed_float3 offset; };
using Same = Arguments;
template <typename T> struct Typed { device T* out; };
template <> struct Typed<char> { device char* out; char fill; };
template <typename T> struct Plain { device T* out; };

kernel void scaled(constant Same& a [[buffer(0)]], device float* sums [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  if (i >= a.count) return;
  sums[i] = a.scale ? a.out[i] * a.scale[0] + a.vectors[1][i].y : -1;
  a.out[i] = a.vectors[0] ? a.vectors[0][i].x : 0;
}
kernel void nested(constant Nested& a, const device Arguments* several, uint i [[thread_position_in_grid]]) {
  for (int part = 0; part < a.parts.used; part++) a.parts.parts[part][i] += several[part].out[i] * a.offset.z;
}
kernel void arrays(constant array<device int*, 2>& a, uint i [[thread_position_in_grid]]) { a[0][i] = a[1][i]; }
kernel void written(device Arguments& a, uint i [[thread_position_in_grid]]) { a.count = i; }
template <typename T> kernel void typed(constant Typed<T>& a, uint i [[thread_position_in_grid]]) { a.out[i] = i; }
template [[host_name("typed")]] kernel void typed<float>(constant Typed<float>&, uint);
template <typename T> kernel void plain(constant Plain<T>& a, uint i [[thread_position_in_grid]]) { a.out[i] = i; }
template [[host_name("plain")]] kernel void plain<int>(constant Plain<int>&, uint);
"""


def arguments(count: int, **values: Any) -> dict[str, Any]:
    given = {"out": None, "scale": None, "count": count, "vectors": [None, None]}
    return {**given, **values}


def runs(device: mg.Device, count: int) -> None:
    """All of the kernels, with arrays and device memory in every place for pointers."""
    library = mg.compile(SOURCE, device=device)
    random = np.random.default_rng(count)
    x, vectors = random.random(count, np.float32), random.random((2, count, 4), np.float32)
    sums, out, scale = np.zeros(count, np.float32), x.copy(), np.array([3], np.float32)
    pointers = {"out": out, "scale": scale, "vectors": [vectors[0], vectors[1]]}
    library.function("scaled")(count + 5, arguments(count, **pointers), sums)
    np.testing.assert_allclose(sums, x * 3 + vectors[1, :, 1], rtol=1e-6)
    np.testing.assert_array_equal(out, vectors[0, :, 0])

    vector = mg.Vector.from_array(x, device)
    library.function("scaled")(count, arguments(count, **{**pointers, "out": vector, "vectors": [None, vectors[1]]}), sums)
    np.testing.assert_allclose(sums, x * 3 + vectors[1, :, 1], rtol=1e-6)
    assert not np.asarray(vector).any()
    library.function("scaled")(count, arguments(count, out=out), sums)
    assert (sums == -1).all() and not out.any()

    parts = [np.arange(count, dtype=np.int32) * step for step in (1, 2, 3)]
    several = tuple(arguments(0, out=np.full(count, step, np.float32)) for step in (5, 6))
    library.function("nested")(count, {"parts": {"parts": parts, "used": 2}, "offset": (0, 0, 2)}, several)
    for step, added, part in zip((1, 2, 3), (10, 12, 0), parts, strict=True):
        np.testing.assert_array_equal(part, np.arange(count) * step + added)
    library.function("arrays")(count, parts[:2])
    np.testing.assert_array_equal(parts[0], parts[1])


@settings(max_examples=5)
@given(count=st.integers(1, 3000))
def test_kernels_find_what_pointers_point_to(device: mg.Device, count: int) -> None:
    runs(device, count)


def test_on_nvidia_gpus() -> None:
    compile_for_cuda(translate(SOURCE, "cuda", launch="box").source, "arguments.metal")
    if devices._devices_of("cuda"):
        runs(mg.find_device("cuda"), 100)
        return
    from cuda_stand_in import installed

    with installed():
        runs(mg.find_device("cuda"), 100)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (arguments(4, out=3), ".out (device float *) is 3; it has to be an array, device memory or None"),
        (arguments(4, out=np.zeros(4)), ".out (device float *) is a float64 array of shape 4; it has to be float32"),
        (arguments(4, out=np.zeros(8, np.float32)[::2]), ".out (device float *) is a float32 array of shape 4 that is not"),
        (arguments(4, out=np.broadcast_to(np.float32(1), 1)), "read-only, but the kernel may write it"),
        (arguments(4, vectors=[None]), ".vectors has 1 values; it has to have 2"),
        (arguments(4, vectors=np.zeros(2, np.uint64)), ".vectors is a uint64 array of shape 2; it has to have 2"),
        (arguments(4, vectors=[None, np.zeros(3, np.float32)]), ".vectors[1] (const device float4 *) has 12 bytes"),
        (arguments(-1), ".count is -1"),
        (arguments(4, extra=1), "has no member 'extra'; it has out, scale, count, vectors"),
        ({"out": None, "count": 4, "vectors": [None, None]}, "no value is given for scale"),
        (np.zeros(40, np.uint8), "it has to be a dict with out, scale, count, vectors"),
        ([arguments(4)], "is a list; it has to be a dict"),
        (7, "is 7; it has to be a dict"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(device: mg.Device, value: Any, words: str) -> None:
    scaled, sums = mg.compile(SOURCE, device=device).function("scaled"), np.zeros(4, np.float32)
    with pytest.raises(mg.FormatError, match=r"scaled: argument 0 \(constant Same& a\)") as refused:
        scaled(4, value, sums)
    assert words in str(refused.value)


def test_pointers_in_structs_of_templates(device: mg.Device) -> None:
    plain = mg.compile(SOURCE, device=device).function("plain")
    out = np.zeros(3, np.int32)
    plain(3, {"out": out})
    assert out.tolist() == [0, 1, 2]
    with pytest.raises(mg.FormatError, match="is a float32 array of shape 3; it has to be int32"):
        plain(3, {"out": np.zeros(3, np.float32)})


def test_what_has_no_layout_or_may_be_written_is_refused(device: mg.Device) -> None:
    library = mg.compile(SOURCE, device=device)
    with pytest.raises(mg.FormatError, match="holds pointers, so the kernel may only read it"):
        library.function("written")(1, arguments(1))
    with pytest.raises(mg.FormatError, match="holds pointers, and its layout cannot be told"):
        library.function("typed")(1, {"out": np.zeros(1, np.float32)})
    with pytest.raises(mg.FormatError, match="is empty"):
        library.function("nested")(1, {"parts": {"parts": [None] * 3, "used": 0}, "offset": (0, 0, 0)}, [])
    with pytest.raises(mg.FormatError, match="the layout of argument 0"):
        library.function("scaled").dtype("a")


def test_pointers_are_found_by_other_names() -> None:
    source = """
    namespace n { typedef device float* ptr; struct A { ptr p; int n; }; }
    struct B { using T = device float*; int k[2 * 3]; };
    using C = n::A;
    kernel void f(constant n::A& a) { a.p[0] = a.n; }
    kernel void g(constant C& a) { a.p[0] = a.n; }
    kernel void h(constant B& b, device float* x) { x[0] = b.k[0]; }
    template <typename T> kernel void t(device T* x) { x[0] = 1; }
    template [[host_name("t")]] kernel void t<float>(device float*);
    """
    kernels = translate(source, "opencl", launch="row").kernels
    holding = {name: [each.holds_pointers for each in kernel.arguments] for name, kernel in kernels.items()}
    assert holding == {"f": [True], "g": [True], "h": [False, False], "t": [False]}


def test_metalcompute_cannot_fill_in_pointers(device: mg.Device) -> None:
    assert not [each for each in lint(SOURCE) if each.severity == "error"]
    found = [each.message for each in lint(SOURCE, metalcompute=True) if "holds pointers" in each.message]
    holders = ("a", "a", "several", "a", "a", "a", "a")
    assert found == [f"metalcompute cannot pass what holds pointers, as '{name}' does" for name in holders]
    kernels = metalcompute.Device().kernel(SOURCE)
    with pytest.raises(metalcompute.error, match="cannot fill in the pointers that 'a' holds"):
        kernels.function("arrays")
    signature = translate(SOURCE, "opencl", launch="whole").kernels["arrays"]
    assert "holds pointers" in (metal._not_dispatchable(signature) or "") or signature.threadgroup_size is None


@pytest.mark.usefixtures("opencl_device")
def test_checks_see_what_pointers_point_to(device: mg.Device) -> None:
    def findings(kernel: str, grid: int, *given: Any, **options: Any) -> list[str]:
        return [str(each).partition(": ")[2] for each in library.function(kernel).check(grid, *given, **options)]

    library = mg.compile(SOURCE, device=device)
    count = 40
    sums, vectors = np.zeros(count, np.float32), np.ones((2, count, 4), np.float32)
    right = arguments(count, out=np.ones(count, np.float32), scale=np.ones(1, np.float32), vectors=[*vectors])
    assert findings("scaled", count + 5, right, sums, undefined=["sums"]) == []
    assert {*findings("scaled", count + 5, {**right, "count": count + 1}, np.zeros(count + 1, np.float32), undefined=["a.out"])} == {
        "error: element 0 of 'a.out' is read before it has a value, by thread 0",
        f"error: out-of-bounds read of element {count} of 'a.out', which has {count} elements, by thread {count}",
        f"error: out-of-bounds write of element {count} of 'a.out', which has {count} elements, by thread {count}",
        f"error: out-of-bounds read of element {count} of 'a.vectors[0]', which has {count} elements, by thread {count}",
        f"error: out-of-bounds read of element {count} of 'a.vectors[1]', which has {count} elements, by thread {count}",
    }  # fmt: skip
    assert findings("scaled", 1, {**right, "out": None}, sums)[0].startswith("error: out-of-bounds read through a pointer")

    parts = [np.zeros(count, np.int32) for _ in range(3)]
    several = tuple(arguments(0, out=np.ones(count - step, np.float32)) for step in (0, 1))
    nested = {"parts": {"parts": parts, "used": 2}, "offset": (0, 0, 2)}
    assert findings("nested", count, nested, several) == [
        f"error: out-of-bounds read of element {count - 1} of 'several[1].out', which has {count - 1} elements, by thread {count - 1}"
    ]
    same = {"parts": {"parts": [parts[0], parts[0], None], "used": 2}, "offset": (0, 0, 2)}
    assert findings("nested", count - 1, same, several) == [
        "warning: 'a.parts.parts[0]' and 'a.parts.parts[1]' are the same memory, and the kernel may write it"
    ]
    assert not any(part.any() for part in parts)
