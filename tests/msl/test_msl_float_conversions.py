"""Numbers with a fraction as integers, where C++ leaves open what Metal's users see: NaN is 0, and the ends hold."""

from __future__ import annotations

import numpy as np
import pytest
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

from mpsgrad.devices import Device
from mpsgrad.msl import translate
from mpsgrad.runtime import compile

INTEGERS = {
    "char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16,
    "int": np.int32, "uint": np.uint32, "long": np.int64, "ulong": np.uint64,
}  # fmt: skip
SPECIAL = [
    0.0, -0.0, 0.75, -0.75, 1.5, -1.5, 127.9, 128, -128.9, -129, 255.5, 256, 32767.5, 32768, -32769, 65535.5, 65536,
    2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0, 4294967040.0, 4294967296.0, 9.2e18, 9.3e18, -9.3e18,
    1.8e19, 1.9e19, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-40,
]  # fmt: skip
FORMS = {
    "call": "y[i] = {t}(x[i]);",
    "cast": "y[i] = ({t})x[i];",
    "signed": "y[i] = ({t})-x[i];",
    "static": "y[i] = static_cast<{t}>(x[i] * 1.0f);",
    "initialised": "{t} v = x[i]; y[i] = v;",
    "assigned": "y[i] = x[i];",
    "member": "Pair p[2]; p[1].part = x[i]; p[1].whole = p[1].part; y[i] = p[1].whole;",
    "template": "y[i] = as<{t}>(x[i]);",
    "chosen": "y[i] = {t}(i < 90 ? x[i] : 0.0f);",
    "product": "y[i] = {t}(x[i] * 2 > 0.0f ? x[i] : (i & 1) > 90 ? 1.0f : x[i]);",
    "component": "float3 v = float3(1, x[i], 2); v *= float3(1); y[i] = {t}(v.yx[0]);",
    "lane": "y[i] = {t}((float2(x[i]) + 0 * float2(1))[1]);",
    "kept": "y[i] = of({t}(7), x[i]);",
    "vector": "y[i] = {t}4(float4(x[i])).z;",
    "swizzle": "y[i] = {t}2(float4(x[i]).wx).y;",
    "spread": "y[i] = {t}3(x[i]).z;",
    "components": "y[i] = {t}3({t}(1), x[i], x[i] * 1.0f).z;",
    "added": "{t} v = 0; v += x[i]; y[i] = v;",
    "subtracted": "Pair p[2]; p[i & 1].whole = 0; p[i & 1].whole -= -x[i]; y[i] = p[i & 1].whole;",
    "multiplied": "y[i] = 1; y[i] *= x[i] * 1.0f;",
    "added where it points": "thread {t} v[2]; thread {t}* p = v; p[1] = 0; (*(p + 1)) += x[i]; y[i] = v[1];",
    "pointed at": "thread {t} v[2]; thread {t}* p = v; *p = x[i]; y[i] = *p;",
    "moved to": "thread {t} v[2]; thread {t}* p = v; (*(p + 1)) = x[i]; p[1] = *(p + 1); y[i] = v[1];",
    "returned": "y[i] = returned(x[i]);",
    "passed": "y[i] = passed(1, x[i]);",
    "passed to a template": "y[i] = last(x, x[i]);",
}
HEAD = """
struct Pair {{ {t} whole; float part; }};
template <typename T, typename S> T as(S x) {{ return static_cast<T>(x); }}
{t} returned(float x) {{ if (x > 1e30f) return x; return x * 1.0f; }}
{t} passed(int, const {t} x) {{ return x; }}
template <typename P> {t} last(device P*, {t} x) {{ return x; }}
template <typename T, typename S> T of(T old, S x) {{ return {t}(x) + T(0) * old; }}
"""


