"""Tensors of other libraries, bfloats, and arrays for types with names of the program's own as arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lent_arrays import ConstantArray, LentArray

import mpsgrad as mg
from mpsgrad.dlpack import CUDA
from mpsgrad.runtime.element_types import bfloat_bits

SOURCE = """
#include <metal_stdlib>
using namespace metal;
typedef bfloat bfloat16_t;
using real = float;
typedef real number;
typedef half2 pair;
struct Step { float rate; int count; };

kernel void add(device const float* x, device float* y, constant float& a, uint i [[thread_position_in_grid]]) {
    y[i] += a * x[i];
}
kernel void named(device const number* x, device pair* y, constant real& a, uint i [[thread_position_in_grid]]) {
    y[i] = half2(a * x[i], x[i]);
}
kernel void turn(device const bool* x, device bool* y, uint i [[thread_position_in_grid]]) { y[i] = !x[i]; }
kernel void scale(device const bfloat16_t* x, device bfloat* y, constant bfloat& a,
                  uint i [[thread_position_in_grid]]) {
    y[i] = bfloat(float(a) * float(x[i]));
}
kernel void step(device float* y, constant Step& s, uint i [[thread_position_in_grid]]) { y[i] -= s.rate * s.count; }
"""


@pytest.fixture(scope="module")
def library() -> Any:
    return mg.compile(SOURCE, language_version="3.1")


def test_tensors_lend_their_memory(library):
    x, y = np.arange(5, dtype=np.float32), np.ones(5, np.float32)
    library.function("add")(5, LentArray(x), LentArray(y), LentArray(np.array(2, np.float32)))
    assert y.tolist() == [1, 3, 5, 7, 9]
    truths = np.zeros(3, bool)
    library.function("turn")(3, LentArray(np.array([True, False, True])), LentArray(truths))
    assert truths.tolist() == [False, True, False]
    library.function("step")(5, LentArray(y), {"rate": 0.5, "count": 2})
    assert y.tolist() == [0, 2, 4, 6, 8]


def test_check_leaves_tensors_as_they_are(opencl_device, library):
    y = np.ones(4, np.float32)
    findings = library.function("add").check(5, LentArray(np.ones(5, np.float32)), LentArray(y), 1.0)
    assert [each.argument for each in findings] == ["y"]
    assert y.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (LentArray(np.zeros(4)), "a float64 array of shape 4; it has to be float32"),
        (LentArray(np.zeros((4, 2), np.float32)[:, 0]), "not contiguous"),
        (LentArray(np.zeros(4, np.float32), (CUDA, 7)), r"on the DLPack device \(2, 7\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(library, given, words):
    with pytest.raises(mg.FormatError, match=f"add: argument 0.*{words}"):
        library.function("add")(4, given, np.zeros(4, np.float32), 1.0)


def test_tensors_of_a_gpu_are_to_be_contiguous(library, monkeypatch):
    """Their libraries have different words for how to make them so."""
    monkeypatch.setattr(type(library.device), "dlpack_device", (CUDA, 7))
    rows = LentArray(np.zeros((4, 2), np.float32)[:, 0], (CUDA, 7))
    with pytest.raises(mg.FormatError, match=r"argument 0.* of shape \(4,\) that has strides \(2,\); on a GPU"):
        library.function("add")(4, rows, np.zeros(4, np.float32), 1.0)


def test_arrays_that_never_change_are_only_read(library):
    add, x = library.function("add"), np.ones(4, np.float32)
    y = np.zeros(4, np.float32)
    add(4, ConstantArray(x), y, 1.0)
    assert y.tolist() == [1, 1, 1, 1]
    with pytest.raises(mg.FormatError, match="ConstantArray, which never changes, but the kernel may write it"):
        add(4, x, ConstantArray(x), 1.0)


@pytest.mark.parametrize("which", ["__dlpack__", "__dlpack_device__"])
def test_a_library_that_does_not_lend_says_why(library, which, monkeypatch):
    def refuse(*_: Any, **__: Any) -> Any:
        raise BufferError("it needs its gradient")

    monkeypatch.setattr(LentArray, which, refuse)
    with pytest.raises(mg.FormatError, match="LentArray does not lend its memory: it needs its gradient"):
        library.function("add")(4, LentArray(np.zeros(4, np.float32)), np.zeros(4, np.float32), 1.0)


def test_types_with_names_of_their_own_are_checked(library):
    named = library.function("named")
    y = np.zeros((3, 2), np.float16)
    named(3, np.arange(3, dtype=np.float32), y, 2)
    assert y.tolist() == [[0, 0], [2, 1], [4, 2]]
    with pytest.raises(mg.FormatError, match=r"device const number\* x\) is a float64 array of shape 3; .* float32"):
        named(3, np.arange(3.0), y, 2)
    with pytest.raises(mg.FormatError, match=r"device pair\* y\) is a float32 array of shape 3x2; .* float16"):
        named(3, np.arange(3, dtype=np.float32), y.astype(np.float32), 2)
    with pytest.raises(mg.FormatError, match=r"constant real& a\) is '2'; it has to be a float$"):
        named(3, np.arange(3, dtype=np.float32), y, "2")


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=8), st.floats(-4, 4, width=32))
def test_bfloats_are_bits_and_numbers(library, numbers, factor):
    bits = bfloat_bits(np.array(numbers, np.float32))
    y = np.zeros_like(bits)
    library.function("scale")(len(bits), bits, y, factor)
    rounded = bfloat_bits(np.array(factor, np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = bfloat_bits(_numbers(rounded) * _numbers(bits))
    assert y.tolist() == expected.tolist()
    library.function("scale")(len(bits), LentArray(bits), LentArray(y), rounded)
    assert y.tolist() == expected.tolist()


def _numbers(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(
    ("number", "bits"),
    [(1.0, 0x3F80), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (3.4e38, 0x7F80), (-0.0, 0x8000), (np.nan, 0x7FC0),
     (np.inf, 0x7F80), (2.0**-133, 0x0001)],
)  # fmt: skip
def test_numbers_are_rounded_to_the_nearest_even_bfloat(number, bits):
    assert bfloat_bits(np.array(number, np.float32)) == bits


def test_other_numbers_are_no_bfloats(library):
    scale, bits = library.function("scale"), np.zeros(4, np.uint16)
    for other in (np.zeros(4, np.float32), np.zeros(4, np.float16), np.zeros(4, np.uint32)):
        with pytest.raises(mg.FormatError, match="it has to be bfloat16, or uint16 with the bits of bfloats"):
            scale(4, other, bits, 1.0)
    with pytest.raises(mg.FormatError, match="it has to be a bfloat"):
        scale(4, bits, bits.copy(), "1")


def test_bfloats_of_ml_dtypes(library):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x, y = np.array([1, 2, 3], bfloat16), np.zeros(3, bfloat16)
    library.function("scale")(3, x, y, bfloat16(1.5))
    assert y.tolist() == [1.5, 3, 4.5]
    with pytest.raises(mg.FormatError, match="it has to be float32"):
        library.function("add")(3, x, np.zeros(3, np.float32), 1.0)


def test_tensors_of_pytorch(library):
    torch = pytest.importorskip("torch")
    y = torch.ones(4)
    library.function("add")(4, torch.arange(4.0), y, torch.tensor(2.0))
    assert y.tolist() == [1, 3, 5, 7]
    bfloats = torch.zeros(3, dtype=torch.bfloat16)
    library.function("scale")(3, torch.tensor([1, 2, 3], dtype=torch.bfloat16), bfloats, 1.5)
    assert bfloats.tolist() == [1.5, 3, 4.5]
    with pytest.raises(mg.FormatError, match=r"does not lend its memory: .*detach"):
        library.function("add")(4, y.requires_grad_(), torch.ones(4), 1.0)
