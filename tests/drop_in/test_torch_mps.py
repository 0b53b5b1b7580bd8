"""``mpsgrad.torch_mps``: kernels as PyTorch's ``compile_shader`` has them, called as they are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lent_arrays import LentArray

import mpsgrad as mg
from mpsgrad import torch_mps

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Report { char file[128]; char function[128]; char message[250]; uint line; };
struct Reports { atomic<uint> count; Report reports[30]; };

kernel void fill(device float* out, constant float& value, uint i [[thread_position_in_grid]]) { out[i] = value; }
kernel void numbers(device float* out [[buffer(0)]], constant long& a [[buffer(1)]], constant uint& b [[buffer(2)]],
                    constant half& c [[buffer(4)]], constant bfloat& d [[buffer(5)]], constant uchar& e [[buffer(6)]]) {
    out[0] = a; out[1] = b; out[2] = c; out[3] = float(d); out[4] = e;
}
kernel void lists(device float* out, constant long* a, constant int* b, constant float3& c) {
    out[0] = a[0] + a[1]; out[1] = b[0] + b[1]; out[2] = c.z;
}
kernel void where(device float* out, constant uint2& size, uint2 i [[thread_position_in_grid]],
                  uint2 group [[threads_per_threadgroup]]) {
    out[i.y * size.x + i.x] = group.x + 10 * group.y;
}
kernel void total(device float* out, constant array<device const float*, 3>& parts,
                  uint i [[thread_position_in_grid]]) {
    for (uint n = 0; n < 3; n++) out[i] += parts[n][i];
}
kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }
[[max_total_threads_per_threadgroup(64)]]
kernel void small(device uint* sizes, uint i [[thread_position_in_grid]], uint n [[threads_per_threadgroup]]) {
    sizes[i] = n;
}
kernel void complain(device float* out, device Reports* to, uint i [[thread_position_in_grid]]) {
    if (i != 2) { out[i] = 1; return; }
    device Report& mine = to->reports[atomic_fetch_add_explicit(&to->count, 1, memory_order_relaxed)];
    constant const char* words = "index 2 is out of range";
    constant const char* name = __func__;
    for (uint c = 0; c < 24; c++) mine.message[c] = words[c];
    for (uint c = 0; c < 9; c++) mine.function[c] = name[c];
    mine.file[0] = 'f'; mine.line = 7;
}
"""


@pytest.fixture(scope="module")
def library() -> Any:
    return torch_mps.compile_shader(SOURCE)


def test_kernels_are_attributes(library):
    assert dir(library) == ["complain", "fill", "lists", "numbers", "small", "total", "twice", "where"]
    assert library.fill.max_threads_per_threadgroup == 1024
    assert library.small.max_threads_per_threadgroup == 64
    assert library.fill.thread_execution_width == 32
    with pytest.raises(AttributeError, match="no kernel 'filled'; there are complain, fill"):
        library.filled  # noqa: B018


def test_threads_are_those_of_the_first_tensor(library):
    out = np.zeros((3, 5), np.float32)
    library.fill(LentArray(out), 2.5)
    assert (out == 2.5).all()
    library.fill(out, 1.5, threads=4)
    assert out.ravel().tolist() == [1.5] * 4 + [2.5] * 11
    with pytest.raises(mg.FormatError, match="threads is None, and no argument is a tensor"):
        library.fill(1.0)


def test_a_tensor_without_elements_runs_nothing(library):
    library.fill(LentArray(np.zeros((0, 4), np.float32)), 1.0)


def test_numbers_are_int64_and_float32_unless_they_are_cast(library):
    out = np.zeros(5, np.float32)
    library.numbers(out, 5, 7, None, 0.5, 1.5, 255, threads=1, arg_casts={4: "fp16", 5: "bf16", 6: "uint8"})
    assert out.tolist() == [5, 7, 0.5, 1.5, 255]
    library.numbers(out, -5, -1, None, 0.5, 1.5, 3, threads=1, arg_casts={4: "fp16", 5: "bf16"})
    assert out.tolist() == [-5, float(np.float32(2**32 - 1)), 0.5, 1.5, 3]
    library.lists(out, [1, 2], [3, 4], [1.0, 2.0, 3.0], threads=1, arg_casts={2: "int32"})
    assert out[:3].tolist() == [3, 7, 3]


@pytest.mark.parametrize(
    ("kernel", "arguments", "words"),
    [
        ("fill", (3,), "is 3, which arrives as int64, but the kernel reads float32"),
        ("lists", ([1, 2], [3, 4], [1.0, 2.0, 3.0]), r"is \[3, 4\], which arrives as int64, .* reads int32"),
        ("lists", ([1.0, 2.0], [3, 4], [1.0, 2.0, 3.0]), "arrives as float32, but the kernel reads int64"),
        ("numbers", (1, 2, None, 0.5, 1.5, 2), "arrives as float32, but the kernel reads float16"),
        ("fill", ([],), "is an empty list"),
        ("fill", (), "argument 1 .* is missing: 1 arguments were given"),
        ("fill", (1.0, 2.0), "takes arguments up to index 1 but was given 3"),
    ],
)
def test_what_a_kernel_would_misread_is_refused(library, kernel, arguments, words):
    with pytest.raises(mg.FormatError, match=f"{kernel}: .*{words}"):
        getattr(library, kernel)(np.zeros(5, np.float32), *arguments)


def test_casts_and_lists_that_there_are_not(library):
    out = np.zeros(5, np.float32)
    with pytest.raises(mg.FormatError, match="arg_casts says 'fp8'; it has to be one of fp16, bf16"):
        library.fill(out, 1.0, arg_casts="fp8")
    with pytest.raises(mg.FormatError, match="is a list of tensors, which arrives as their addresses"):
        library.fill(out, [LentArray(out)])


