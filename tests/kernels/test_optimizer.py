"""Optimizers against the float64 references: vectors, the states of trainable kernels, slots, and frozen parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.testing import assert_within, error_bound, values

SGD = mg.OptimizerStochasticGradientDescent
REGULARIZATIONS = {"none": 0, "l1": 1, "l2": 2}
lengths = st.one_of(st.integers(1, 70), st.sampled_from([255, 256, 257, 1000, 4096, 5000, 33000]))


def optimizer(momentum_scale: float = 0.0, nesterov: bool = False, **options: Any) -> SGD:
    if isinstance(options.get("regularization_type"), str):
        options["regularization_type"] = REGULARIZATIONS[options["regularization_type"]]
    return SGD(mg.OptimizerDescriptor(**options), momentum_scale=momentum_scale, use_nesterov_momentum=nesterov)


def step(kernel: SGD, g: np.ndarray, v: np.ndarray, m: np.ndarray | None = None):
    """The new values and momentum of one encode; a longer buffer behind shows writes beyond the end."""
    gradient, values_vector = mg.Vector.from_array(g), mg.Vector.from_array(v)
    momentum = None if m is None else mg.Vector.from_array(m)
    fence = mg.Vector.from_array(np.full(v.size + 64, 7, np.float32))
    result = mg.Vector.of_buffer(fence.buffer, v.size)
    with mg.CommandBuffer() as commands:
        kernel.encode(
            commands,
            input_gradient_vector=gradient,
            input_values_vector=values_vector,
            input_momentum_vector=momentum,
            result_values_vector=result,
        )
    assert (np.asarray(fence)[v.size :] == 7).all(), "values behind the result were overwritten"
    np.testing.assert_array_equal(np.asarray(gradient), g)
    np.testing.assert_array_equal(np.asarray(values_vector), v)
    return np.asarray(result), None if momentum is None else np.asarray(momentum)


@st.composite
def descriptors(draw: Any) -> dict[str, Any]:
    """The options of a descriptor, which are the keywords of the reference too."""
    low, high = sorted(draw(st.tuples(*[st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0])] * 2)))
    return {
        "learning_rate": draw(st.sampled_from([0.001, 0.1, 1.0])),
        "gradient_rescale": draw(st.sampled_from([1.0, 0.125, -2.0])),
        "apply_gradient_clipping": draw(st.booleans()),
        "gradient_clip_min": low,
        "gradient_clip_max": high,
        "regularization_type": draw(st.sampled_from(sorted(REGULARIZATIONS))),
        "regularization_scale": draw(st.sampled_from([0.0, 0.01, 0.5])),
    }


@given(data=st.data())
def test_steps_match_the_reference(data):
    options, length = data.draw(descriptors()), data.draw(lengths)
    g, v, m = (data.draw(values((length,), np.float32, ties=data.draw(st.booleans()))) for _ in range(3))
    momentum_scale, nesterov = data.draw(st.sampled_from([0.0, 0.5, 0.9])), data.draw(st.booleans())
    m = m if data.draw(st.booleans()) else None
    result, momentum = step(optimizer(momentum_scale, nesterov, **options), g, v, m)
    expected, expected_momentum = reference.stochastic_gradient_descent(
        g, v, m, momentum_scale=momentum_scale, use_nesterov_momentum=nesterov, **options
    )
    steepness = np.abs(g) * abs(options["gradient_rescale"]) + options["regularization_scale"] * (np.abs(v) + 1)
    steepness = steepness + (2 * abs(options["gradient_rescale"]) if options["apply_gradient_clipping"] else 0)
    previous = 0 if m is None else np.abs(m)
    magnitude = np.abs(v) + 2 * max(options["learning_rate"], 1) * (steepness + previous)
    assert_within(result, expected, error_bound(np.float32, 8, magnitude, expected))
    if m is not None:
        assert_within(momentum, expected_momentum, error_bound(np.float32, 6, steepness + previous, expected_momentum))
    else:
        assert momentum is None


WORKED = {
    "plain": (optimizer(learning_rate=0.1), False, [0.95, 0.975, 0.875]),
    "momentum": (optimizer(0.9, learning_rate=0.1), True, [0.95, 0.93, 0.812]),
    "nesterov": (optimizer(0.9, True, learning_rate=0.1), True, [0.905, 0.912, 0.7058]),
    "clipped, rescaled and regularized": (
        optimizer(
            learning_rate=0.1, gradient_rescale=2.0, apply_gradient_clipping=True, gradient_clip_max=0.3,
            gradient_clip_min=-0.3, regularization_type="l2", regularization_scale=0.01,
        ),
        False, [0.939, 0.988061, 0.92707294],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kernel", "has_momentum", "expected"), WORKED.values(), ids=WORKED)
def test_the_worked_cases(kernel, has_momentum, expected):
    v, m = np.float32([1]), np.float32([0]) if has_momentum else None
    for gradient, value in zip((0.5, -0.25, 1.0), expected, strict=True):
        v, m = step(kernel, np.float32([gradient]), v, m)
        np.testing.assert_allclose(v, [value], rtol=1e-6)


def test_clipping_comes_before_rescaling_and_regularization_last():
    kernel = optimizer(
        learning_rate=1.0, gradient_rescale=10.0, apply_gradient_clipping=True, gradient_clip_max=0.5,
        gradient_clip_min=-0.25, regularization_type="l1", regularization_scale=0.125,
    )  # fmt: skip
    g, v = np.float32([3, -3, 0.25, 3, 3]), np.float32([2, 2, 2, -2, 0])
    result, _ = step(kernel, g, v)
    np.testing.assert_array_equal(result, np.float32([-3.125, 4.375, -0.625, -6.875, -5]))


def test_the_descriptor_is_read_from_the_kernel_and_clipping_can_be_switched():
    limits = {"gradient_rescale": 2.0, "gradient_clip_max": 0.5, "gradient_clip_min": -0.25}
    kernel = optimizer(learning_rate=1.0, **limits)
    assert {name: getattr(kernel, name) for name in limits} == limits
    assert kernel.regularization_scale == 0
    assert kernel.regularization_type is mg.RegularizationType.NONE and not kernel.apply_gradient_clipping
    g, v = np.float32([3, -3]), np.float32([0, 0])
    for applies, expected in ((False, [-6, 6]), (True, [-1, 0.5]), (False, [-6, 6])):
        kernel.apply_gradient_clipping = applies
        for one in (kernel, archive.from_bytes(archive.to_bytes(kernel))):
            assert one.apply_gradient_clipping is applies
            np.testing.assert_array_equal(step(one, g, v)[0], np.float32(expected))
    for limits, words in (
        ({"gradient_clip_max": -1.0}, r"gradient_clip_min is 0.0 but gradient_clip_max -1.0$"),
        ({}, r"gradient_clip_min is 0.0 but gradient_clip_max 0.0, and no gradient is left: apply_gradient_clip"),
    ):
        useless = optimizer(**limits)
        with pytest.raises(mg.GeometryError, match=words):
            useless.apply_gradient_clipping = True


def test_clipping_does_not_hide_what_is_not_a_number():
    kernel = optimizer(
        learning_rate=1.0, apply_gradient_clipping=True, gradient_clip_max=0.5, gradient_clip_min=-0.25
    )
    g = np.float32([np.nan, np.inf, -np.inf, 0.25] * 3)  # a thread of a CPU takes eight at a time
    result, _ = step(kernel, g, np.zeros_like(g))
    np.testing.assert_array_equal(result, np.float32([np.nan, -0.5, 0.25, -0.25] * 3))


def test_the_sign_of_zero_is_zero():
    kernel = optimizer(learning_rate=1.0, regularization_type="l1", regularization_scale=0.5)
    result, _ = step(kernel, np.zeros(3, np.float32), np.float32([-1, 0, 1]))
    np.testing.assert_array_equal(result, np.float32([-0.5, 0, 0.5]))


def test_the_learning_rate_of_later_encodes():
    """Encoded work keeps its rate; plain momentum holds the rate inside."""
    kernel = SGD.with_learning_rate(0.5)
    g, v = mg.Vector.from_array(np.ones(3, np.float32)), mg.Vector.from_array(np.zeros(3, np.float32))
    results = [mg.Vector(3) for _ in range(2)]
    with mg.CommandBuffer() as commands:
        for result, rate in zip(results, (0.5, 0.125), strict=True):
            kernel.learning_rate = rate
            kernel.encode(commands, input_gradient_vector=g, input_values_vector=v, result_values_vector=result)
        kernel.learning_rate = 99.0
    np.testing.assert_array_equal(np.asarray(results[0]), [-0.5] * 3)
    np.testing.assert_array_equal(np.asarray(results[1]), [-0.125] * 3)
    assert kernel.optimizer_descriptor.learning_rate == 0.5


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_result_may_be_the_values(nesterov):
    generator = np.random.default_rng(1)
    g, v, m = (generator.standard_normal(1000).astype(np.float32) for _ in range(3))
    kernel = optimizer(0.9, nesterov, learning_rate=0.1)
    expected, expected_momentum = step(kernel, g, v, m)
    gradient, in_place, momentum = map(mg.Vector.from_array, (g, v, m))
    with mg.CommandBuffer() as commands:
        kernel.encode(
            commands,
            input_gradient_vector=gradient,
            input_values_vector=in_place,
            input_momentum_vector=momentum,
            result_values_vector=in_place,
        )
    np.testing.assert_array_equal(np.asarray(in_place), expected)
    np.testing.assert_array_equal(np.asarray(momentum), expected_momentum)


def test_steps_of_one_command_buffer_follow_each_other():
    generator = np.random.default_rng(2)
    g = generator.standard_normal((5, 300)).astype(np.float32)
    v, m = np.zeros(300, np.float32), np.zeros(300, np.float32)
    kernel = optimizer(0.9, learning_rate=0.1)
    vectors = [mg.Vector.from_array(one) for one in g]
    values_vector, momentum = mg.Vector.from_array(v), mg.Vector.from_array(m)
    with mg.CommandBuffer() as commands:
        for vector in vectors:
            kernel.encode(
                commands,
                input_gradient_vector=vector,
                input_values_vector=values_vector,
                input_momentum_vector=momentum,
                result_values_vector=values_vector,
            )
    for one in g:
        v, m = step(kernel, one, v, m)
    np.testing.assert_array_equal(np.asarray(values_vector), v)
    np.testing.assert_array_equal(np.asarray(momentum), m)


def test_every_run_gives_the_same_bits():
    generator = np.random.default_rng(3)
    g, v, m = (generator.standard_normal(10_000).astype(np.float32) for _ in range(3))
    kernel = optimizer(0.9, learning_rate=0.1, regularization_type="l2", regularization_scale=0.1)
    first = step(kernel, g, v, m)
    for _ in range(20):
        for one, other in zip(step(kernel, g, v, m), first, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_kernel_from_an_archive_gives_the_same_bits():
    generator = np.random.default_rng(4)
    g, v, m = (generator.standard_normal(100).astype(np.float32) for _ in range(3))
    kernel = optimizer(
        0.75, True, learning_rate=0.1, gradient_rescale=2.0, apply_gradient_clipping=True, gradient_clip_max=1.0,
        gradient_clip_min=-1.0, regularization_type="l1", regularization_scale=0.25,
    )  # fmt: skip
    kernel.learning_rate = 0.25
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert restored.learning_rate == 0.25 and restored.optimizer_descriptor == kernel.optimizer_descriptor
    for one, other in zip(step(kernel, g, v, m), step(restored, g, v, m), strict=True):
        np.testing.assert_array_equal(one, other)


# the states of a convolution


class Layer:
    """A convolution with the gradients of one backward pass and its parameters as a state."""

    def __init__(self, biases: bool = True) -> None:
        generator = np.random.default_rng(6)
        draw = lambda *shape: generator.standard_normal(shape).astype(np.float32)  # noqa: E731
        self.weights, self.biases = draw(6, 3, 3, 4), draw(6) if biases else None
        source = mg.ConvolutionDataSource.from_arrays(self.weights, self.biases)
        convolution, gradient = mg.Convolution(source), mg.ConvolutionGradient(source)
        x = mg.Image.from_array(draw(2, 5, 5, 4))
        with mg.CommandBuffer() as commands:
            y, self.gradient_state = convolution.encode(commands, x, return_state=True)
            gradient.encode(commands, mg.Image.from_array(draw(*y.shape)), x, self.gradient_state)
        self.source_state = mg.ConvolutionWeightsAndBiasesState.from_arrays(self.weights, self.biases)
        self.gradients = self.gradient_state.gradient_for_weights, self.gradient_state.gradient_for_biases

    def result_state(self) -> mg.ConvolutionWeightsAndBiasesState:
        empty = np.full_like(self.weights, np.nan), None if self.biases is None else np.full_like(self.biases, np.nan)
        return mg.ConvolutionWeightsAndBiasesState.from_arrays(*empty)

    def slots(self, count: int = 2) -> list[mg.Vector]:
        generator = np.random.default_rng(7)
        sizes = (self.weights.size, 6)[:count]
        return [mg.Vector.from_array(generator.standard_normal(size).astype(np.float32)) for size in sizes]


def updated(kernel: SGD, layer: Layer, slots: list[mg.Vector] | None, result: Any) -> None:
    with mg.CommandBuffer() as commands:
        kernel.encode_convolution(
            commands,
            layer.gradient_state,
            layer.source_state,
            input_momentum_vectors=slots,
            result_state=result,
        )


@pytest.mark.parametrize("in_place", [False, True], ids=["another state", "in place"])
@pytest.mark.parametrize("has_momentum", [False, True], ids=["plain", "momentum"])
def test_weights_and_biases_are_updated(in_place, has_momentum):
    layer, kernel = Layer(), optimizer(0.9, learning_rate=0.1)
    slots = layer.slots() if has_momentum else None
    before = [None, None] if slots is None else [np.asarray(slot) for slot in slots]
    result = layer.source_state if in_place else layer.result_state()
    updated(kernel, layer, slots, result)
    for index, (value, got) in enumerate(((layer.weights, result.weights), (layer.biases, result.biases))):
        gradient = layer.gradients[index].ravel()
        expected, momentum = step(kernel, gradient, value.ravel(), before[index])
        np.testing.assert_array_equal(got.ravel(), expected)
        if slots is not None:
            np.testing.assert_array_equal(np.asarray(slots[index]), momentum)
    if not in_place:
        np.testing.assert_array_equal(layer.source_state.weights, layer.weights)


@pytest.mark.parametrize("in_place", [False, True], ids=["another state", "in place"])
def test_one_momentum_vector_leaves_the_biases_as_they_are(in_place):
    layer, kernel = Layer(), optimizer(0.9, learning_rate=0.1)
    slots = layer.slots(1)
    momentum = np.asarray(slots[0])
    result = layer.source_state if in_place else layer.result_state()
    updated(kernel, layer, slots, result)
    np.testing.assert_array_equal(result.biases, layer.biases)
    expected, _ = step(kernel, layer.gradients[0].ravel(), layer.weights.ravel(), momentum)
    np.testing.assert_array_equal(result.weights.ravel(), expected)


@pytest.mark.parametrize("fresh", [(0,), (1,), (0, 1)])
def test_later_steps_use_the_momentum_that_they_are_given(fresh):
    layer, kernel = Layer(), optimizer(0.9, learning_rate=0.1)
    slots = layer.slots()
    updated(kernel, layer, slots, layer.source_state)
    kept = [np.asarray(slot) for slot in slots]
    given = [mg.Vector.from_array(before + 1) if index in fresh else slots[index] for index, before in enumerate(kept)]
    values = [layer.source_state.weights.ravel(), layer.source_state.biases]
    before = [np.asarray(slot) for slot in given]
    updated(kernel, layer, given, layer.source_state)
    results = [layer.source_state.weights.ravel(), layer.source_state.biases]
    for index, (value, got) in enumerate(zip(values, results, strict=True)):
        expected, momentum = step(kernel, layer.gradients[index].ravel(), value, before[index])
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.asarray(given[index]), momentum)
        if index in fresh:
            np.testing.assert_array_equal(np.asarray(slots[index]), kept[index])


def test_later_steps_come_after_what_else_writes_their_momentum():
    layer, other, kernel = Layer(), Layer(), optimizer(0.9, learning_rate=0.1)
    slots = layer.slots()
    updated(kernel, layer, slots, layer.source_state)
    first, later = mg.CommandBuffer(), mg.CommandBuffer()
    for commands, of_layer, by in ((first, other, optimizer(0.9)), (later, layer, kernel)):
        by.encode_convolution(
            commands,
            of_layer.gradient_state,
            of_layer.source_state,
            input_momentum_vectors=slots,
            result_state=of_layer.source_state,
        )
    with pytest.raises(mg.StateError, match="momentum.* is written by .* not committed"):
        later.commit()
    first.commit()
    later.commit()


@pytest.mark.parametrize("count", [1, 2])
def test_a_layer_without_biases(count):
    layer, kernel = Layer(biases=False), optimizer(0.9, learning_rate=0.1)
    result, slots = layer.result_state(), layer.slots(count)
    momentum = np.asarray(slots[0])
    updated(kernel, layer, slots, result)
    assert result.biases is None
    expected, _ = step(kernel, layer.gradients[0].ravel(), layer.weights.ravel(), momentum)
    np.testing.assert_array_equal(result.weights.ravel(), expected)


def test_an_encode_is_one_read_of_temporary_states():
    source = mg.ConvolutionDataSource.from_arrays(np.ones((4, 1, 1, 4), np.float32), np.zeros(4, np.float32))
    convolution, gradient = mg.Convolution(source), mg.ConvolutionGradient(source)
    x = mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32))
    result = mg.ConvolutionWeightsAndBiasesState.from_arrays(np.zeros((4, 1, 1, 4)), np.zeros(4))
    with mg.CommandBuffer() as commands:
        y, state = convolution.encode(commands, x, return_state=True, state_is_temporary=True)
        state.read_count = 2
        gradient.encode(commands, y, x, state)
        weights = convolution.export_weights_and_biases(commands, result_state_can_be_temporary=True)
        optimizer(learning_rate=0.5).encode_convolution(commands, state, weights, result_state=result)
        assert (state.read_count, weights.read_count) == (0, 0)
        with pytest.raises(mg.StateError, match="the gradient state is temporary with read_count 0"):
            optimizer().encode_convolution(commands, state, weights, result_state=result)
    np.testing.assert_array_equal(result.weights, np.full((4, 1, 1, 4), 1 - 0.5 * 16, np.float32))
    np.testing.assert_array_equal(result.biases, np.full(4, -0.5 * 16, np.float32))


def test_each_of_several_steps_is_a_read_of_its_temporary_state():
    source = mg.ConvolutionDataSource.from_arrays(np.ones((4, 1, 1, 4), np.float32), np.zeros(4, np.float32))
    convolution, gradient, kernel = mg.Convolution(source), mg.ConvolutionGradient(source), optimizer(learning_rate=0.5)
    x = mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32))
    values = mg.ConvolutionWeightsAndBiasesState.from_arrays(np.zeros((4, 1, 1, 4)), np.zeros(4))
    for is_temporary in (False, True, True):
        with mg.CommandBuffer() as commands:
            y, state = convolution.encode(commands, x, return_state=True, state_is_temporary=is_temporary)
            if is_temporary:
                state.read_count = 3
            gradient.encode(commands, y, x, state)
            kernel.encode_convolution(commands, state, values, result_state=values)
            assert state.read_count == is_temporary
    np.testing.assert_array_equal(values.biases, np.full(4, 3 * -0.5 * 16, np.float32))


def test_what_the_optimizer_writes_is_read_after_its_command_buffer():
    layer, commands = Layer(), mg.CommandBuffer()
    result = layer.result_state()
    optimizer().encode_convolution(commands, layer.gradient_state, layer.source_state, result_state=result)
    with pytest.raises(mg.StateError, match="read before its command buffer was committed"):
        _ = result.weights
    later = mg.CommandBuffer()
    optimizer().encode_convolution(later, layer.gradient_state, result, result_state=layer.result_state())
    with pytest.raises(mg.StateError, match="the source state is written by .* not committed"):
        later.commit()
    commands.commit()
    later.commit()
    assert np.isfinite(result.weights).all()


def test_vectors_that_discarded_work_was_to_write_are_refused():
    vectors = {f"{name}_vector": mg.Vector(4) for name in ("input_gradient", "input_values", "result_values")}
    with pytest.raises(ZeroDivisionError), mg.CommandBuffer() as commands:
        optimizer().encode(commands, **vectors)
        raise ZeroDivisionError
    vectors["input_values_vector"] = vectors["result_values_vector"]
    with pytest.raises(mg.StateError, match="input_values_vector was to be written by .* discarded"):
        optimizer().encode(mg.CommandBuffer(), **vectors)


# the states of a batch normalization


def test_gamma_and_beta_are_updated():
    generator = np.random.default_rng(8)
    draw = lambda *shape: generator.standard_normal(shape).astype(np.float32)  # noqa: E731
    gamma, beta = draw(5), draw(5)
    source = mg.BatchNormalizationDataSource.from_arrays(gamma, beta, np.zeros(5, np.float32), np.ones(5, np.float32))
    kernel, gradient = mg.BatchNormalization(source), mg.BatchNormalizationGradient()
    x, sgd = mg.Image.from_array(draw(3, 4, 4, 5)), optimizer(0.9, learning_rate=0.1)
    statistics, statistics_gradient = mg.BatchNormalizationStatistics(), mg.BatchNormalizationStatisticsGradient()
    with mg.CommandBuffer() as commands:
        state = kernel.result_state(x, destination_image=mg.Image(x.descriptor))
        statistics.encode_batch(commands, x.batch_representation(), state)
        kernel.encode(commands, x, batch_normalization_state=state)
        g = mg.Image.from_array(draw(3, 4, 4, 5))
        statistics_gradient.encode_batch(commands, g.batch_representation(), x.batch_representation(), state)
        gradient.encode(commands, g, x, state)
    gradients = [np.array(vector) for vector in state.gradient_vectors]
    for slots, expected_beta in (([mg.Vector(5), mg.Vector(5)], None), ([mg.Vector(5)], beta)):
        result = mg.NormalizationGammaAndBetaState.from_arrays(np.zeros(5, np.float32), np.zeros(5, np.float32))
        with mg.CommandBuffer() as commands:
            sgd.encode_batch_normalization(commands, state, input_momentum_vectors=slots, result_state=result)
        zeros = np.zeros(5, np.float32)
        np.testing.assert_array_equal(result.gamma, step(sgd, gradients[0], gamma, zeros)[0])
        if expected_beta is None:
            expected_beta = step(sgd, gradients[1], beta, zeros)[0]
        np.testing.assert_array_equal(result.beta, expected_beta)


# bad input


def _update(**changes: Any) -> None:
    layer = Layer()
    arguments = {
        "gradient": layer.gradient_state, "source": layer.source_state, "result": layer.result_state(), "slots": None
    } | changes  # fmt: skip
    commands = mg.CommandBuffer()
    try:
        optimizer().encode_convolution(
            commands, arguments["gradient"], arguments["source"], input_momentum_vectors=arguments["slots"],
            result_state=arguments["result"],
        )  # fmt: skip
    finally:
        assert commands._dispatches == []


def weights_and_biases(weights: tuple[int, ...], biases: int | None) -> mg.ConvolutionWeightsAndBiasesState:
    return mg.ConvolutionWeightsAndBiasesState.from_arrays(
        np.zeros(weights, np.float32), None if biases is None else np.zeros(biases, np.float32)
    )


BAD_INPUT = {
    "no gradient state": (
        lambda: _update(gradient=mg.Vector(4)), mg.FormatError, "the gradient state is Vector; it has to be a state"),
    "parameters where gradients belong": (
        lambda: _update(gradient=weights_and_biases((6, 3, 3, 4), 6)), mg.FormatError,
        "the gradient state is ConvolutionWeightsAndBiasesState"),
    "no result state": (lambda: _update(result=None), mg.FormatError, "the result_state is NoneType"),
    "weights of another size": (
        lambda: _update(source=weights_and_biases((6, 3, 3, 5), 6)), mg.GeometryError,
        "input_values_vector has 270 values but input_gradient_vector has 216"),
    "biases of another size": (
        lambda: _update(source=weights_and_biases((6, 3, 3, 4), 7)), mg.GeometryError,
        "input_values_vector has 7 values but input_gradient_vector has 6"),
    "frozen biases of another size": (
        lambda: _update(result=weights_and_biases((6, 3, 3, 4), 7), slots=[mg.Vector(216)]), mg.GeometryError,
        "result_state has 7 values but source_state has 6"),
    "a result without biases": (
        lambda: _update(result=weights_and_biases((6, 3, 3, 4), None)), mg.GeometryError,
        "the source state has 2 parameters but result_state 1"),
    "momentum of another size": (
        lambda: _update(slots=[mg.Vector(216), mg.Vector(7)]), mg.GeometryError,
        "input_momentum_vector has 7 values but input_gradient_vector has 6"),
    "a momentum vector without a list": (
        lambda: _update(slots=mg.Vector(216)), mg.FormatError, "input_momentum_vectors is <Vector of 216 float32"),
    "no momentum vectors": (lambda: _update(slots=[]), mg.FormatError, "input_momentum_vectors is []; it has to be 1"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named_and_dispatches_nothing(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)
