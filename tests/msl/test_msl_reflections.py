"""Functions that call themselves once, with the negative of a number below 0."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY

import mpsgrad as mg

SOURCE = """
template <typename T> inline T odd(T x) {
    constexpr float scale[] = {2.0f, 0.5f};
    if (x < T(0.0)) {
        return -odd(-x);
    }
    return x * x * scale[1] + T(1);
}
float even(float x) { if (x < 0) return even(-x); float y = x + 1; return y; }
struct Of { static float odd(float x) { if (x < 0.0f) { return - odd(-x); } return sqrt(x); } };
kernel void k(device float* y, device const float* x, uint i [[thread_position_in_grid]]) {
    y[i] = odd(x[i]) + 100 * even(x[i]) + Of::odd(x[i]) + float(odd(half(x[i])));
}
"""


def test_odd_and_even_functions() -> None:
    x = np.array([-4, -1, 0, 1, 9], np.float32)
    y = np.zeros_like(x)
    function = mg.compile(LIBRARY + SOURCE, language_version="3.0").function("k")
    function(5, y, x)
    odd = np.where(x < 0, -1, 1) * (x * x / 2 + 1)
    np.testing.assert_array_equal(y, 2 * odd + 100 * (abs(x) + 1) + np.sign(x) * np.sqrt(abs(x)))
    if mg.default_device().family == "cpu":
        assert not function.check(5, y, x)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="GPUs have recursion")
@pytest.mark.parametrize(
    "text",
    [
        "float g(float x) { if (x < 1) return -g(-x); return x; }",
        "float g(float x) { x -= 1; if (x < 0) return -g(-x); return x; }",
        "float g(float x) { if (x < 0) return -g(-x) + 1; return x; }",
        "float g(float x) { if (x < 0) return -g(-x); return x > 9 ? g(x - 9) : x; }",
    ],
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(mg.ShaderError, match="'g' calls itself: OpenCL has no recursion"):
        mg.compile(f"{LIBRARY}{text} kernel void k(device float* y) {{ y[0] = g(y[1]); }}", language_version="3.0")
