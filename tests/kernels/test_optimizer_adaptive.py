"""RMSProp, Adam and AMSGrad against the float64 references and PyTorch: vectors, states, slots, and counted steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_optimizer import REGULARIZATIONS, Layer, descriptors, lengths

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.testing import assert_within, error_bound, values

SLOTS = {
    "rms_prop": ("input_sum_of_squares_vector",),
    "adam": ("input_momentum_vector", "input_velocity_vector"),
    "ams_grad": ("input_momentum_vector", "input_velocity_vector", "maximum_velocity_vector"),
}
KINDS = tuple(SLOTS)


def optimizer(kind: str, numbers: dict[str, Any] | None = None, **options: Any) -> Any:
    if isinstance(options.get("regularization_type"), str):
        options["regularization_type"] = REGULARIZATIONS[options["regularization_type"]]
    cls = mg.OptimizerRMSProp if kind == "rms_prop" else mg.OptimizerAdam
    return cls(mg.OptimizerDescriptor(**options), **numbers or {})


def step(kind: str, kernel: Any, g: np.ndarray, v: np.ndarray, slots: list[np.ndarray]) -> list[np.ndarray]:
    """The new values and slots of one encode; longer buffers behind show writes beyond the end."""
    fences = [np.concatenate([slot, np.full(64, 7)]).astype(np.float32) for slot in (np.full_like(v, np.nan), *slots)]
    buffers = [mg.Vector.from_array(fence) for fence in fences]
    result, *made = [mg.Vector.of_buffer(fence.buffer, v.size) for fence in buffers]
    with mg.CommandBuffer() as commands:
        kernel.encode(
            commands,
            input_gradient_vector=mg.Vector.from_array(g),
            input_values_vector=mg.Vector.from_array(v),
            result_values_vector=result,
            **dict(zip(SLOTS[kind], made, strict=True)),
        )
    for buffer in buffers:
        assert (np.asarray(buffer)[v.size :] == 7).all(), "values behind a vector were overwritten"
    return [np.asarray(vector) for vector in (result, *made)]


def expected_step(kind: str, g: Any, v: Any, slots: list[Any], time_step: int, **options: Any) -> list[np.ndarray]:
    if kind == "rms_prop":
        return list(reference.rms_prop(g, v, *slots, **options))
    results = reference.adam(g, v, *slots, time_step=time_step, **options)
    return [result for result in results if result is not None]


def drawn_slots(kind: str, length: int, seed: int) -> list[np.ndarray]:
    """Momenta of either sign, and squares that are not so small that their roots are ill-conditioned."""
    generator = np.random.default_rng(seed)
    squares = [generator.uniform(0.1, 2, length).astype(np.float32) for _ in SLOTS[kind]]
    if kind != "rms_prop":
        squares[0] = generator.standard_normal(length).astype(np.float32)
    return squares


@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_steps_match_the_reference(data, seed):
    kind, options, length = data.draw(st.sampled_from(KINDS)), data.draw(descriptors()), data.draw(lengths)
    g, v = (data.draw(values((length,), np.float32, ties=data.draw(st.booleans()))) for _ in range(2))
    slots, time_step = drawn_slots(kind, length, seed), 0
    numbers = {"epsilon": data.draw(st.sampled_from([1e-8, 0.125]))}
    if kind == "rms_prop":
        numbers["decay"] = data.draw(st.sampled_from([0.0, 0.5, 0.9]))
        first, second = 0.0, numbers["decay"]
    else:
        numbers["beta1"], numbers["beta2"] = first, second = data.draw(st.sampled_from([(0.9, 0.999), (0.5, 0.25)]))
        time_step = data.draw(st.sampled_from([0, 1, 100]))
    if second == 0:
        g = np.where(np.abs(g) < 0.1, np.float32(1), g)
        options |= {"apply_gradient_clipping": False, "regularization_type": "none"}
    kernel = optimizer(kind, numbers if kind == "rms_prop" else numbers | {"time_step": time_step}, **options)
    results = step(kind, kernel, g, v, slots)
    exact = expected_step(kind, g, v, slots, time_step, **options, **numbers)
    steepness = np.abs(g) * abs(options["gradient_rescale"]) + options["regularization_scale"] * (np.abs(v) + 1)
    steepness = steepness + (2 * abs(options["gradient_rescale"]) if options["apply_gradient_clipping"] else 0)
    momenta = steepness if kind == "rms_prop" else first * np.abs(slots[0]) + (1 - first) * steepness
    squares = second * slots[-1 if kind == "rms_prop" else 1] + (1 - second) * steepness**2
    rate = options["learning_rate"]
    if kind != "rms_prop":
        rate *= np.sqrt(1 - second ** (time_step + 1)) / (1 - first ** (time_step + 1))
    root = np.sqrt(exact[-1])
    magnitude = np.abs(v) + rate * momenta / (root + numbers["epsilon"]) * (1 + squares / exact[-1])
    assert_within(results[0], exact[0], error_bound(np.float32, 12, magnitude, exact[0]))
    sizes = [squares] if kind == "rms_prop" else [momenta, squares, squares + np.abs(exact[-1])]
    for result, expected, size in zip(results[1:], exact[1:], sizes, strict=False):
        assert_within(result, expected, error_bound(np.float32, 8, size, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_pytorch(kind):
    """Adam's up to the place of epsilon."""
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(1)
    g = generator.standard_normal((6, 300)).astype(np.float32)
    v = generator.standard_normal(300).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(v.copy()))
    if kind == "rms_prop":
        theirs = torch.optim.RMSprop([parameter], lr=0.1, alpha=0.75, eps=1e-8, weight_decay=0.01)
        numbers = {"decay": 0.75}
    else:
        amsgrad = kind == "ams_grad"
        theirs = torch.optim.Adam([parameter], lr=0.1, betas=(0.75, 0.5), weight_decay=0.01, amsgrad=amsgrad)
        numbers = {"beta1": 0.75, "beta2": 0.5}
    kernel = optimizer(kind, numbers, learning_rate=0.1, regularization_type="l2", regularization_scale=0.01)
    slots = [np.zeros(300, np.float32) for _ in SLOTS[kind]]
    for gradient in g:
        parameter.grad = torch.from_numpy(gradient)
        theirs.step()
        v, *slots = step(kind, kernel, gradient, v, slots)
        np.testing.assert_allclose(v, parameter.detach().numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_may_be_the_values_and_steps_follow_each_other(kind):
    generator = np.random.default_rng(2)
    g = generator.standard_normal((4, 700)).astype(np.float32)
    v, slots = np.zeros(700, np.float32), drawn_slots(kind, 700, 2)
    in_place, kept = mg.Vector.from_array(v), [mg.Vector.from_array(slot) for slot in slots]
    kernel, alone = optimizer(kind, learning_rate=0.1), optimizer(kind, learning_rate=0.1)
    with mg.CommandBuffer() as commands:
        for gradient in g:
            kernel.encode(
                commands,
                input_gradient_vector=mg.Vector.from_array(gradient),
                input_values_vector=in_place,
                result_values_vector=in_place,
                **dict(zip(SLOTS[kind], kept, strict=True)),
            )
    for gradient in g:
        v, *slots = step(kind, alone, gradient, v, slots)
    np.testing.assert_array_equal(np.asarray(in_place), v)
    for vector, slot in zip(kept, slots, strict=True):
        np.testing.assert_array_equal(np.asarray(vector), slot)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_from_an_archive_gives_the_same_bits(kind):
    numbers = {"decay": 0.5} if kind == "rms_prop" else {"beta1": 0.5, "beta2": 0.75, "time_step": 7}
    kernel = optimizer(kind, numbers | {"epsilon": 0.25}, learning_rate=0.5, gradient_rescale=2.0)
    generator = np.random.default_rng(3)
    g, v = (generator.standard_normal(100).astype(np.float32) for _ in range(2))
    restored = archive.from_bytes(archive.to_bytes(kernel))
    for one, other in zip(
        step(kind, kernel, g, v, drawn_slots(kind, 100, 3)),
        step(kind, restored, g, v, drawn_slots(kind, 100, 3)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


# states


def updated(kind: str, kernel: Any, layer: Layer, slots: list[list[mg.Vector]], result: Any) -> None:
    with mg.CommandBuffer() as commands:
        kernel.encode_convolution(
            commands,
            layer.gradient_state,
            layer.source_state,
            result_state=result,
            **{f"{name}s": vectors for name, vectors in zip(SLOTS[kind], slots, strict=True)},
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2], ids=["weights only", "weights and biases"])
def test_weights_and_biases_are_updated_in_one_step(kind, count):
    layer, kernel, alone = Layer(), optimizer(kind, learning_rate=0.1), optimizer(kind, learning_rate=0.1)
    drawn = [drawn_slots(kind, size, 5) for size in (layer.weights.size, 6)[:count]]
    slots = [[mg.Vector.from_array(one[index]) for one in drawn] for index in range(len(SLOTS[kind]))]
    result = layer.result_state()
    updated(kind, kernel, layer, slots, result)
    for index, (value, got) in enumerate(((layer.weights, result.weights), (layer.biases, result.biases))):
        if index >= count:
            np.testing.assert_array_equal(got, value)
            continue
        if kind != "rms_prop":
            alone.time_step = 0
        expected, *kept = step(kind, alone, layer.gradients[index].ravel(), value.ravel(), drawn[index])
        np.testing.assert_array_equal(got.ravel(), expected)
        for vectors, slot in zip(slots, kept, strict=True):
            np.testing.assert_array_equal(np.asarray(vectors[index]), slot)
    if kind != "rms_prop":
        assert kernel.time_step == 1


@pytest.mark.parametrize("kind", KINDS)
def test_gamma_and_beta_are_updated(kind):
    generator = np.random.default_rng(8)
    draw = lambda *shape: generator.standard_normal(shape).astype(np.float32)  # noqa: E731
    gamma, beta = draw(5), draw(5)
    source = mg.BatchNormalizationDataSource.from_arrays(gamma, beta, np.zeros(5, np.float32), np.ones(5, np.float32))
    normalization, x = mg.BatchNormalization(source), mg.Image.from_array(draw(3, 4, 4, 5))
    with mg.CommandBuffer() as commands:
        state = normalization.result_state(x, destination_image=mg.Image(x.descriptor))
        mg.BatchNormalizationStatistics().encode_batch(commands, x.batch_representation(), state)
        g = mg.Image.from_array(draw(3, 4, 4, 5))
        mg.BatchNormalizationStatisticsGradient().encode_batch(
            commands, g.batch_representation(), x.batch_representation(), state
        )
    kernel, zeros = optimizer(kind, learning_rate=0.1), np.zeros(5, np.float32)
    result = mg.NormalizationGammaAndBetaState.from_arrays(zeros, zeros)
    with mg.CommandBuffer() as commands:
        kernel.encode_batch_normalization(
            commands,
            state,
            result_state=result,
            **{f"{name}s": [mg.Vector(5), mg.Vector(5)] for name in SLOTS[kind]},
        )
    for gradient, value, got in zip(state.gradient_vectors, (gamma, beta), (result.gamma, result.beta), strict=True):
        alone = optimizer(kind, learning_rate=0.1)
        expected, *_ = step(kind, alone, np.asarray(gradient), value, [zeros for _ in SLOTS[kind]])
        np.testing.assert_array_equal(got, expected)


# the count of steps


def test_each_encode_counts_a_step_that_later_ones_correct_for():
    kernel = optimizer("adam", {"time_step": 2})
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    for time_step in (2, 3):
        assert kernel.time_step == time_step
        result, *_ = step("adam", kernel, one, one, [zero, zero])
        exact, *_ = reference.adam(one, one, zero, zero, time_step=time_step)
        np.testing.assert_allclose(result, exact, rtol=1e-6)
    kernel.time_step = 0
    assert kernel.time_step == 0


def test_an_encode_that_fails_counts_no_step():
    layer, kernel = Layer(), optimizer("adam")
    right, wrong = [mg.Vector(layer.weights.size), mg.Vector(6)], [mg.Vector(layer.weights.size), mg.Vector(7)]
    with pytest.raises(mg.GeometryError):
        updated("adam", kernel, layer, [right, wrong], layer.result_state())
    assert kernel.time_step == 0
    commands = mg.CommandBuffer()
    with pytest.raises(ZeroDivisionError), commands._all_or_nothing():
        vectors = {name: mg.Vector(3) for name in SLOTS["adam"]}
        vectors |= {f"{name}_vector": mg.Vector(3) for name in ("input_gradient", "input_values", "result_values")}
        kernel.encode(commands, **vectors)
        assert kernel.time_step == 1
        raise ZeroDivisionError
    assert kernel.time_step == 0


# bad input


def encode(kind: str = "adam", **changes: Any) -> None:
    names = ("input_gradient_vector", "input_values_vector", "result_values_vector", *SLOTS[kind])
    vectors = {name: mg.Vector(4) for name in names} | changes
    commands = mg.CommandBuffer()
    try:
        optimizer(kind).encode(commands, **vectors)
    finally:
        assert commands._dispatches == []


def encode_states(kind: str = "adam", **changes: Any) -> None:
    layer, kernel = Layer(), optimizer(kind)
    slots = {f"{name}s": [mg.Vector(layer.weights.size), mg.Vector(6)] for name in SLOTS[kind]} | changes
    commands = mg.CommandBuffer()
    try:
        kernel.encode_convolution(
            commands, layer.gradient_state, layer.source_state, result_state=layer.result_state(), **slots
        )
    finally:
        assert commands._dispatches == []


def shared(first: str, second: str, kind: str = "ams_grad") -> None:
    vector = mg.Vector(4)
    encode(kind, **{first: vector, second: vector})


BAD_INPUT = {
    "a decay above 1": (
        lambda: optimizer("rms_prop", {"decay": 1.5}), mg.GeometryError, "OptimizerRMSProp: decay is 1.5"),
    "an epsilon below 0": (lambda: optimizer("rms_prop", {"epsilon": -1}), mg.GeometryError, "epsilon is -1"),
    "no descriptor": (lambda: mg.OptimizerRMSProp(0.1), mg.FormatError, "optimizer_descriptor is 0.1"),
    "a beta of 1": (lambda: optimizer("adam", {"beta1": 1}), mg.GeometryError, "beta1 is 1; it has to be below 1"),
    "a second beta below 0": (lambda: optimizer("adam", {"beta2": -0.5}), mg.GeometryError, "beta2 is -0.5"),
    "a beta that is no number": (lambda: optimizer("adam", {"beta2": "1"}), mg.FormatError, "beta2 is '1'"),
    "a step that is no integer": (lambda: optimizer("adam", {"time_step": 0.5}), mg.FormatError, "time_step is 0.5"),
    "a step below 0": (
        lambda: setattr(optimizer("adam"), "time_step", -1), mg.GeometryError, "time_step is -1; .* at least 0"),
    "no momentum": (
        lambda: encode(input_momentum_vector=None), mg.FormatError, "input_momentum_vector is NoneType; .* a Vector"),
    "no sum of squares": (
        lambda: encode("rms_prop", input_sum_of_squares_vector=None), mg.FormatError,
        "input_sum_of_squares_vector is NoneType"),
    "no gradient": (lambda: encode(input_gradient_vector=None), mg.FormatError, "input_gradient_vector is NoneType"),
    "a velocity of another size": (
        lambda: encode(input_velocity_vector=mg.Vector(5)), mg.GeometryError,
        "input_velocity_vector has 5 values but input_gradient_vector has 4"),
    "an array for a vector": (
        lambda: encode("ams_grad", maximum_velocity_vector=np.zeros(4)), mg.FormatError,
        "maximum_velocity_vector is ndarray; it has to be a Vector"),
    "the momentum as the velocity": (
        lambda: shared("input_momentum_vector", "input_velocity_vector"), mg.GeometryError,
        "input_velocity_vector is overwritten, so it may not share the buffer of input_momentum_vector"),
    "the result as the maximum": (
        lambda: shared("result_values_vector", "maximum_velocity_vector"), mg.GeometryError,
        "maximum_velocity_vector is overwritten, so it may not share the buffer of result_values_vector"),
    "no velocities": (
        lambda: encode_states(input_velocity_vectors=None), mg.FormatError,
        "input_velocity_vectors is None; it has to be 1 or 2 vectors"),
    "fewer velocities than momenta": (
        lambda: encode_states(input_velocity_vectors=[mg.Vector(216)]), mg.GeometryError,
        "input_velocity_vectors has 1 vectors but input_momentum_vectors has 2"),
    "a vector without a list": (
        lambda: encode_states("rms_prop", input_sum_of_squares_vectors=mg.Vector(216)), mg.FormatError,
        "input_sum_of_squares_vectors is <Vector of 216"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named_and_dispatches_nothing(build, error, words):
    with pytest.raises(error, match=words):
        build()
