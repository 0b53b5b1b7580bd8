"""Transposed convolution and its gradients against the float64 references and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.testing import FencedImage, assert_within, channel_formats, error_bound, values


def source_of(weights: np.ndarray, biases: np.ndarray | None = None, **options: Any) -> mg.ConvolutionDataSource:
    return mg.ConvolutionDataSource.from_arrays(weights, biases, **options)


def array(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def total(kernel: mg.ConvolutionTranspose) -> tuple[int, int]:
    """The reference's offset (y, x)."""
    return (
        kernel.offset.y * kernel.stride_in_pixels_y + kernel.kernel_offset_y,
        kernel.offset.x * kernel.stride_in_pixels_x + kernel.kernel_offset_x,
    )


@st.composite
def geometries(draw: Any) -> dict[str, Any]:
    pair = lambda low, high: draw(st.tuples(st.integers(low, high), st.integers(low, high)))  # noqa: E731
    return {
        "size": pair(1, 6),
        "kernel": pair(1, 4),
        "stride": pair(1, 3),
        "dilation": pair(1, 3),
        "offset": pair(-4, 4),
        "result": pair(1, 12),
        "images": draw(st.integers(1, 3)),
        "groups": draw(st.sampled_from([1, 1, 2, 3])),
        "outputs": draw(st.sampled_from([1, 2, 5, 33])),
        "inputs": draw(st.sampled_from([1, 3, 4])),
    }


@given(data=st.data(), geometry=geometries())
def test_results_and_gradients_match_the_reference(data, geometry):
    dtype, groups = data.draw(channel_formats()).dtype, geometry["groups"]
    outputs, inputs = groups * geometry["outputs"], groups * geometry["inputs"]
    x = data.draw(values((geometry["images"], *geometry["size"], inputs), dtype))
    w = data.draw(values((outputs, *geometry["kernel"], geometry["inputs"]), np.float32))
    b = data.draw(values((outputs,), np.float32)) if data.draw(st.booleans()) else None
    shape = (geometry["images"], *geometry["result"], outputs)
    check(geometry, x, w, b, data.draw(values(shape, dtype)))


def check(geometry: dict[str, Any], x: np.ndarray, w: np.ndarray, b: np.ndarray | None, g: np.ndarray) -> None:
    dtype, groups, shape, outputs = x.dtype, geometry["groups"], g.shape, g.shape[3]
    source = source_of(w, b, stride=geometry["stride"], dilation=geometry["dilation"], groups=groups)
    kernel, gradient = mg.ConvolutionTranspose(source), mg.ConvolutionTransposeGradient(source)
    kernel.kernel_offset_y, kernel.kernel_offset_x = geometry["offset"]
    image = mg.Image.from_array(x)
    y = FencedImage.of(mg.ImageDescriptor(image.channel_format, shape[2], shape[1], outputs, shape[0]))
    dx = FencedImage.of(image.descriptor)
    with mg.CommandBuffer() as commands:
        state = kernel.result_state(image, destination_image=y.image)
        kernel.encode(commands, image, destination_image=y.image, destination_state=state)
        gradient.encode(commands, mg.Image.from_array(g), image, state, destination_gradient=dx.image)
    keywords = {name: geometry[name] for name in ("stride", "dilation", "offset", "groups")}
    size = geometry["result"]
    exact = reference.convolution_transpose(x, w, b, size=size, **keywords)
    magnitude = reference.convolution_transpose(np.abs(x), np.abs(w), size=size, **keywords)
    if b is not None:
        magnitude = magnitude + np.abs(b)
    taps = w[0].size * groups + 1
    assert_within(y.check(), exact, error_bound(dtype, taps, magnitude, exact), name="result")
    exact = reference.convolution_transpose_gradient(g, x, w, **keywords)
    sizes = reference.convolution_transpose_gradient(np.abs(g), np.abs(x), np.abs(w), **keywords)
    pixels = int(np.prod(shape[:3]))
    found = (dx.check(), state.gradient_for_weights, state.gradient_for_biases)
    for name, actual, one, size, terms, stored in zip(
        ("source", "weights", "biases"), found, exact, sizes, (w[..., 0].size, pixels, pixels),
        (dtype, np.float32, np.float32), strict=True,
    ):  # fmt: skip
        assert_within(actual, one, error_bound(stored, terms, size, one), name=name)


