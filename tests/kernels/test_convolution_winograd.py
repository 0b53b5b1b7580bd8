"""3 x 3 and 5 x 5 convolutions by Winograd's method, an algorithm for GPUs, on whatever device the tests have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convolution import Layer, layers, run
from test_convolution_variants import check_against_the_references, make

import mpsgrad as mg
from mpsgrad import testing
from mpsgrad.kernels import convolution_weights, convolution_winograd
from mpsgrad.kernels.convolution_dispatch import Algorithm
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_tile import Tiling, all_tiles, tiling
from mpsgrad.testing import assert_within, error_bound

UNITS = 132
"""Compute units of an H200."""
WINDOW = (3, 3, 1, 1, 1, 1, -1, -1)


TRANSFORM_TERMS = 24
"""The transforms of a tile round about as often as a sum of so many terms."""


@pytest.fixture(scope="module", autouse=True)
def formats_of_gpus() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "CHANNEL_FORMATS", gpu_forms.FORMATS)
        yield


@dataclass(frozen=True)
class TiledLayer(Layer):
    """A layer of few terms, for which it counts that a tile's pixels, or a window's taps, share their roundings.

    The bounds are those of a sum of the largest values that a tile can have.
    """

    @cached_property
    def forward_bound(self) -> np.ndarray:
        biases = 0 if self.biases is None else np.abs(self.biases)
        magnitude = np.abs(self.weights).sum((1, 2, 3)) * np.abs(self.source).max() + biases
        return error_bound(self.dtype, self.weights[0].size + TRANSFORM_TERMS, magnitude, self.expected)

    @cached_property
    def data_bound(self) -> np.ndarray:
        magnitude = np.abs(self.weights).sum((0, 1, 2)) * np.abs(self.gradient).max()
        return error_bound(self.dtype, self.weights[..., 0].size + TRANSFORM_TERMS, magnitude, self.expected_data)

    @cached_property
    def weights_bound(self) -> np.ndarray:
        pixels = self.gradient[..., 0].size
        magnitude = pixels * np.abs(self.gradient).max() * np.abs(self.source).max()
        return error_bound(np.float32, pixels + TRANSFORM_TERMS, magnitude, self.expected_weights)


def forget_plans() -> None:
    convolution_winograd.plan_gather.cache_clear()
    convolution_winograd.plan_weights.cache_clear()


@pytest.fixture
def wherever_possible() -> Iterator[pytest.MonkeyPatch]:
    """The method is used for each geometry that it can do, by parts of a few tiles and in several splits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.TILES)
        patch.setattr(convolution_winograd, "pays", lambda *arguments: True)
        forget_plans()
        yield patch
    forget_plans()


def dispatches(layer: Layer) -> list[list[str]]:
    """The names of what the forward kernel, the data gradient and the weight gradient dispatch."""
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
    state = kernel.result_state(source, destination_image=gradient)
    found = []
    for option in 0, 1, 2:
        commands = mg.CommandBuffer()
        if option:
            gradient_kernel.gradient_option = mg.ConvolutionGradientOption(option)
            gradient_kernel.encode(commands, gradient, source, state)
        else:
            kernel.encode(commands, source, destination_image=mg.Image(gradient.descriptor))
        found.append([dispatch.function.name for dispatch in commands._dispatches])
    return found


def uses_winograd(layer: Layer) -> list[bool]:
    return [any(name.startswith("winograd_") for name in names) for names in dispatches(layer)]


def tiled(layer: Layer) -> TiledLayer:
    return TiledLayer(**{field.name: getattr(layer, field.name) for field in fields(layer)})


# (taps, source, inputs, outputs, padding, images)
GEOMETRIES = [
    (3, (8, 8), 8, 12, (1, 1), 2),
    (3, (14, 14), 36, 68, (1, 1), 1),
    (3, (9, 11), 40, 36, (1, 1), 3),
    (3, (7, 6), 16, 136, (0, 0), 5),
    (3, (3, 3), 4, 4, (0, 0), 2),
    (3, (1, 1), 8, 4, (1, 1), 4),
    (3, (2, 5), 12, 8, (2, 1), 3),
    (3, (5, 4), 4, 20, (5, 7), 2),
    (5, (9, 11), 40, 36, (2, 2), 3),
    (5, (5, 6), 4, 12, (0, 0), 2),
    (5, (1, 3), 8, 4, (2, 3), 4),
    (3, (9, 11), 37, 66, (1, 1), 2),
    (3, (5, 6), 3, 1, (0, 0), 2),
    (5, (9, 8), 35, 8, (2, 2), 2),
]


