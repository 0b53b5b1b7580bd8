"""Classes that functions define, and variables that conditions declare."""

# A line of source for each way to write it.
# ruff: noqa: E501
from __future__ import annotations

import numpy as np
from metal_runner import LIBRARY, run
from nvrtc import compile_for_cuda

from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

LOCAL_CLASSES = """
int outer(int n) {
    struct Q { int v; int squared() const { return v * v; } thread int& held() { return v; } Q operator+(Q o) const { return Q{v + o.v}; } };
    Q q{n};
    q.held() += 1;
    return (q + Q{2}).squared();
}
template <typename T> T in_template(T x) { struct Add { T k; T operator()(T a) const { return a + k; } }; Add f{x}; return f(1); }
[[max_total_threads_per_threadgroup(32)]] kernel void locals(device float* out, uint i [[thread_position_in_grid]]) {
    struct Local {
        int a;
        int twice() const { return a * 2; }
        thread Local& increase() { a++; return *this; }
        float sum(float x) { return simd_sum(x); }
        bool is_large() { if (a > 5) return true; return false; }
        void nothing() { return; }
    };
    struct Pair { float x, y; Pair(float q) : x(q), y(q * 2) {} };
    Local local{int(i)};
    local.increase().nothing();
    out[i] = local.twice() + 1000 * local.sum(1) + 100000 * local.is_large() + outer(i) * 1e6 + in_template(2.5f) + Pair(i).y;
    if (int q = i & 3; q > 1) out[i] += q; else out[i] -= q;
    if (bool is_even = i % 2 == 0) out[i] += is_even; else out[i] += 2 + is_even;
}
"""


def test_classes_in_functions() -> None:
    assert not [each for each in lint(LIBRARY + LOCAL_CLASSES) if each.severity == "error"]
    i = np.arange(32)
    wanted = 2 * (i + 1) + 32000 + 100000.0 * (i > 4) + 1e6 * (i + 3) ** 2 + 3.5 + 2 * i
    wanted += np.where((i & 3) > 1, i & 3, -(i & 3)) + np.where(i % 2 == 0, 1, 2)
    np.testing.assert_allclose(run(LIBRARY + LOCAL_CLASSES, "locals", np.zeros(32, np.float32), threads=32)[0], wanted, rtol=1e-6)
    compile_for_cuda(translate(LIBRARY + LOCAL_CLASSES, "cuda").source, "locals.metal")
