"""Functions as arguments of functions."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

PASSED = """
namespace own { inline float square(float x) { return x * x; } }
inline int square(int x) { return x * x + 1; }
template <typename T> T plus(T a, T b) { return a + b; }
template <typename A> A minus(A a, A b) { return a - b; }
template <typename T> T twice(T (*f)(T), T x) { return f((*f)(x)); }
float fold(device const float* x, uint n, float start, float (*)(float, float));
template <typename T> T both(T (*g)(T), T x);
template <typename A> A difference(device const float* x, A a) { return fold(x, 2, a, minus<A>); }
float fold(device const float* x, uint n, float start, float (*op)(float, float)) {
    float s = start;
    for (uint i = 0; i < n; i++) s = op(s, x[i]);
    return s;
}
template <typename T> T both(T (*f)(T), T x) { return twice(f, x) + twice<T>(f, x); }
template <typename T> struct Of {
    static T update(device T* p, T v, T (*op)(T, T), void (*note)(thread T&)) {
        *p = op(*p, v);
        T noted = *p;
        note(noted);
        return noted;
    }
};
inline void negate(thread float& x) { x = -x; }
template <typename T> T sum(device T* p, T v) { return Of<T>::update(p, v, plus<T>, negate); }
kernel void k(device float* o, device const float* x) {
    o[0] = twice(own::square, 2.0f);
    o[1] = twice(square, 3);
    o[2] = fold(x, 4, 0.0f, plus<float>);
    o[3] = fold(x, 4, -1e9f, max);
    o[4] = both(&own::square, 2.0f);
    o[5] = 5;
    o[6] = sum(o + 5, 2.0f);
    o[7] = twice<float>(sqrt, 16.0f);
    o[8] = difference(x, 10.0f);
}
"""


def test_functions_take_functions() -> None:
    o = np.zeros(9, np.float32)
    mg.compile(LIBRARY + PASSED).function("k")(1, o, np.array([1, 5, 2, 3], np.float32))
    np.testing.assert_array_equal(o, [16, 101, 11, 5, 32, 7, -7, 2, 4])
    compile_for_cuda(translate(LIBRARY + PASSED, "cuda", launch="box").source, "passed.metal")
    assert not [each for each in lint(LIBRARY + PASSED) if each.severity == "error"]


@pytest.mark.parametrize(
    "text",
    [
        "kernel void k(device float* o) { float (*f)(float) = sqrt; o[0] = f(2.0f); }",
        "struct S { float (*f)(float); }; kernel void k(device float* o) { o[0] = 0; }",
        "float g(float (*f)(float), float x); kernel void k(device float* o) { o[0] = 0; }",
    ],
)
def test_pointers_that_are_kept_are_refused(text: str) -> None:
    with pytest.raises(mg.ShaderError, match="function pointers are not supported; a function or a template can take"):
        mg.compile(LIBRARY + text)
