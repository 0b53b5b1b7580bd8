"""Matrices of simdgroups kept in the compiler's own type, as metal-flash-attention keeps them."""

from __future__ import annotations

import numpy as np
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint
from mpsgrad.runtime import compile

SOURCE = """
#pragma METAL internals : enable
namespace metal {
template <typename T> struct held_matrix {
  typedef vec<T, 64> storage_type;
  storage_type t;
  METAL_FUNC thread vec<T, 2>* thread_elements() thread { return reinterpret_cast<thread vec<T, 2>*>(&t); }
  METAL_FUNC held_matrix() thread = default;
  METAL_FUNC held_matrix(vec<T, 2> elements) thread { *(this->thread_elements()) = elements; }
  METAL_FUNC held_matrix(T x, T y) thread { *(thread_elements()) = vec<T, 2>(x, y); }
  METAL_FUNC void load(const device T* p, uint stride, ushort2 origin) {
    *(thread_elements()) = vec<T, 2>(p[origin.y * stride + origin.x], p[origin.y * stride + origin.x + 1]);
  }
  METAL_FUNC void store(device T* p, uint stride, ushort2 origin) {
    vec<T, 2> own = *(thread_elements());
    p[origin.y * stride + origin.x] = own[0];
    p[origin.y * stride + origin.x + 1] = own[1];
  }
  template <typename U, typename V>
  METAL_FUNC void multiply(held_matrix<U> a, held_matrix<V> b, bool accumulate = true) {
    if (!accumulate) *(thread_elements()) = vec<T, 2>(0);
    t = __metal_simdgroup_matrix_8x8_multiply_accumulate(a.t, b.t, t, typename held_matrix<T>::storage_type());
  }
};
}
#pragma METAL internals : disable
kernel void product(const device half* a, const device float* b, device float* c,
                    ushort lane [[thread_index_in_simdgroup]]) {
  ushort2 origin((lane / 8 % 2) * 4 + (lane % 2) * 2, (lane / 16) * 4 + (lane / 2) % 4);
  held_matrix<half> x[2];
  held_matrix<float> y, z = held_matrix<float>(float2(1, 2));
  held_matrix<float> w = held_matrix<float>(3, 4);
  for (ushort i = 0; i < 2; i++) {
    x[i].load(a + 8 * i, 16, origin);
    y.load(b + 64 * i, 8, origin);
    z.multiply(x[i], y, i > 0);
  }
  z.store(c, 8, origin);
  w.store(c + 64, 8, origin);
}
"""


def test_products() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((8, 16)).astype(np.float16)
    b = rng.standard_normal((16, 8)).astype(np.float32)
    c = np.zeros((16, 8), np.float32)
    compile(LIBRARY + SOURCE).function("product")(32, a, b, c, threadgroup=32)
    assert (c[8:] == [3, 4] * 4).all()
    assert np.allclose(c[:8], a.astype(float) @ b.astype(float), atol=1e-5)
    assert [str(each) for each in lint(LIBRARY + SOURCE)] == []


def test_products_for_nvidia() -> None:
    compile_for_cuda(translate(LIBRARY + SOURCE, "cuda", launch="box").source, "test.metal")


BFLOATS = """
template <typename T> void squared(device float* x) {
  simdgroup_matrix<T, 8, 8> a = make_filled_simdgroup_matrix<T, 8>(T(2));
  simdgroup_matrix<float, 8, 8> c = make_filled_simdgroup_matrix<float, 8>(1.0f);
  simdgroup_multiply_accumulate(c, a, a, c);
  simdgroup_store(c, x, 8);
}
kernel void square(device float* x) { squared<bfloat>(x); }
"""


def test_matrices_of_bfloats_by_their_template_only() -> None:
    x = np.zeros((8, 8), np.float32)
    compile(LIBRARY + BFLOATS, language_version="3.1").function("square")(32, x, threadgroup=32)
    assert (x == 33).all()
    definitions = {"__METAL_VERSION__": "310"}
    compile_for_cuda(translate(LIBRARY + BFLOATS, "cuda", definitions=definitions, launch="box").source, "test.metal")


def test_products_of_bfloats() -> None:
    source = LIBRARY + SOURCE.replace("half", "bfloat")
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((8, 16)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    b = rng.standard_normal((16, 8)).astype(np.float32)
    c = np.zeros((16, 8), np.float32)
    compile(source, language_version="3.1").function("product")(32, a, b, c, threadgroup=32)
    assert np.allclose(c[:8], (a.astype(np.uint32) << 16).view(np.float32).astype(float) @ b, atol=1e-5)