def test_vectors_of_halves():
    geometry = {"stride": (2, 1), "dilation": (1, 1), "offset": (1, 0), "groups": 1, "result": (7, 5)}
    x, g = array(1, 2, 4, 5, 16, dtype=np.float16), array(2, 2, 7, 5, 8, dtype=np.float16)
    check(geometry, x, array(3, 8, 3, 3, 16), array(4, 8), g)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("inputs", "outputs"), [(4, 1), (4, 3), (6, 7), (5, 16), (33, 20), (2, 40)])
@pytest.mark.parametrize("stride", [(2, 2), (1, 3), (3, 2)])
def test_windows_that_lie_side_by_side(stride, inputs, outputs, dtype):
    """Those along x may be taken for one pixel; biases are those of each."""
    x, g = array(5, 2, 4, 9, inputs, dtype=dtype), array(6, 2, 4 * stride[0], 9 * stride[1], outputs, dtype=dtype)
    geometry = {"stride": stride, "dilation": (1, 1), "offset": (0, 0), "groups": 1, "result": g.shape[1:3]}
    check(geometry, x, array(7, outputs, *stride, inputs), array(8, outputs), g)


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(("stride", "kernel", "groups"), [(1, 3, 1), (2, 4, 1), (3, 3, 2)])
def test_it_is_pytorchs_with_turned_weights(padding, stride, kernel, groups):
    torch = pytest.importorskip("torch")
    x, w, b = array(1, 2, 5, 6, 4), array(2, 6, kernel, kernel, 4 // groups), array(3, 6)
    transpose = mg.ConvolutionTranspose(source_of(w, b, stride=(stride, stride), groups=groups))
    transpose.padding = mg.ExplicitPadding(x=padding, y=padding)
    with mg.CommandBuffer() as commands:
        y = transpose.encode(commands, mg.Image.from_array(x))
    turned = w.reshape(groups, 6 // groups, kernel, kernel, -1)[:, :, ::-1, ::-1].transpose(0, 4, 1, 2, 3)
    weights = torch.from_numpy(np.ascontiguousarray(turned.reshape(4, 6 // groups, kernel, kernel)))
    theirs = torch.nn.functional.conv_transpose2d(
        torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), weights, torch.from_numpy(b), stride=stride,
        padding=padding, groups=groups,
    )  # fmt: skip
    np.testing.assert_allclose(np.asarray(y), theirs.numpy().transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "kernel", "outputs"), [((3, 2), 2, 7), ((3, 2), 2, 48), ((1, 1), 2, 9), ((1, 1), 16, 33), ((5, 6), 1, 37)]
)
def test_a_bias_is_added_once_to_any_number_of_channels(size, kernel, outputs):
    """Also where the result is as large as the window, so that its pixels are taken for channels of one."""
    shapes = (2, *size, 1), (outputs, kernel, kernel, 1), (outputs,)
    x, w, b = (np.rint(8 * array(8 + seed, *shape)) for seed, shape in enumerate(shapes))
    with mg.CommandBuffer() as commands:
        made = []
        for biases in (b, None):
            transpose = mg.ConvolutionTranspose(source_of(w, biases))
            transpose.padding = mg.ExplicitPadding(x=0, y=0)
            made.append(transpose.encode(commands, mg.Image.from_array(x)))
    y, without = made
    np.testing.assert_array_equal(np.asarray(y), np.asarray(without) + b)


@pytest.mark.parametrize("method", ["SIZE_SAME", "SIZE_FULL", "SIZE_VALID_ONLY"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_padding_sizes_the_result(method, kernel):
    x, w = array(4, 1, 5, 6, 2), array(5, 3, kernel, kernel, 2)
    transpose = mg.ConvolutionTranspose(source_of(w, stride=(2, 3)))
    transpose.padding = mg.DefaultPadding(mg.PaddingMethod[method])
    with mg.CommandBuffer() as commands:
        y = transpose.encode(commands, mg.Image.from_array(x))
    more = {"SIZE_SAME": 0, "SIZE_FULL": kernel - 1, "SIZE_VALID_ONLY": 1 - kernel}[method]
    assert y.shape == (1, 9 + more, 16 + more, 3)
    if method != "SIZE_SAME":
        first = kernel // 2 - (kernel - 1) if method == "SIZE_FULL" else kernel // 2
        assert total(transpose) == (first, first)
    exact = reference.convolution_transpose(x, w, size=y.shape[1:3], stride=(2, 3), offset=total(transpose))
    np.testing.assert_allclose(np.asarray(y), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [2, 3])
def test_the_state_of_a_convolution_gives_its_size_and_place(kernel):
    """With turned weights the result is then the convolution's gradient for its source."""
    x, w = array(6, 2, 7, 8, 3), array(7, 4, kernel, kernel, 3)
    convolution = mg.Convolution(source_of(w, stride=(2, 2)))
    turned = np.ascontiguousarray(w[:, ::-1, ::-1].transpose(3, 1, 2, 0))
    transpose = mg.ConvolutionTranspose(source_of(turned, stride=(2, 2)))
    gradient, image = mg.ConvolutionGradient(source_of(w, stride=(2, 2))), mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        y, state = convolution.encode(commands, image, return_state=True)
        result = transpose.encode(commands, y, state)
        given = mg.Image(result.descriptor)
        transpose.encode(commands, y, state, destination_image=given)
        expected = gradient.encode(commands, y, image, state)
        images = [mg.Image.from_array(one) for one in x]
        results, states = convolution.encode_batch(commands, images, return_state=True)
        batch, made = transpose.encode_batch(commands, results, states, return_state=True)
        written = [mg.Image(one.descriptor) for one in batch]
        assert transpose.encode_batch(commands, list(results), states, destination_images=written) is None
        several = [convolution.result_state(image, destination_image=one) for one in results]
        with pytest.raises(mg.StateError, match="convolution_gradient_states has several states"):
            transpose.encode_batch(commands, results, several)
    assert result.shape == x.shape
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.asarray(given), np.asarray(result))
    np.testing.assert_array_equal(np.asarray(batch), np.asarray(result))
    np.testing.assert_array_equal([np.asarray(one)[0] for one in written], np.asarray(result))
    assert made.whole.convolution_transpose is transpose


def check_sums_of_two_gradients(size: tuple[int, int], inputs: int, outputs: int, groups: int = 1) -> list[str]:
    """The names of the kernels of the gradients for parameters."""
    result = 2 * size[0] + 1, 2 * size[1]
    geometry = {"stride": (2, 2), "dilation": (1, 1), "offset": (1, 0), "groups": groups, "result": result}
    x, w, g = array(1, 2, *size, inputs), array(3, outputs, 2, 2, inputs // groups), array(2, 2, *result, outputs)
    check(geometry, x, w, None, g)
    source, image = source_of(w, stride=(2, 2), groups=groups), mg.Image.from_array(x)
    gradient = mg.ConvolutionTransposeGradient(source)
    gradient.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    state = mg.ConvolutionTranspose(source).result_state(image, destination_image=mg.Image.from_array(g))
    sums = []
    for _ in range(2):
        commands = mg.CommandBuffer()
        gradient.encode(commands, mg.Image.from_array(g), image, state)
        names = [dispatch.function.name for dispatch in commands._dispatches]
        commands.commit()
        sums.append((state.gradient_for_weights, state.gradient_for_biases))
    for once, twice in zip(*sums, strict=True):
        np.testing.assert_array_equal(twice, 2 * once)
    return names


@pytest.mark.usefixtures("shaders_of_gpus")
@pytest.mark.parametrize(
    ("size", "inputs", "outputs", "name"),
    [((31, 30), 8, 12, "sum_parts"), ((5, 4), 8, 12, "add"), ((3, 4), 35, 40, "turn_weights")],
)
def test_weights_are_added_up_and_turned_at_once_on_gpus(size, inputs, outputs, name):
    assert check_sums_of_two_gradients(size, inputs, outputs)[1].startswith(name)


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(35, 40, 1), (38, 32, 2)])
def test_weights_of_many_channels_are_turned_a_tile_at_a_time(inputs, outputs, groups):
    assert "turn_weights" in check_sums_of_two_gradients((3, 4), inputs, outputs, groups)
    w = array(5, outputs, 2, 2, inputs // groups)
    transpose = mg.ConvolutionTranspose(source_of(w, groups=groups))
    with mg.CommandBuffer() as commands:
        exported = transpose.export_weights_and_biases(commands)
        before = transpose.encode(commands, image := mg.Image.from_array(array(6, 1, 3, 2, inputs)))
        transpose.reload_weights_and_biases(commands, exported)
        after = transpose.encode(commands, image)
    np.testing.assert_array_equal(np.asarray(after), np.asarray(before))


def test_gradients_of_small_images_take_four_dispatches():
    source, image = source_of(array(1, 4, 1, 1, 4)), mg.Image.from_array(array(2, 1, 2, 2, 4))
    gradient, commands = mg.ConvolutionTransposeGradient(source), mg.CommandBuffer()
    y, state = mg.ConvolutionTranspose(source).encode(commands, image, return_state=True)
    before = len(commands._dispatches)
    gradient.encode(commands, y, image, state)
    # Products, their turning, the sums for biases, and the result; the weights are added up in one split.
    assert len(commands._dispatches) - before == 4
    commands.commit()


def test_depthwise():
    x, w, b = array(8, 2, 5, 6, 6), array(9, 6, 3, 3), array(10, 6)
    source = source_of(w, b, stride=(2, 2))
    kernel, gradient = mg.ConvolutionTranspose(source), mg.ConvolutionTransposeGradient(source)
    kernel.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL)
    image = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, image, return_state=True)
        g = array(11, *y.shape)
        dx = gradient.encode(commands, mg.Image.from_array(g), image, state)
    keywords = {"stride": (2, 2), "groups": 6, "offset": total(kernel)}
    exact = reference.convolution_transpose(x, w[..., None], b, size=y.shape[1:3], **keywords)
    np.testing.assert_allclose(np.asarray(y), exact, rtol=1e-4, atol=1e-4)
    exact_x, exact_w, exact_b = reference.convolution_transpose_gradient(g, x, w[..., None], **keywords)
    np.testing.assert_allclose(np.asarray(dx), exact_x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.gradient_for_weights, exact_w[..., 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.gradient_for_biases, exact_b, rtol=1e-4, atol=1e-4)


def test_gradients_add_up_over_encodes_and_weights_are_reloaded_on_the_device():
    x, w, b = array(12, 2, 4, 4, 4), array(13, 3, 3, 3, 4), array(14, 3)
    source = source_of(w, b, stride=(2, 2))
    kernel, gradient = mg.ConvolutionTranspose(source), mg.ConvolutionTransposeGradient(source)
    image = mg.Image.from_array(x)
    sgd = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.01)
    after = mg.ConvolutionWeightsAndBiasesState.from_arrays(w, b)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, image, return_state=True)
        g = mg.Image.from_array(array(15, *y.shape))
        gradient.encode(commands, g, image, state)
        gradient.encode(commands, g, image, state)
        sgd.encode_convolution(commands, state, after, result_state=after)
        kernel.reload_weights_and_biases(commands, after)
        gradient.reload_weights_and_biases(commands, after)
        again, new_state = kernel.encode(commands, image, return_state=True)
        dx = gradient.encode(commands, g, image, new_state)
    keywords = {"stride": (2, 2), "offset": total(kernel)}
    _, dw, db = reference.convolution_transpose_gradient(np.asarray(g), x, w, **keywords)
    np.testing.assert_allclose(state.gradient_for_weights, 2 * dw, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.gradient_for_biases, 2 * db, rtol=1e-4, atol=1e-4)
    w, b = w - 0.02 * dw, b - 0.02 * db
    exact = reference.convolution_transpose(x, w, b, size=y.shape[1:3], **keywords)
    np.testing.assert_allclose(np.asarray(again), exact, rtol=1e-4, atol=1e-3)
    exact, *_ = reference.convolution_transpose_gradient(np.asarray(g), x, w, **keywords)
    np.testing.assert_allclose(np.asarray(dx), exact, rtol=1e-4, atol=1e-3)


def test_a_state_names_the_convolution_that_the_encode_was_coupled_with():
    source = source_of(array(30, 3, 3, 3, 3), array(31, 3), stride=(2, 2))
    convolution, kernel = mg.Convolution(source), mg.ConvolutionTranspose(source)
    with mg.CommandBuffer() as commands:
        y, of_convolution = convolution.encode(commands, mg.Image.from_array(array(32, 1, 5, 5, 3)), return_state=True)
        z, coupled = kernel.encode(commands, y, of_convolution, return_state=True)
        _, alone = kernel.encode(commands, y, return_state=True)
    made = kernel.result_state(y, source_states=[of_convolution], destination_image=z)
    assert coupled.convolution is made.convolution is convolution and alone.convolution is None
    assert {state.convolution_transpose for state in (coupled, alone, made)} == {kernel}


def test_a_fused_neuron_is_applied_and_not_differentiated():
    x, w, b = array(16, 1, 3, 3, 2), array(17, 2, 3, 3, 2), array(18, 2)
    source = source_of(w, b)
    source.descriptor.fused_neuron_descriptor = mg.NeuronDescriptor("relu")
    kernel = mg.ConvolutionTranspose(source)
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, mg.Image.from_array(x))
    exact = reference.convolution_transpose(x, w, b, size=y.shape[1:3], offset=total(kernel))
    np.testing.assert_allclose(np.asarray(y), np.maximum(exact, 0), rtol=1e-4, atol=1e-4)
    with pytest.raises(NotImplementedError, match="fused_neuron_descriptor"):
        mg.ConvolutionTransposeGradient(source)


