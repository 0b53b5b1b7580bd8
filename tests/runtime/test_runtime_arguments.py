"""What a user's kernel can be called with, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsgrad as mg

SOURCE = """
#include <metal_stdlib>
using namespace metal;

struct Settings { uint count; float3 scale; char shift; };
enum Kind : uint { ONE = 1 };
using Real = float;

kernel void scale(device float* x, constant float& factor, uint i [[thread_position_in_grid]]) { x[i] *= factor; }
kernel void copy(device const float* x, device float* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void halves(device const half4* x, device half4* y, uint i [[thread_position_in_grid]]) { y[i] = 2 * x[i]; }
kernel void threes(device float3* x, uint i [[thread_position_in_grid]]) { x[i] += float3(1, 2, 3); }
kernel void packed_threes(device packed_float3* x, uint i [[thread_position_in_grid]]) {
    x[i] = float3(x[i]) + float3(1, 2, 3);
}
kernel void structs(device float* y, constant Settings& s, device const Settings* more,
                    uint i [[thread_position_in_grid]]) {
    y[i] = i < s.count ? s.scale.z * more[1].scale.y + s.shift + more[1].shift : -1;
}
kernel void by_value(device float* y, constant int& a, constant uchar& b, constant bool& c, constant half& d,
                     constant float3& e, constant Real& f, constant Kind& g, constant ulong& h) {
    y[0] = a; y[1] = b; y[2] = c; y[3] = d; y[4] = e.x + 10 * e.y + 100 * e.z; y[5] = f; y[6] = g;
    y[7] = h == 18446744073709551615ul;
}
kernel void turn(device float2* z, uint i [[thread_position_in_grid]]) { z[i] = float2(-z[i].y, z[i].x); }
kernel void bytes(device const char* x, device uchar* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void count(device uint* n, device int& last, device atomic_uint* total, uint i [[thread_position_in_grid]]) {
    n[i] += 1;
    if (i == 3) last = 7;
    atomic_fetch_add_explicit(total, 2, memory_order_relaxed);
}
kernel void table(constant float* values, device float* y, uint i [[thread_position_in_grid]]) { y[i] = values[i]; }
kernel void nothing(uint i [[thread_position_in_grid]]) {}
kernel void reduce(device const float* x, device float* y, threadgroup float* sums [[threadgroup(0)]],
                   threadgroup int* counts [[threadgroup(1)]], uint i [[thread_index_in_threadgroup]],
                   uint n [[threads_per_threadgroup]], uint g [[threadgroup_position_in_grid]],
                   uint at [[thread_position_in_grid]]) {
    sums[i] = x[at];
    counts[i] = 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i == 0) {
        float sum = 0;
        for (uint k = 0; k < n; ++k) sum += sums[k] * counts[k];
        y[g] = sum;
    }
}
"""

SETTINGS = np.dtype(
    {"names": ["count", "scale", "shift"], "formats": ["u4", "3f4", "i1"], "offsets": [0, 16, 32], "itemsize": 48}
)


@pytest.fixture(scope="module")
def library() -> mg.KernelLibrary:
    return mg.compile(SOURCE)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_writable_arrays_are_written_in_place_and_others_are_not(library: mg.KernelLibrary) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert library.function("scale")(6, x, 2).gpu_time is not None
    np.testing.assert_array_equal(x, [[0, 2, 4], [6, 8, 10]])
    frozen = f32(1, 2)
    frozen.flags.writeable = False
    y = np.zeros(2, np.float32)
    library.function("copy")(2, frozen, y)
    np.testing.assert_array_equal(y, [1, 2])


def test_views_of_larger_arrays_leave_the_rest_alone(library: mg.KernelLibrary) -> None:
    x = np.ones((4, 5), np.float32)
    library.function("scale")(10, x[1:3], 3)
    np.testing.assert_array_equal(x, np.repeat([1.0, 3.0, 3.0, 1.0], 5).reshape(4, 5))


def test_vectors_and_packed_vectors(library: mg.KernelLibrary) -> None:
    x = np.arange(8, dtype=np.float16)
    y = np.zeros_like(x)
    library.function("halves")(2, x, y)
    np.testing.assert_array_equal(y, 2 * x)
    padded = np.zeros((2, 4), np.float32)
    library.function("threes")(2, padded)
    np.testing.assert_array_equal(padded[:, :3], [[1, 2, 3]] * 2)
    packed = np.zeros((2, 3), np.float32)
    library.function("packed_threes")(2, packed)
    np.testing.assert_array_equal(packed, [[1, 2, 3]] * 2)
    turned = np.array([1 + 2j, 3j], np.complex64)
    library.function("turn")(2, turned)
    np.testing.assert_array_equal(turned, [-2 + 1j, -3])


def test_structs(library: mg.KernelLibrary) -> None:
    settings = np.zeros((), SETTINGS)
    settings["count"], settings["scale"], settings["shift"] = 2, (0, 0, 4), -3
    more = np.zeros(2, SETTINGS)
    more[1]["scale"][1], more[1]["shift"] = 10, 5
    y = np.zeros(3, np.float32)
    for given in (settings, settings[()]):
        library.function("structs")(3, y, given, more)
        np.testing.assert_array_equal(y, [42, 42, -1])


def test_numbers_by_value(library: mg.KernelLibrary) -> None:
    y = np.zeros(8, np.float32)
    function = library.function("by_value")
    function(1, y, -5, 200, True, 0.5, (1, 2, 3), np.float32(1.5), np.uint32(9), 2**64 - 1)
    np.testing.assert_array_equal(y, [-5, 200, 1, 0.5, 321, 1.5, 9, 1])
    function(1, y, np.int64(7), np.uint8(1), 0, np.float64(0.25), f32(4, 5, 6), f32(2), np.int32(3), np.uint64(1))
    np.testing.assert_array_equal(y, [7, 1, 0, 0.25, 654, 2, 3, 0])


def test_references_and_atomics_are_written(library: mg.KernelLibrary) -> None:
    n, last, total = np.zeros(5, np.int32), np.zeros((), np.int32), np.zeros(1, np.uint32)
    library.function("count")(5, n, last, total)
    assert (n == 1).all()
    assert last == 7
    assert total[0] == 10


def test_device_memory_is_used_in_place(library: mg.KernelLibrary) -> None:
    vector = mg.Vector.from_array(f32(1, 2, 3))
    library.function("scale")(3, vector, 2)
    np.testing.assert_array_equal(np.asarray(vector), [2, 4, 6])
    image = mg.Image.from_array(np.ones((1, 2, 2, 3), np.float32))
    library.function("scale")(12, image, 5)
    assert (np.asarray(image) == 5).all()
    buffer = library.device.allocate(8)
    library.function("copy")(2, f32(8, 9), buffer)
    np.testing.assert_array_equal(buffer.read(0, 8).view(np.float32), [8, 9])


def test_an_image_is_waited_for(library: mg.KernelLibrary) -> None:
    commands = mg.CommandBuffer()
    image = mg.SoftMax().encode(commands, mg.Image.from_array(np.ones((1, 1, 1, 4), np.float32)))
    with pytest.raises(mg.StateError, match="before its command buffer was committed"):
        library.function("scale")(4, image, 2)
    commands.commit()
    library.function("scale")(4, image, 2)
    np.testing.assert_array_equal(np.asarray(image).ravel(), [0.5] * 4)


def test_one_array_for_two_arguments_is_one_buffer(library: mg.KernelLibrary) -> None:
    x = f32(1, 2, 3)
    library.function("copy")(3, x, x)
    library.function("copy")(2, x[1:], x[1:])
    np.testing.assert_array_equal(x, [1, 2, 3])
    with pytest.raises(mg.FormatError, match="overlaps another argument"):
        library.function("copy")(2, x[1:], x[:2])
    y = np.zeros(3, np.float32)
    library.function("table")(3, x, y)
    np.testing.assert_array_equal(y, x)


def test_threadgroup_memory(library: mg.KernelLibrary) -> None:
    x = np.arange(100, dtype=np.float32)
    y = np.zeros(4, np.float32)
    library.function("reduce")(100, x, y, threadgroup=32, threadgroup_memory=(128, 128))
    np.testing.assert_array_equal(y, [each.sum() for each in np.split(x, [32, 64, 96])])
    function = library.function("reduce")
    for memory, error, words in [
        (None, mg.FormatError, "has 0 lengths but the kernel's threadgroup arguments are 'sums', 'c"),
        ((128,), mg.FormatError, "has 1 lengths"),
        ((128, 0), mg.GeometryError, "'counts' is 0 bytes"),
        ((120, 128), mg.GeometryError, "'sums' is 120 bytes; Metal takes multiples of 16"),
        ((32768, 16), mg.GeometryError, "32784 bytes in all, above the device's 32768"),
        ((1.5, 16), mg.FormatError, "'sums' is 1.5, not a number"),
    ]:
        with pytest.raises(error, match=words):
            function(100, x, y, threadgroup=32, threadgroup_memory=memory)


def test_empty_arrays_and_kernels_without_arguments(library: mg.KernelLibrary) -> None:
    library.function("nothing")(5)
    library.function("table")(1, f32(1), np.zeros(1, np.float32))
    empty = np.zeros(0, np.float32)
    library.function("copy")(1, f32(1), np.zeros(1, np.float32))
    with pytest.raises(mg.FormatError, match="takes 0 arguments .none. but was given 1"):
        library.function("nothing")(5, empty)


def locked() -> np.ndarray:
    array = f32(1, 2)
    array.flags.writeable = False
    return array


REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
    ("scale", (f32(1),), r"scale: takes 2 arguments \(device float\* x, constant float& factor\) but was given 1"),
    ("scale", (np.zeros(2), 1), r"argument 0 \(device float\* x\) is a float64 array of shape 2; it has to be float32"),
    ("bytes", (f32(1, 2), np.zeros(8, np.uint8)), r"it has to be int8; its bytes are its view\(np.int8\)$"),
    ("turn", (np.zeros(2, np.complex128),), "it has to be float32"),
    ("scale", (np.zeros(2, np.complex64), 1), "it has to be float32"),
    ("scale", (np.zeros(2, np.int32), 1), "is an int32 array of shape 2; it has to be float32"),
    ("scale", (np.zeros(2, ">f4"), 1), "native byte order"),
    ("scale", (np.array([None]), 1), "native byte order"),
    ("scale", (locked(), 1), "read-only, but the kernel may write it"),
    ("scale", (np.ones((4, 4), np.float32)[:, 1], 1), "not contiguous"),
    ("scale", (np.asfortranarray(np.ones((4, 4), np.float32)), 1), "not contiguous"),
    ("scale", ([1.0, 2.0], 1), "is a list; the kernel may write it"),
    ("scale", (1.0, 1), "is 1.0; the kernel may write it"),
    ("scale", (f32(1), "2"), r"argument 1 \(constant float& factor\) is '2'; it has to be a float"),
    ("scale", (f32(1), None), "is a NoneType; it has to be a float"),
    ("scale", (f32(1), 1j), "has to be a float"),
    ("scale", (f32(1), np.zeros(2)), r"argument 1 \(constant float& factor\) is a float64 array"),
    ("by_value", (f32(*range(8)), 2**31, 1, True, 1, (1, 2, 3), np.float32(1), np.uint32(1), 1), "has to be an int"),
    ("by_value", (f32(*range(8)), 1.0, 1, True, 1, (1, 2, 3), np.float32(1), np.uint32(1), 1), "has to be an int"),
    ("by_value", (f32(*range(8)), 1, 1, 2, 1, (1, 2, 3), np.float32(1), np.uint32(1), 1), "has to be a bool"),
    ("by_value", (f32(*range(8)), 1, -1, True, 1, (1, 2, 3), np.float32(1), np.uint32(1), 1), "has to be a uchar"),
    ("by_value", (f32(*range(8)), 1, 1, True, 1, (1, 2), np.float32(1), np.uint32(1), 1), "has to be a float3"),
    ("by_value", (f32(*range(8)), 1, 1, True, 1, (1, 2, 3), "1", np.uint32(1), 1), "is .1.; it has to be a float$"),
    ("by_value", (f32(*range(8)), 1, 1, True, 1, (1, 2, 3), 1.0, [1], 1), "is .1.; it has to be a uint32"),
    ("by_value", (f32(*range(8)), 1, 1, True, 1, (1, 2, 3), (1, 2), np.uint32(1), 1), "it has to be a float$"),
    ("threes", (np.zeros((2, 3), np.float32),), "24 bytes, but a float3 has 16; three numbers .* are a packed_float3"),
    ("threes", (np.zeros((4, 3), np.float32),), "4x3, but a float3 takes the room of four .* are a packed_float3"),
    ("structs", (f32(1), np.zeros((), "u4,f4"), np.zeros(2, SETTINGS)), "8 bytes, but a Settings has 48"),
    ("structs", (f32(1), np.zeros((), SETTINGS), np.zeros(50, np.uint8)), "50 bytes, but a Settings has 48"),
    ("count", (np.zeros(5, np.uint8), np.zeros(1, np.int32), np.zeros(1, np.uint32)), "it has to be uint32"),
    ("count", (np.zeros(5, np.uint32), np.zeros(0, np.int32), np.zeros(1, np.uint32)), "0 bytes, but an int has 4"),
    ("halves", (f32(1, 2), np.zeros(4, np.float16)), "it has to be float16"),
    ("copy", (mg.Vector.from_array(f32(1)), np.zeros(1, np.float64)), "it has to be float32"),
    ("copy", ([1.0] * 9, f32(1)), r"is \[(1.0, ){6}...\]; it has to be an array, device memory or a float$"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "arguments", "words"), REFUSED)
def test_arguments_that_do_not_fit(library: mg.KernelLibrary, kernel: str, arguments: Any, words: str) -> None:
    with pytest.raises(mg.FormatError, match=words):
        library.function(kernel)(1, *arguments)


def test_images_that_are_views_or_of_another_type(library: mg.KernelLibrary) -> None:
    image = mg.Image.from_array(np.ones((1, 2, 2, 8), np.float32))
    with pytest.raises(mg.FormatError, match="an image that is no view"):
        library.function("scale")(1, image.sub_image(4, 4), 1)
    with pytest.raises(mg.FormatError, match="an Image of float16; it has to be float32"):
        library.function("scale")(1, mg.Image.from_array(np.ones((1, 2, 2, 8), np.float16)), 1)
    with pytest.raises(mg.FormatError, match="a Vector of float32; it has to be float16"):
        library.function("halves")(1, mg.Vector(4), np.zeros(4, np.float16))