def exact(x: np.ndarray, dtype: type) -> np.ndarray:
    """``x`` without its fraction, within the ends of ``dtype``; 0 for NaN."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    found = []
    for number in x.tolist():
        if np.isinf(number):
            found.append(high if number > 0 else low)
        else:
            found.append(0 if np.isnan(number) else min(max(int(number), low), high))
    return np.array(found, object).astype(dtype)


def source(name: str, argument: str = "float") -> str:
    """A kernel that converts by each of ``FORMS``, which have a part of the results each."""
    text = HEAD.format(t=name) + f"kernel void {name}_of_{argument}(device const {argument}* x, device {name}* out,\n"
    text += "    uint i [[thread_position_in_grid]], uint count [[threads_per_grid]]) {\n"
    for k, body in enumerate(FORMS.values()):
        body = body.format(t=name).replace("float", argument).replace("1.0f", f"{argument}(1)")
        text += f"    {{ device {name}* y = out + {k} * count; {body} }}\n"
    return text + "}\n"


def converted(name: str, x: np.ndarray, argument: str = "float") -> dict[str, np.ndarray]:
    """What each form makes of ``x``."""
    out = np.zeros((len(FORMS), len(x)), INTEGERS[name])
    library = compile(LIBRARY + source(name, argument), language_version="3.1")
    library.function(f"{name}_of_{argument}")(len(x), x, out)
    return dict(zip(FORMS, out, strict=True))


@pytest.mark.parametrize("name", INTEGERS)
def test_floats_become_integers(name: str) -> None:
    x = np.array(SPECIAL, np.float32)
    for form, got in converted(name, x).items():
        wanted = exact(-x if form == "signed" else x, INTEGERS[name])
        np.testing.assert_array_equal(got, wanted, err_msg=form)


@pytest.mark.parametrize("name", ["char", "ushort", "int", "ulong"])
@pytest.mark.parametrize("argument", ["half", "bfloat"])
def test_halves_and_bfloats_become_integers(name: str, argument: str) -> None:
    x = np.array([0, 1.5, -1.5, 130, -130, 300, 65504, -65504, np.inf, -np.inf, np.nan], np.float32)
    stored = x.astype(np.float16) if argument == "half" else (x.view(np.uint32) >> 16).astype(np.uint16)
    values = stored.astype(np.float32) if argument == "half" else (stored.astype(np.uint32) << 16).view(np.float32)
    for form, got in converted(name, stored, argument).items():
        wanted = exact(-values if form == "signed" else values, INTEGERS[name])
        np.testing.assert_array_equal(got, wanted, err_msg=form)


CONSTANTS = """
constant int scale = int(2.75f);
constant uchar level = uchar(0.5f * 255);
struct Grid { static constexpr constant int cells = int(3.9f); float data[int(2.5f)]; };
template <int N> struct Of { static constexpr constant int value = N; };
enum class Kind : uchar { one = 1, two = 2 };
struct Meters { float value; operator float() const { return value; } };
template <typename T> int whole(T x) { return int(x); }
kernel void constants(device int* y, device const Meters* lengths) {
    constexpr int rows = static_cast<int>(4.5f);
    float part[int(rows * 1.5f)] = {1};
    y[0] = scale + level + Grid::cells + Of<int(7.9f)>::value + sizeof(part) + sizeof(Grid);
    y[1] = whole(Kind::two) + whole(true) + whole('a') + whole(uint2(3, 4).y) + whole(2.5h);
    Meters length = lengths[0];
    y[2] = int(length) + (int)length.value;
    y[3] = uchar(300.0f) + short(7e4h) + (uchar)1e10f;
}
"""


def test_constants_classes_and_enumerations_become_integers() -> None:
    y, lengths = np.zeros(4, np.int32), np.array([2.5], np.float32)
    compile(LIBRARY + CONSTANTS).function("constants")(1, y, lengths)
    assert y.tolist() == [2 + 127 + 3 + 7 + 24 + 8, 2 + 1 + 97 + 4 + 2, 4, 255 + 32767 + 255]


@pytest.mark.parametrize("name", ["char", "ulong"])
def test_conversions_compile_for_cuda(name: str) -> None:
    for text in (CONSTANTS, source(name), source(name, "bfloat")):
        translation = translate(LIBRARY + text, "cuda", definitions={"__METAL_VERSION__": "310"}, launch="box")
        compile_for_cuda(translation.source, "test.metal")


def test_checked_runs_convert_as_others(opencl_device: Device) -> None:
    text = """
    int place(float x) { return x; }
    kernel void k(device float* y, device const float* x) {
        int first = x[0];
        y[first] = 1;
        y[max(place(x[1]), 0)] = 2;
        y[max(int(x[1]), 0) + (uint)x[2]] = uint2(x[2], x[1]).x;
    }"""
    x, y = np.array([np.nan, -np.inf, -1.5], np.float32), np.zeros(1, np.float32)
    assert not compile(LIBRARY + text).function("k").check(1, y, x)


def test_values_that_are_no_conversions_stay() -> None:
    text = """
    struct Counter {
        int n; float total;
        int operator++(int) thread { return n++; }
        int operator--(int) const device { return n; }
    };
    constant int rows[2][2] = {{1, 2}, {3, 4}};
    template <uint N> struct Pairs { constant int (&all)[N][2]; int second(uint k) const { return all[k][1]; } };
    int next(thread Counter& c) { c.n += 1; c.total += 0.5f; return c.n; }
    int chosen(float x) { auto f = [](float v) { return v * 0.5f; }; return f(x) > 1 ? 1 : 0; }
    void store(device float* y, float v) { *y = v; }
    int next_index(int a) { return a - 4; }
    int added(int a, float b) { int r[2] = {a, 3}; r[next_index(a)] += b; return r[0]; }
    kernel void k(device float* y, device const float* x) {
        Counter c = {0, 0};
        int4 v = int4(next(c), next(c), x[0], 9);
        v.x += x[0];
        v.yz += int2(3);
        y[0] = v.x; y[1] = v.y; y[2] = v.z; y[3] = c.total;
        store(y + 4, x[0]);
        y[5] = chosen(x[0]);
        y[6] = added(4, x[0]);
        Pairs<2> of_rows = {rows};
        y[7] = of_rows.second(1);
        c++;
        simd_vote::vote_t votes = (simd_vote::vote_t)simd_ballot(x[0] > 1);
        y[8] = c.n + (uint)(simd_vote::vote_t)simd_ballot(x[0] > 1) + (ulong)(simd_vote::vote_t)(votes);
    }"""
    y = np.zeros(9, np.float32)
    compile(LIBRARY + text, language_version="3.2").function("k")(1, y, np.array([2.75], np.float32))
    assert y.tolist() == [3, 5, 5, 1, 2.75, 1, 6, 4, 5]
    definitions = {"__METAL_VERSION__": "320"}
    compile_for_cuda(translate(LIBRARY + text, "cuda", definitions=definitions, launch="box").source, "stay.metal")