def test_lists_of_tensors_arrive_as_their_addresses(library):
    out, parts = np.zeros(4, np.float32), [np.full(4, each, np.float32) for each in (1, 2, 3)]
    library.total(LentArray(out), [*map(LentArray, parts[:2]), parts[2]])
    assert out.tolist() == [6, 6, 6, 6]
    with pytest.raises(mg.FormatError, match="total: argument 1 .* it has to have 3"):
        library.total(out, parts[:2])
    with pytest.raises(mg.FormatError, match="total: argument 1 .*float64"):
        library.total(out, [*parts[:2], np.zeros(4)])


def test_threadgroups_are_rows_of_what_a_kernel_can_have(library):
    out = np.zeros((4, 6), np.float32)
    library.where(out, [6, 4], threads=(6, 4), arg_casts="int32")
    assert (out == 6 + 10).all()
    library.where(out, [6, 4], threads=(6, 4), group_size=(3, 2), arg_casts="int32")
    assert (out == 3 + 20).all()
    sizes = np.zeros(100, np.uint32)
    library.small(sizes)
    assert sizes.tolist() == [64] * 64 + [36] * 36
    with pytest.raises(mg.FormatError, match="they have to be as many"):
        library.where(out, [6, 4], threads=(6, 4), group_size=3, arg_casts="int32")
    with pytest.raises(ValueError, match="128 threads, which is above"):
        library.small(sizes, group_size=128)


def test_strides_of_tensors_do_not_matter(library):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    library.twice(LentArray(x.T))
    assert x.ravel().tolist() == [2 * each for each in range(12)]
    library.twice(LentArray(x[:, :2]))
    assert x.ravel().tolist() == [4 * each if each < 6 else 2 * each for each in range(12)]


def test_errors_that_kernels_report_are_raised(library):
    out = np.zeros(4, np.float32)
    with pytest.raises(mg.DeviceError, match="complain: complain in line 7 of f: index 2 is out of range"):
        library.complain(out, error_buf_idx=1)
    library.complain(out, error_buf_idx=1, threads=2)
    assert out.tolist() == [1, 1, 0, 1]


def test_check_says_what_a_kernel_does_wrong(opencl_device, library):
    out = np.zeros(4, np.float32)
    findings = library.fill.check(LentArray(out), 1.0, threads=5)
    assert [each.name for each in findings] == ["out-of-bounds"]
    assert out.tolist() == [0, 0, 0, 0]


def test_source_that_is_refused_is_a_syntax_error():
    with pytest.raises(SyntaxError) as caught:
        torch_mps.compile_shader("kernel void f(device float* x) { x[0] = y; }")
    assert isinstance(caught.value, mg.ShaderError)
    assert (caught.value.line, caught.value.column) == (1, 41)
    with pytest.raises(mg.FormatError, match="source is a bytes"):
        torch_mps.compile_shader(b"kernel void f() {}")


def test_headers_of_pytorch_are_found():
    torch = pytest.importorskip("torch")
    library = torch_mps.compile_shader("""
        #include <c10/metal/special_math.h>
        #include <c10/metal/error.h>
        kernel void erf(device float* y, device const float* x, uint i [[thread_position_in_grid]]) {
            y[i] = c10::metal::erf(x[i]);
        }
        kernel void pick(device float* y, device c10::metal::ErrorMessages* to, uint i [[thread_position_in_grid]]) {
            if (i > 2) { TORCH_REPORT_ERROR(to, "index ", long(i), " is out of range"); }
        }
    """)
    x, y = torch.linspace(-3, 3, 50), torch.zeros(50)
    library.erf(y, x)
    assert (y - torch.erf(x)).abs().max() < 3e-7
    with pytest.raises(mg.DeviceError, match=r"pick in line 8 of .*: index 3 is out of range"):
        library.pick(torch.zeros(4), error_buf_idx=1)
    with pytest.raises(mg.FormatError, match="float16"):
        library.erf(y.half(), x)


@pytest.mark.parametrize("name", ["float", "int", "half", "short", "uchar"])
def test_atomic_operations_of_pytorch_take_functions(name: str):
    torch = pytest.importorskip("torch", minversion="2.13")
    library = torch_mps.compile_shader(f"""
        #include <c10/metal/atomic.h>
        using namespace c10::metal;
        template <typename T> T product(T a, T b) {{ return a * b; }}
        kernel void scatter(device AtomicType_t<{name}>* o, constant {name}* x, uint i [[thread_position_in_grid]]) {{
            AtomicType<{name}>::atomic_binary_op(o, i % 3, x[i], product<{name}>);
        }}
    """)
    dtype = {"half": torch.float16, "short": torch.int16, "uchar": torch.uint8}.get(name) or getattr(torch, name)
    o, x = torch.ones(4, dtype=dtype), torch.arange(1, 7).to(dtype)
    library.scatter(o, x, threads=6)
    assert o.tolist() == [4, 10, 18, 1]


def test_functions_of_pytorch_that_call_themselves_once():
    torch = pytest.importorskip("torch")
    library = torch_mps.compile_shader("""
        #include <c10/metal/special_math.h>
        kernel void bessel(device float* y, device const float* x, uint i [[thread_position_in_grid]]) {
            y[i] = c10::metal::bessel_j1_forward(x[i]);
        }
    """)
    x, y = torch.linspace(-9, 9, 50), torch.zeros(50)
    library.bessel(y, x)
    assert (y - torch.special.bessel_j1(x)).abs().max() < 1e-6
