"""``mpsgrad.mlx_fast``: kernels as MLX's ``metal_kernel`` makes them, called as they are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad.mlx_fast import metal_kernel

I = "uint i = thread_position_in_grid.x; "  # noqa: E741


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def run(kernel: Any, inputs: list[Any], shape: tuple[int, ...], dtype: Any = np.float32, **options: Any) -> Any:
    size = int(np.prod(shape))
    options = {"grid": (size, 1, 1), "threadgroup": (256, 1, 1), **options}
    (result,) = kernel(inputs=inputs, output_shapes=[shape], output_dtypes=[dtype], **options)
    return result


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_template_over_types(dtype, rng):
    kernel = metal_kernel("exponential", ["x"], ["y"], I + "T value = x[i]; y[i] = metal::exp(value);")
    x = rng.standard_normal((3, 5)).astype(dtype)
    y = run(kernel, [x], x.shape, dtype, template=[("T", np.float32)])
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert np.allclose(y, np.exp(x.astype(np.float64)), rtol=2 * np.finfo(dtype).eps)


def test_integers_and_truths_as_template_arguments():
    kernel = metal_kernel("pick", ["x"], ["y"], I + "y[i] = negates ? -x[i] * n : x[i] * n;")
    x = np.arange(9, dtype=np.int32)
    assert run(kernel, [x], (9,), "int32", template=[("n", 3), ("negates", True)]).tolist() == (-3 * x).tolist()
    assert run(kernel, [x], (9,), "int32", template=[("n", 2), ("negates", False)]).tolist() == (2 * x).tolist()


def test_shapes_strides_and_small_inputs_are_declared_as_they_are_used(capsys):
    body = I + "y[i] = x[elem_to_loc(i, x_shape, x_strides, x_ndim)] * small[1] + scalar;"
    kernel = metal_kernel("mixed", ["x", "small", "scalar"], ["y"], body, ensure_row_contiguous=False)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    y = run(kernel, [x.T, np.array([2, 3], np.float16), 0.5], (6, 4), verbose=True)
    assert np.array_equal(y, x.T * 3 + 0.5)
    text = capsys.readouterr().out
    for declaration in (
        "const device float* x [[buffer(0)]]",
        "const constant int* x_shape [[buffer(1)]]",
        "const constant int64_t* x_strides [[buffer(2)]]",
        "const constant int& x_ndim [[buffer(3)]]",
        "const constant float16_t* small [[buffer(4)]]",
        "const constant float& scalar [[buffer(5)]]",
        "device float* y [[buffer(6)]]",
        "uint3 thread_position_in_grid [[thread_position_in_grid]]",
    ):
        assert declaration in text
    assert "small_shape" not in text


SLICES = st.sampled_from(
    [slice(6), slice(1, 5), slice(0, 6, 2), slice(2, None, 3), slice(None, None, -1), slice(4, 1, -2)]
)


@given(st.tuples(SLICES, SLICES, SLICES), st.permutations(range(3)), st.booleans())
def test_views_have_their_elements(slices, axes, makes_contiguous):
    x = np.arange(6**3, dtype=np.int32).reshape(6, 6, 6)[slices]
    x = x.transpose(axes)
    body = I + "y[i] = x[elem_to_loc(i, x_shape, x_strides, x_ndim)];"
    kernel = metal_kernel("gather", ["x"], ["y"], body, ensure_row_contiguous=makes_contiguous)
    assert np.array_equal(run(kernel, [x], x.shape, "int32"), x)


def test_places_by_axes():
    body = """
        uint3 p = thread_position_in_grid;
        y[(p.z * 4 + p.y) * 5 + p.x] = x[elem_to_loc(p, x_shape, x_strides, x_ndim)]
            + 1000 * (elem_to_loc_3(p, x_strides) == elem_to_loc(p, x_shape, x_strides, x_ndim));
    """
    x = np.arange(60, dtype=np.int32).reshape(5, 4, 3).T
    kernel = metal_kernel("axes", ["x"], ["y"], body, ensure_row_contiguous=False)
    y = run(kernel, [x], x.shape, "int32", grid=(5, 4, 3), threadgroup=(8, 2, 2))
    assert np.array_equal(y, x + 1000)


def test_atomic_outputs_and_initial_values():
    body = I + "atomic_fetch_add_explicit(&total[i % 2], x[i], memory_order_relaxed);"
    kernel = metal_kernel("totals", ["x"], ["total"], body, atomic_outputs=True)
    y = run(kernel, [np.ones(64, np.float32)], (3,), grid=(64, 1, 1), init_value=0.5)
    assert y.tolist() == [32.5, 32.5, 0.5]


def test_several_outputs_and_a_header():
    kernel = metal_kernel(
        "both",
        ["x"],
        ["a", "b"],
        I + "a[i] = twice(x[i]); b[i] = x[i] > 1;",
        "inline float twice(float v) { return 2 * v; }",
    )
    x = np.arange(4, dtype=np.float32)
    a, b = kernel(
        inputs=[x], output_shapes=[(4,), (2, 2)], output_dtypes=["float32", bool], grid=(4, 1, 1), threadgroup=(4, 1, 1)
    )
    assert a.tolist() == [0, 2, 4, 6]
    assert b.tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize(
    ("given", "metal"),
    [(2, "int"), (2.5, "float"), (True, "bool"), (2**40, "int64_t"), (1j, "complex64_t"),
     (np.float64(0.5), "float"), (np.arange(9.0), "float"), (np.arange(9, dtype=np.uint8), "uint8_t"),
     (np.arange(9, dtype=complex), "complex64_t")],
)  # fmt: skip
def test_inputs_have_the_types_that_mlx_gives_them(given, metal, capsys):
    kernel = metal_kernel("kinds", ["x"], ["y"], "y[0] = sizeof(x);")
    run(kernel, [given], (1,), "int32", verbose=True)
    pointer = f"const device {metal}* x" if np.ndim(given) else f"const constant {metal}& x"
    assert f"  {pointer} [[buffer(0)]]" in capsys.readouterr().out


def test_complex_numbers(rng):
    body = I + "y[i] = x[i] * z[i] / (x[i] + z[i]) - x[i];"
    kernel = metal_kernel("complex", ["x", "z"], ["y"], body)
    x, z = (rng.standard_normal((2, 9)) + 1j * rng.standard_normal((2, 9))).astype(np.complex64)
    expected = x.astype(complex) * z / (x.astype(complex) + z) - x
    assert np.allclose(run(kernel, [x, z], (9,), "complex64"), expected, rtol=1e-4, atol=1e-5)


def test_what_a_body_may_use_besides_the_standard_library():
    body = """
        y[0] = Limits<float>::min; y[1] = Limits<half>::finite_max; y[2] = Limits<int>::max;
        y[3] = float(Limits<bfloat16_t>::finite_max); y[4] = ceildiv(7, 2); y[5] = log1p(x[0]); y[6] = log1p(x[1]);
        y[7] = Limits<bool>::max;
    """
    x = np.array([1e-6, np.inf], np.float32)
    y = run(metal_kernel("used", ["x"], ["y"], body), [x], (8,), grid=(1, 1, 1))
    assert y[[0, 1, 2, 4, 6, 7]].tolist() == [-np.inf, 65504, float(np.float32(2**31)), 4, np.inf, 1]
    assert y[3] == np.float32(3.3895313892515355e38)
    assert abs(y[5] - np.log1p(np.float64(x[0]))) < 2**-23 * 1e-6


def test_infinity_is_kept_by_default_and_math_modes_are_known():
    kernel = metal_kernel("masked", ["x"], ["y"], I + "y[i] = exp(x[i]);")
    assert run(kernel, [np.array([-np.inf, 0], np.float32)], (2,)).tolist() == [0, 1]
    metal_kernel("fast", ["x"], ["y"], "y[0] = x[0];", compile_options={"math_mode": "fast"})
    for options in ({"math_mode": "quick"}, {"speed": "fast"}):
        with pytest.raises(mg.FormatError, match="it may have a math_mode of safe, relaxed, fast"):
            metal_kernel("fast", ["x"], ["y"], "y[0] = x[0];", compile_options=options)


def test_errors_name_the_line_of_the_body_or_of_the_header():
    with pytest.raises(mg.ShaderError, match="^wrong:3:8: .*'missing'"):
        run(metal_kernel("wrong", ["x"], ["y"], "\n\ny[0] = missing;"), [1.0], (1,))
    with pytest.raises(mg.ShaderError, match=r"^wrong \(header\):2:"):
        run(metal_kernel("wrong", ["x"], ["y"], "y[0] = x;", "\nfloat f() { return missing; }"), [1.0], (1,))


def test_check_says_what_a_kernel_does_wrong(opencl_device):
    kernel = metal_kernel("shifted", ["x"], ["y"], "\n" + I + "y[i] = x[i + 1];")
    x = np.zeros(16, np.float32)
    shapes = {"output_shapes": [(17,)], "output_dtypes": ["float32"]}
    findings = kernel.check(inputs=[x], **shapes, grid=(16, 1, 1), threadgroup=(16, 1, 1))
    assert [(each.file, each.line, each.name) for each in findings] == [
        ("shifted", 2, "out-of-bounds"),
        ("shifted (signature)", 1, "unwritten-output"),
    ]


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"inputs": []}, mg.GeometryError, "inputs has 0 elements; it has to have 1"),
        ({"output_shapes": [(4,), (4,)]}, mg.GeometryError, "output_shapes has 2 elements; it has to have 1"),
        ({"output_dtypes": []}, mg.GeometryError, "output_dtypes has 0 elements"),
        ({"output_dtypes": ["float64"]}, mg.FormatError, "type of output 'y' is 'float64'; it has to be one of bool"),
        ({"inputs": ["text"]}, mg.FormatError, "input 'x' is 'text'; it has to be an array or a number"),
        ({"inputs": [np.zeros(4, "datetime64[s]")]}, mg.FormatError, "input 'x' is dtype"),
        ({"template": [("T", "float8")]}, mg.FormatError, "template argument 'T' is 'float8'"),
        ({"grid": (4, 1)}, mg.GeometryError, r"grid is \(4, 1\) and threadgroup is \(4, 1, 1\); .* three extents"),
        ({"grid": (0, 1, 1)}, mg.GeometryError, "every extent has to be at least 1"),
        ({"threadgroup": (64, 32, 1), "grid": (64, 32, 1)}, mg.GeometryError, "2048 threads"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes, kind, words):
    kernel = metal_kernel("copy", ["x"], ["y"], I + "y[i] = x[i];")
    arguments: dict[str, Any] = {
        "inputs": [np.zeros(4, np.float32)], "output_shapes": [(4,)], "output_dtypes": ["float32"],
        "grid": (4, 1, 1), "threadgroup": (4, 1, 1),
    }  # fmt: skip
    with pytest.raises(kind, match=f"copy: .*{words}"):
        kernel(**arguments | changes)


def test_names_have_to_be_names():
    for names in (("a b", ["x"], ["y"]), ("a", ["x*"], ["y"]), ("a", ["x"], ["1y"])):
        with pytest.raises(mg.FormatError, match="is no name of a kernel, an input or an output"):
            metal_kernel(*names, "")
    with pytest.raises(mg.GeometryError, match="at least one output"):
        metal_kernel("a", ["x"], [], "")


def test_bfloat16_needs_a_package_that_has_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    kernel = metal_kernel("copy", ["x"], ["y"], I + "y[i] = bfloat16_t(x[i]);")
    with pytest.raises(mg.FormatError, match="output 'y' is bfloat16, which NumPy has only with the package ml_dtypes"):
        run(kernel, [np.zeros(9, np.float32)], (9,), "bfloat16")


def test_arrays_of_mlx():
    mx = pytest.importorskip("mlx.core")
    body = I + "T value = x[i]; y[i] = T(float(value) * 2.0f);"
    kernel = metal_kernel("double", ["x"], ["y"], body)
    for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.int32):
        x = mx.arange(24).astype(dtype).reshape(4, 6)[::2]
        y = run(kernel, [x], x.shape, dtype, template=[("T", dtype)])
        assert (y.dtype, mx.array_equal(y, x * 2).item()) == (dtype, True)


def test_a_forward_kernel_and_its_gradient_by_atomics_and_simdgroups(rng):
    """Rows of 32 numbers between others: y = (1 - f) x[n] + f x[n + 1] where a place is n + f."""
    names = ["x", "places"]
    here = """
        uint i = thread_position_in_grid.x, row = i / 32, lane = thread_index_in_simdgroup;
        int n = clamp(int(floor(places[row])), 0, x_shape[0] - 2);
        T f = places[row] - n;
    """
    forward = metal_kernel("between", names, ["y"], here + "y[i] = mix(x[n * 32 + lane], x[n * 32 + 32 + lane], f);")
    backward = metal_kernel(
        "between_gradient",
        [*names, "dy"],
        ["dx", "dplaces"],
        here
        + """
        atomic_fetch_add_explicit(&dx[n * 32 + lane], (1 - f) * dy[i], memory_order_relaxed);
        atomic_fetch_add_explicit(&dx[n * 32 + 32 + lane], f * dy[i], memory_order_relaxed);
        T slope = simd_sum((x[n * 32 + 32 + lane] - x[n * 32 + lane]) * dy[i]);
        if (lane == 0) atomic_fetch_add_explicit(&dplaces[row], slope, memory_order_relaxed);
        """,
        atomic_outputs=True,
    )
    x, places = rng.standard_normal((6, 32)).astype(np.float32), rng.uniform(0, 5, 20).astype(np.float32)
    dy = rng.standard_normal((20, 32)).astype(np.float32)
    n = np.clip(np.floor(places).astype(int), 0, 4)
    f = (places.astype(float) - n)[:, None]
    y = run(forward, [x, places], (20, 32), template=[("T", "float32")])
    assert np.allclose(y, (1 - f) * x[n] + f * x[n + 1], rtol=1e-5, atol=1e-6)
    dx, dplaces = backward(
        inputs=[x, places, dy],
        template=[("T", "float32")],
        output_shapes=[x.shape, places.shape],
        output_dtypes=["float32", "float32"],
        grid=(20 * 32, 1, 1),
        threadgroup=(128, 1, 1),
        init_value=0,
    )
    expected = np.zeros(x.shape)
    np.add.at(expected, n, (1 - f) * dy)
    np.add.at(expected, n + 1, f * dy)
    assert np.allclose(dx, expected, rtol=1e-5, atol=1e-5)
    assert np.allclose(dplaces, ((x[n + 1].astype(float) - x[n]) * dy).sum(axis=1), rtol=1e-4, atol=1e-5)