@pytest.mark.parametrize(("taps", "size", "inputs", "outputs", "padding", "images"), GEOMETRIES)
def test_geometries_against_the_references(taps, size, inputs, outputs, padding, images, wherever_possible):
    layer = tiled(make(size, inputs, outputs, (taps, taps), padding=padding, images=images))
    assert uses_winograd(layer) == [True] * 3
    check_against_the_references(layer, runs=2)


@st.composite
def winograd_layers(draw: Any) -> Layer:
    """Images and results of any sizes, windows that begin anywhere, and channels in fours and others."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    source = draw(st.tuples(st.integers(1, 11), st.integers(1, 11)))
    size = draw(st.tuples(st.integers(1, 11), st.integers(1, 11)))
    offset = draw(st.tuples(st.integers(-4, 4), st.integers(-4, 4)))
    channels = st.integers(1, 9).map(lambda quads: 4 * quads) | st.integers(1, 36)
    inputs, outputs = draw(channels), draw(channels)
    images, taps = draw(st.integers(1, 5)), draw(st.sampled_from(convolution_winograd.TAPS))
    return TiledLayer(
        random.standard_normal((images, *source, inputs)).astype(np.float32),
        random.standard_normal((outputs, taps, taps, inputs)).astype(np.float32),
        random.standard_normal(outputs).astype(np.float32) if draw(st.booleans()) else None,
        random.standard_normal((images, *size, outputs)).astype(np.float32),
        {"stride": (1, 1), "dilation": (1, 1), "offset": offset, "size": size},
        1,
        "zero",
    )


@given(layer=winograd_layers(), part=st.sampled_from([1 << 26, 20_000, 1]))
@settings(max_examples=20)
def test_random_layers_against_the_references(layer, part):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.TILES)
        patch.setattr(convolution_winograd, "pays", lambda *arguments: True)
        patch.setattr(convolution_winograd, "LARGEST_WORKSPACE", part)
        forget_plans()
        check_against_the_references(layer, runs=2)
    forget_plans()


def test_a_large_batch_is_computed_in_parts_that_fit_the_workspace(wherever_possible):
    layer = make((9, 10), 16, 20, (3, 3), padding=(1, 1), images=5)
    # Weights are packed ahead; their gradient is transformed back once, at the end.
    assert [len(names) for names in dispatches(layer)] == [3, 3, 4]
    whole, whole_dx, state = run(layer)
    wherever_possible.setattr(convolution_winograd, "LARGEST_WORKSPACE", 36 * 36 * 16)
    forget_plans()
    assert [len(names) for names in dispatches(layer)] == [3 * 3, 3 * 3, 3 * 3 + 1]
    check_against_the_references(layer, runs=2)
    parts, parts_dx, _ = run(layer)
    assert np.array_equal(parts, whole) and np.array_equal(parts_dx, whole_dx), "a tile's bits depend on its part"


@pytest.mark.parametrize(
    ("size", "images", "part"),
    [
        pytest.param((30, 29), 2, 1 << 26, id="whole"),
        pytest.param((30, 29), 2, 60_000, id="parts"),
        # Parts of 64 tiles and a last one of 16, which leaves nothing for the second of two splits.
        pytest.param((28, 28), 16, 53_100, id="empty_split"),
    ],
)
@pytest.mark.parametrize("are_few", [False, True], ids=["many_windows", "few_windows"])
def test_weight_gradients_are_split_where_there_are_many_tiles(size, images, part, are_few, wherever_possible):
    wherever_possible.setattr(convolution_winograd, "FEW_WINDOWS", UNITS if are_few else 0)
    wherever_possible.setattr(convolution_winograd, "LARGEST_WORKSPACE", part)
    wherever_possible.setattr(mg.default_device(), "compute_units", UNITS)
    # With as many splits as there can be, on any device.
    wherever_possible.setattr(convolution_winograd, "tiling", lambda family: tiling("cpu"))
    layer = make(size, 8, 16, (3, 3), padding=(1, 1), images=images)
    commands = mg.CommandBuffer()
    gradient, source = mg.Image.from_array(layer.gradient), mg.Image.from_array(layer.source)
    state = layer.convolution().result_state(source, destination_image=gradient)
    mg.ConvolutionGradient(layer.data_source()).encode(commands, gradient, source, state)
    threadgroups = {d.threadgroups for d in commands._dispatches if d.function.name.endswith("by_products")}
    assert all(count >= 2 * 37 and count % 37 == 0 for count in threadgroups) and threadgroups
    names = {d.function.name for d in commands._dispatches if "weights_gradient" in d.function.name}
    assert names == {"winograd_weights_gradient" + "_of_few" * are_few}
    check_against_the_references(layer, runs=2)


@pytest.mark.parametrize(
    "tile", sorted(tile for kind, _, tile in all_tiles() if kind == "planes"), ids=lambda tile: tile.name
)
def test_each_tile_of_any_device(tile, wherever_possible):
    def only(family: str) -> Tiling:
        return replace(tiling(family), tiles={("planes", "float"): (tile,)})

    wherever_possible.setattr(convolution_winograd, "tiling", only)
    layer = make((19, 21), 20, 136, (3, 3), padding=(1, 1))
    products = [name for names in dispatches(layer) for name in names if "product" in name]
    assert products == [f"winograd_product_{tile.name}_{kind}" for kind in ("by_rows", "by_rows", "by_products")]
    check_against_the_references(layer, runs=2)


def test_weights_behind_the_last_channel_are_not_read(wherever_possible):
    layer = make((8, 8), 5, 3, (3, 3), padding=(1, 1))
    layer.weights[1] = np.inf
    with mg.CommandBuffer() as commands:
        result = layer.convolution().encode(commands, mg.Image.from_array(layer.source))
    y = np.asarray(result)
    assert np.isfinite(y[..., [0, 2]]).all() and not np.isfinite(y[..., 1]).any()


@pytest.mark.parametrize("few_windows", [0, 64])
def test_gradients_for_weights_add_up_in_a_state(few_windows, wherever_possible):
    wherever_possible.setattr(convolution_winograd, "FEW_WINDOWS", few_windows)
    layer = make((9, 7), 8, 12, (3, 3), padding=(1, 1))
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    gradient_kernel.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
    state = kernel.result_state(source, destination_image=gradient)
    for _ in range(2):
        with mg.CommandBuffer() as commands:
            gradient_kernel.encode(commands, gradient, source, state)
    twice = replace(layer, source=np.concatenate([layer.source] * 2), gradient=np.concatenate([layer.gradient] * 2))
    twice.check_state(state)


def test_weights_that_change_on_the_device_are_transformed_again(wherever_possible):
    layer = make((9, 7), 8, 12, (3, 3), padding=(1, 1))
    other = replace(layer, weights=layer.weights[::-1] * 2, biases=layer.biases - 1)
    kernel, source = layer.convolution(), mg.Image.from_array(layer.source)
    state = mg.ConvolutionWeightsAndBiasesState.from_arrays(other.weights, other.biases)
    with mg.CommandBuffer() as commands:
        before = kernel.encode(commands, source)
        kernel.reload_weights_and_biases(commands, state)
        after = kernel.encode(commands, source)
    assert_within(np.asarray(before), layer.expected, layer.forward_bound)
    assert_within(np.asarray(after), other.expected, other.forward_bound)


@pytest.mark.parametrize(("offset", "extra", "is_aligned"), [(4, 4, True), (4, 1, False), (8, 2, False)])
def test_channels_of_wider_images(offset, extra, is_aligned, wherever_possible):
    layer = make((7, 6), 16, 24, (3, 3), padding=(1, 1))
    wide = np.full((*layer.source.shape[:3], offset + 16 + extra), 9, np.float32)
    wide[..., offset : offset + 16] = layer.source
    kernel = layer.convolution()
    kernel.source_feature_channel_offset = kernel.destination_feature_channel_offset = offset
    height, width = layer.result_shape[1:3]
    background = np.full((2, height, width, offset + 24 + extra), 5, np.float32)
    result = mg.Image.from_array(background)
    kernel.clip_rect = mg.Region(mg.Origin(0, 0, 0), mg.Size(width, height, 2))
    commands = mg.CommandBuffer()
    kernel.encode(commands, mg.Image.from_array(wide), destination_image=result)
    names = [d.function.name for d in commands._dispatches]
    assert [name.endswith(convolution_winograd.OF_SINGLES) for name in names] == [not is_aligned, False, not is_aligned]
    commands.commit()
    after = np.array(result)
    part = (..., slice(offset, offset + 24))
    assert_within(after[part], layer.expected, layer.forward_bound)
    after[part] = 5
    assert np.array_equal(after, background), "channels beside the result changed"


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (((9, 8), 8, 8, (3, 5)), {}),
        (((9, 8), 8, 8, (1, 1)), {}),
        (((9, 8), 8, 8, (3, 3)), {"stride": (1, 2)}),
        (((9, 8), 8, 8, (3, 3)), {"dilation": (2, 1)}),
        (((9, 8), 8, 8, (3, 3)), {"groups": 2}),
        (((9, 8), 8, 8, (3, 3)), {"padding": (1, 1), "edge": "clamp"}),
    ],
)
def test_other_convolutions_are_left_to_other_kernels(arguments, options, wherever_possible):
    assert uses_winograd(make(*arguments, **options)) == [False] * 3


@gpu_forms.of_halves
def test_halves_are_left_to_other_kernels(wherever_possible):
    assert uses_winograd(make((9, 8), 8, 8, (3, 3), dtype=np.float16)) == [False] * 3


@given(layers(more_channels=False))
@settings(max_examples=10)
def test_layers_of_all_kinds(layer):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.TILES)
        patch.setattr(convolution_winograd, "pays", lambda *arguments: True)
        forget_plans()
        check_against_the_references(layer, runs=2)
    forget_plans()


def test_encodes_of_one_command_buffer_share_their_workspace(wherever_possible):
    layers = [make((n, n), 16, 16, (3, 3), padding=(1, 1)) for n in (9, 8, 13)]
    kernels = [layer.convolution() for layer in layers]
    for _ in range(2):
        with mg.CommandBuffer() as commands:
            results = [
                kernel.encode(commands, mg.Image.from_array(layer.source))
                for kernel, layer in zip(kernels, layers, strict=True)
            ]
            assert len(commands._lent.workspaces) == 2, "the second fits into the first's, the third needs more"
        for layer, result in zip(layers, results, strict=True):
            assert_within(np.asarray(result), layer.expected, layer.forward_bound)


def layout(images: int, size: int, channels: int) -> tuple[int, ...]:
    return 0, channels, size * channels, size * size * channels, size, size, channels, images


@pytest.mark.parametrize(
    ("images", "size", "channels", "expected"),
    [
        (64, 28, 128, True),
        (32, 7, 512, True),
        (32, 8, 1024, True),
        (1, 14, 256, False),
        (64, 28, 8, False),
        (16, 28, 99, True),
        (16, 30, 50, True),
        (4, 64, 18, False),
    ],
)
def test_a_gpu_uses_the_method_where_it_saves_enough(images, size, channels, expected):
    image = layout(images, size, channels)
    geometry, where = ConvolutionGeometry(image, image, WINDOW), ("float", "nvidia", UNITS)
    plans = [
        convolution_winograd.plan_gather(geometry, False, *where),
        convolution_winograd.plan_gather(geometry, True, *where),
        convolution_winograd.plan_weights(geometry, False, *where),
    ]
    assert [plan is not None for plan in plans] == [expected] * 3


def test_the_workspace_is_bounded():
    image = layout(256, 224, 64)
    geometry = ConvolutionGeometry(image, image, WINDOW)
    for plan in (
        convolution_winograd.plan_gather(geometry, False, "float", "nvidia", UNITS),
        convolution_winograd.plan_weights(geometry, False, "float", "nvidia", UNITS),
    ):
        assert plan is not None and len(plan.steps) > 20
        assert plan.workspace <= 1.1 * 4 * convolution_winograd.LARGEST_WORKSPACE


@pytest.mark.parametrize(("taps", "inputs"), [(3, 64), (3, 256), (5, 64)])
def test_errors_are_about_those_of_a_plain_sum(taps, inputs, wherever_possible):
    layer = make((14, 14), inputs, 4, (taps, taps), images=1)
    y, _, state = run(layer)
    windows = np.lib.stride_tricks.sliding_window_view(layer.source[0], (taps, taps), (0, 1))

    def plain_sums(products: np.ndarray) -> np.ndarray:
        return np.cumsum(products, -1, np.float32)[..., -1]

    def error(result: np.ndarray, exact: np.ndarray) -> float:
        return float(np.sqrt(np.mean((result - exact) ** 2)))

    exact = layer.expected
    products = windows[..., None, :, :, :] * layer.weights.transpose(0, 3, 1, 2)
    plain = plain_sums(products.reshape(*products.shape[:3], -1)) + layer.biases
    assert error(y, exact) < 2.5 * error(plain[None], exact)

    exact = layer.expected_weights
    products = np.einsum("yxo,yxcij->oijcyx", layer.gradient[0], windows)
    plain = plain_sums(products.reshape(*products.shape[:4], -1))
    factor = 3 if taps == 3 else 4.5
    assert error(state.gradient_for_weights.reshape(exact.shape), exact) < factor * error(plain, exact)