def test_every_run_and_a_kernel_from_an_archive_give_the_same_bits():
    x, w, b = array(19, 2, 6, 7, 5), array(20, 4, 3, 3, 5), array(21, 4)
    source, image = source_of(w, b, stride=(2, 2)), mg.Image.from_array(array(19, 2, 6, 7, 5))
    kernels = [mg.ConvolutionTranspose(source), mg.ConvolutionTransposeGradient(source)]
    found = set()
    for forward, backward in (kernels, kernels, [archive.from_bytes(archive.to_bytes(one)) for one in kernels]):
        with mg.CommandBuffer() as commands:
            y, state = forward.encode(commands, image, return_state=True)
            dx = backward.encode(commands, y, image, state)
        parts = (np.asarray(y), np.asarray(dx), state.gradient_for_weights, state.gradient_for_biases)
        found.add(b"".join(part.tobytes() for part in parts))
    assert len(found) == 1 and x.shape == image.shape


# bad input

SOURCE = source_of(array(0, 3, 3, 3, 4), array(0, 3), stride=(2, 2))


def zeros(*shape: int) -> mg.Image:
    return mg.Image.from_array(np.zeros(shape or (1, 4, 4, 4), np.float32))


def forward(source: Any = None, state: Any = None, properties: Any = None, **keywords: Any) -> Any:
    commands, kernel = mg.CommandBuffer(), mg.ConvolutionTranspose(SOURCE)
    for name, value in (properties or {}).items():
        setattr(kernel, name, value)
    try:
        return kernel.encode(commands, source or zeros(), state, **keywords)
    finally:
        assert commands._dispatches == []


def made_state(kernel: Any = None) -> Any:
    kernel = kernel or mg.ConvolutionTranspose(SOURCE)
    return kernel.result_state(zeros(), destination_image=zeros(1, 7, 7, 3))


def convolution_state(**options: Any) -> Any:
    kernel = mg.Convolution(source_of(array(0, 4, 3, 3, 3), **options))
    return kernel.result_state(zeros(1, 7, 7, 3), destination_image=zeros())


def backward(gradient: Any = None, source: Any = None, state: Any = None, **properties: Any) -> None:
    commands, kernel = mg.CommandBuffer(), mg.ConvolutionTransposeGradient(SOURCE)
    for name, value in properties.items():
        setattr(kernel, name, value)
    try:
        kernel.encode(commands, gradient or zeros(1, 7, 7, 3), source or zeros(), state or made_state())
    finally:
        assert commands._dispatches == []


def other_kernels_state() -> None:
    forward(destination_image=zeros(1, 7, 7, 3), destination_state=made_state())


BAD_INPUT = {
    "no data source": (lambda: mg.ConvolutionTranspose(3), mg.FormatError, "data_source is int"),
    "too few channels": (lambda: forward(zeros(1, 4, 4, 3)), mg.GeometryError, "has 3 feature channels .* need 4"),
    "a result of too few channels": (
        lambda: forward(destination_image=zeros(1, 7, 7, 2)), mg.GeometryError, "2 feature channels but 3 are written"),
    "an empty result": (
        lambda: forward(zeros(1, 1, 1, 4), properties={"padding": mg.VALID_ONLY}), mg.GeometryError,
        "a window of 3 pixels along x over 1 pixels at a stride of 2 leaves -1 pixels"),
    "clamped edges": (
        lambda: forward(properties={"edge_mode": mg.EdgeMode.CLAMP}), NotImplementedError, "edge_mode is CLAMP"),
    "an offset that is no integer": (
        lambda: forward(properties={"kernel_offset_x": 0.5}), mg.FormatError, "kernel_offset_x is 0.5"),
    "a window beyond 32 bits": (
        lambda: forward(
            destination_image=zeros(1, 7, 7, 3), properties={"offset": mg.Offset(2**29), "kernel_offset_x": 2**20}),
        mg.GeometryError, "offset and kernel_offset put the first window at"),
    "a state that is none": (lambda: forward(state=3), mg.FormatError, "convolution_gradient_state is int"),
    "its own state": (
        lambda: forward(state=made_state()), mg.FormatError,
        "convolution_gradient_state is ConvolutionTransposeGradientState; it has to be made by a Convolution"),
    "the state of another geometry": (
        lambda: forward(state=convolution_state()), mg.StateError, "made by a kernel for .* but this one is for"),
    "the state of another kernel": (other_kernels_state, mg.StateError, "destination_state was made by another kernel"),
    "a gradient of another size": (
        lambda: backward(zeros(1, 7, 6, 3)), mg.GeometryError,
        "source_gradient is 1x7x6x3 but ConvolutionTranspose of a 1x4x4x4 source"),
    "a source of another size": (
        lambda: backward(source=zeros(1, 4, 5, 4)), mg.GeometryError, "source_image is 1x4x5x4 but gradient_state"),
    "the state of a convolution": (
        lambda: backward(state=convolution_state(stride=(2, 2))), mg.StateError,
        "made by Convolution; it has to be made by ConvolutionTranspose"),
    "a gradient configured by hand": (
        lambda: backward(kernel_offset_x=1), NotImplementedError, "the state sets them all"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named_and_dispatches_nothing(build, error, words):
    with pytest.raises(error, match=words):
        build()
