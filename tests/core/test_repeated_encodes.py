"""An encode that was made before takes over what came out then: it must look like the first one in every way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference, repeated_encode
from mpsgrad.padding import VALID_ONLY
from mpsgrad.repeated_encode import REMEMBERED_ENCODES, RememberedWork

SHAPE = (2, 6, 5, 8)
PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "pooling_max": lambda: (mg.PoolingMax(kernel_width=3, kernel_height=2), mg.PoolingMaxGradient(
        kernel_width=3, kernel_height=2)),
    "pooling_max_recorded": lambda: (mg.PoolingMax(kernel_width=2, kernel_height=2, record_maxima=True),
                                     mg.PoolingMaxGradient(kernel_width=2, kernel_height=2)),
    "pooling_l2_norm": lambda: (mg.PoolingL2Norm(kernel_width=3, kernel_height=3), mg.PoolingL2NormGradient(
        kernel_width=3, kernel_height=3)),
    "soft_max": lambda: (mg.SoftMax(), mg.SoftMaxGradient()),
    "neuron": lambda: (mg.NeuronSigmoid(), mg.NeuronGradient(mg.NeuronDescriptor("sigmoid"))),
    "prelu": lambda: (mg.NeuronPReLU(np.arange(8.0)), mg.NeuronGradient(
        mg.NeuronDescriptor.prelu(np.arange(8.0)), computes_gradient_for_slopes=True)),
    "convolution": lambda: _convolutions((4, 3, 3, 8)),
    "convolution_of_groups": lambda: _convolutions((8, 3, 2, 4), groups=2),
    "convolution_transpose": lambda: _transposed(stride=(1, 2)),
    "convolution_with_neuron": lambda: (_convolutions((4, 1, 1, 8), fused_neuron_descriptor=mg.NeuronDescriptor(
        "sigmoid"))[0], _convolutions((4, 1, 1, 8))[1]),
}


def _convolutions(shape: tuple[int, ...], **options: Any) -> tuple[Any, Any]:
    weights = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.ones(shape[0], np.float32), **options)
    gradient = mg.ConvolutionGradient(data) if "fused_neuron_descriptor" not in options else None
    return mg.Convolution(data), gradient


def _transposed(**options: Any) -> tuple[Any, Any]:
    weights = np.random.default_rng(6).standard_normal((4, 3, 2, 8)).astype(np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.ones(4, np.float32), **options)
    return mg.ConvolutionTranspose(data), mg.ConvolutionTransposeGradient(data)


def _array(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


Step = Callable[[np.ndarray, int], list[np.ndarray]]
"""One training step of kernels that are made once: from a source and a seed for the incoming gradient to results."""


def _pair(name: str) -> Step:
    forward, gradient = PAIRS[name]()

    def step(x: np.ndarray, seed: int) -> list[np.ndarray]:
        source = mg.Image.from_array(x)
        with mg.CommandBuffer() as commands:
            y, state = forward.encode(commands, source, return_state=True)
            incoming = mg.Image.from_array(_array(seed, y.shape))
            second = y if isinstance(gradient, mg.SoftMaxGradient) else source
            dx = gradient.encode(commands, incoming, second, state)
        sums = [np.array(vector) for vector in getattr(state, "gradient_vectors", ())] if _has_sums(gradient) else []
        return [np.array(y), np.array(dx), *sums]

    return step


def _has_sums(gradient: Any) -> bool:
    return isinstance(gradient, mg.ConvolutionGradient) or getattr(gradient, "computes_gradient_for_slopes", False)


def _batch_normalization(parts: int = 1, neuron: mg.NeuronDescriptor | None = None, temporary: bool = False) -> Step:
    data = mg.BatchNormalizationDataSource.from_arrays(
        np.linspace(0.5, 2, 8, dtype=np.float32), np.linspace(-1, 1, 8, dtype=np.float32)
    )
    forward = mg.BatchNormalization(data, fused_neuron_descriptor=neuron)
    statistics = mg.BatchNormalizationStatistics()
    sums = mg.BatchNormalizationStatisticsGradient(fused_neuron_descriptor=neuron)
    gradient = mg.BatchNormalizationGradient(fused_neuron_descriptor=neuron)

    def step(x: np.ndarray, seed: int) -> list[np.ndarray]:
        source, incoming = mg.Image.from_array(x), mg.Image.from_array(_array(seed, x.shape))
        with mg.CommandBuffer() as commands:
            if temporary:
                state = forward.temporary_result_state(commands, source)
                state.read_count = 4
            else:
                state = forward.result_state(source)
            sources, gradients = source.batch_representation(), incoming.batch_representation()
            cuts = [slice(part * len(sources) // parts, (part + 1) * len(sources) // parts) for part in range(parts)]
            for cut in cuts:
                statistics.encode_batch(commands, sources[cut], state)
            y = forward.encode(commands, source, batch_normalization_state=state)
            for cut in cuts:
                sums.encode_batch(commands, gradients[cut], sources[cut], state)
            dx = gradient.encode(commands, incoming, source, state)
        results = [np.array(y), np.array(dx)]
        if not temporary:
            results += [state.mean, state.variance, state.gradient_for_gamma, state.gradient_for_beta]
        return results

    return step


def _inference() -> Step:
    row = np.linspace(0.5, 2, 8, dtype=np.float32)
    kernel = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(row, -row, mean=2 * row, variance=row))

    def step(x: np.ndarray, seed: int) -> list[np.ndarray]:
        with mg.CommandBuffer() as commands:
            y = kernel.encode(commands, mg.Image.from_array(x))
        return [np.array(y)]

    return step


def _loss(reduction: str, weighted: bool = False, across_batch: bool = False) -> Step:
    descriptor = mg.LossDescriptor("softmax_cross_entropy", reduction, reduce_across_batch=across_batch)
    kernel = mg.Loss(descriptor, gradient_follows_reduction=True)

    def step(x: np.ndarray, seed: int) -> list[np.ndarray]:
        size = x.shape[2], x.shape[1], x.shape[3]
        labels = mg.LossLabels.from_array(
            np.abs(_array(seed, x.shape)),
            np.maximum(_array(seed + 1, x.shape), 0) if weighted else None,
            loss_image_size=size if reduction == "none" else (1, 1, 1),
        )
        with mg.CommandBuffer() as commands:
            dx = kernel.encode(commands, mg.Image.from_array(x), labels)
        return [np.array(dx), np.array(labels.loss_image)]

    return step


def _forward_loss(reduction: str, weighted: bool = False, of_labels: bool = False) -> Step:
    descriptor = mg.LossDescriptor("huber", reduction)
    kernel, gradient = mg.ForwardLoss(descriptor), mg.LossGradient(descriptor, compute_label_gradients=of_labels)
    initial = mg.InitialGradient()

    def step(x: np.ndarray, seed: int) -> list[np.ndarray]:
        kernel.delta = 0.5 + seed % 2
        source, labels = mg.Image.from_array(x), mg.Image.from_array(_array(seed, x.shape))
        weights = mg.Image.from_array(np.abs(_array(seed + 1, x.shape))) if weighted else None
        with mg.CommandBuffer() as commands:
            loss, state = kernel.encode(commands, source, labels, weights, return_state=True)
            ones = initial.encode(commands, loss)
            dx = gradient.encode(commands, ones, source, labels, weights, state)
        return [np.array(image) for image in (loss, ones, dx)]

    return step


def _concatenation(aligns_channels: bool) -> Step:
    kernel, gradients = mg.Concatenation(aligns_channels=aligns_channels), [mg.ConcatenationGradient(k) for k in (0, 1)]

    def step(x: np.ndarray, seed: int) -> list[np.ndarray]:
        sources = [mg.Image.from_array(x), mg.Image.from_array(_array(seed, (*x.shape[:3], 3)))]
        with mg.CommandBuffer() as commands:
            y, state = kernel.encode(commands, sources, return_state=True)
            incoming = mg.Image.from_array(_array(seed, y.shape))
            results = [g.encode(commands, incoming, s, state) for g, s in zip(gradients, sources, strict=True)]
        return [np.array(image) for image in (y, *results)]

    return step


def _dropout(mask_stride: tuple[int, int, int]) -> Step:
    stride = mg.Size(*mask_stride)
    kernel = mg.Dropout(0.5, seed=3, mask_stride_in_pixels=stride)
    gradient = mg.DropoutGradient(0.5, seed=3, mask_stride_in_pixels=stride)

    def step(x: np.ndarray, seed: int) -> list[np.ndarray]:
        source, incoming = mg.Image.from_array(x), mg.Image.from_array(_array(seed, x.shape))
        kernel.drawn_images = seed
        with mg.CommandBuffer() as commands:
            images = [kernel.encode(commands, source)]
            y, state = kernel.encode(commands, source, return_state=True)
            images += [y, gradient.encode(commands, incoming, source, state)]
        return [np.array(image) for image in images]

    return step


STEPS: dict[str, tuple[Callable[[], Step], int]] = {
    **{name: (lambda name=name: _pair(name), 2) for name in PAIRS},  # type: ignore[misc]
    "batch_normalization": (_batch_normalization, 4),
    "batch_normalization_in_parts": (lambda: _batch_normalization(2), 6),
    "batch_normalization_with_neuron": (lambda: _batch_normalization(neuron=mg.NeuronDescriptor("sigmoid")), 4),
    "batch_normalization_with_slopes": (
        lambda: _batch_normalization(neuron=mg.NeuronDescriptor.prelu(np.arange(8.0))), 4),
    "temporary_batch_normalization": (lambda: _batch_normalization(temporary=True), 4),
    "inference": (_inference, 1),
    "loss": (lambda: _loss("sum"), 1),
    "loss_without_reduction": (lambda: _loss("none"), 1),
    "loss_with_weights": (lambda: _loss("sum_by_non_zero_weights", weighted=True), 1),
    "forward_loss": (lambda: _forward_loss("mean"), 3),
    "forward_loss_without_reduction": (lambda: _forward_loss("none", weighted=True), 3),
    "forward_loss_of_labels": (lambda: _forward_loss("sum", of_labels=True), 3),
    "concatenation": (lambda: _concatenation(False), 3),
    "concatenation_with_gaps": (lambda: _concatenation(True), 3),
    "dropout": (lambda: _dropout((1, 1, 1)), 3),
    "dropout_of_channels": (lambda: _dropout((0, 0, 1)), 3),
    "loss_across_the_batch": (lambda: _loss("mean", across_batch=True), 1),
}
"""For each name how to make the kernels of a step, and how many encodes a step has."""


@pytest.mark.parametrize("name", STEPS)
def test_the_third_encode_of_other_images_equals_that_of_new_kernels(name: str) -> None:
    make, _ = STEPS[name]
    step = make()
    for seed in range(4):
        x = _array(seed)
        for mine, fresh in zip(step(x, seed + 10), make()(x, seed + 10), strict=True):
            np.testing.assert_array_equal(mine, fresh)


@pytest.mark.parametrize("name", STEPS)
def test_sizes_may_alternate(name: str) -> None:
    make, _ = STEPS[name]
    step = make()
    for seed in range(6):
        x = _array(seed, SHAPE if seed % 2 else (3, 7, 4, 8))
        for mine, fresh in zip(step(x, seed + 10), make()(x, seed + 10), strict=True):
            np.testing.assert_array_equal(mine, fresh)


@pytest.mark.parametrize("name", STEPS)
def test_what_was_encoded_before_is_taken_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, encodes = STEPS[name]
    step = make()
    for seed in range(2):
        step(_array(seed), seed)
    taken_over = []
    add_to = RememberedWork.add_to
    monkeypatch.setattr(RememberedWork, "add_to", lambda self, *rest: (taken_over.append(self), add_to(self, *rest)))
    step(_array(2), 2)
    assert len(taken_over) == encodes


SETTINGS: list[tuple[str, Any]] = [
    ("clip_rect", mg.Region(mg.Origin(1, 1, 0), mg.Size(2, 3, 2))),
    ("clip_rect", mg.NO_CLIP),
    ("edge_mode", mg.EdgeMode.CLAMP),
    ("edge_mode", mg.EdgeMode.ZERO),
    ("source_feature_channel_offset", 4),
    ("source_feature_channel_offset", 0),
    ("destination_feature_channel_offset", 0),
    ("offset", mg.Offset(1, 0, 1)),
    ("offset", mg.Offset(0, 0, 0)),
    ("padding", VALID_ONLY),
]


@given(st.lists(st.sampled_from(SETTINGS), max_size=6), st.sampled_from(["pooling_max", "pooling_l2_norm", "neuron"]))
def test_every_property_counts(settings: list[tuple[str, Any]], name: str) -> None:
    """A kernel whose properties change between encodes gives what a new kernel with these properties gives."""
    kernel, _ = PAIRS[name]()
    x = mg.Image.from_array(_array(1))
    applied: list[tuple[str, Any]] = []
    for setting in [None, *settings]:
        if setting is not None:
            applied.append(setting)
            setattr(kernel, *setting)
        fresh, _ = PAIRS[name]()
        for earlier in applied:
            setattr(fresh, *earlier)
        for _ in range(2):
            results = []
            # The policy sets the offset in encodes that return an image, so each gets the one it had before.
            for each in (kernel, fresh):
                before = each.offset
                with mg.CommandBuffer() as commands:
                    results.append(each.encode(commands, x))
                assert each.offset == (fresh.offset if each is fresh else kernel.offset)
                each.offset = before
            np.testing.assert_array_equal(np.asarray(results[0]), np.asarray(results[1]))


def test_properties_after_an_encode_are_those_of_its_state() -> None:
    forward = mg.PoolingAverage(kernel_width=3, kernel_height=3)
    gradient = mg.PoolingAverageGradient(kernel_width=3, kernel_height=3)
    source = mg.Image.from_array(_array(1))
    seen: dict[int, list[Any]] = {}
    for _ in range(3):
        for start in (0, 1):
            forward.clip_rect = mg.Region(mg.Origin(start, 0, 0), mg.Size(3, 3, 2))
            with mg.CommandBuffer() as commands:
                y, state = forward.encode(commands, source, return_state=True)
                gradient.encode(commands, mg.Image(y.descriptor), source, state)
            seen.setdefault(start, []).append((gradient.primary_offset, gradient.secondary_offset, gradient.clip_rect))
    for values in seen.values():
        assert values[0] == values[1] == values[2]
    assert seen[0][0] != seen[1][0]


@pytest.mark.parametrize("name", PAIRS)
def test_an_archive_of_a_kernel_that_was_used_before_is_that_of_a_new_one(name: str) -> None:
    """The properties that an encode sets are those of the last one."""
    images = [mg.Image.from_array(_array(1)), mg.Image.from_array(_array(2, (1, 7, 4, 8)))]
    archives = []
    for used in (True, False):
        kernel = PAIRS[name]()[0]
        for image in [*images, *images, *images][: None if used else 2]:
            with mg.CommandBuffer() as commands:
                kernel.encode(commands, image)
        archives.append(archive.to_bytes(kernel))
    assert archives[0] == archives[1]


class TestWhatIsWrongTheSecondTimeIsRefused:
    def setup_method(self) -> None:
        self.forward, self.gradient = PAIRS["pooling_max_recorded"]()
        self.source = mg.Image.from_array(_array(1))
        for _ in range(2):
            with mg.CommandBuffer() as self.done:
                self.y, self.state = self.forward.encode(self.done, self.source, return_state=True)
                self.incoming = mg.Image(self.y.descriptor)
                self.dx = self.gradient.encode(self.done, self.incoming, self.source, self.state)

    def test_a_committed_command_buffer(self) -> None:
        with pytest.raises(mg.StateError, match="PoolingMaxGradient.encode is not possible"):
            self.gradient.encode(self.done, self.incoming, self.source, self.state)
        with pytest.raises(mg.StateError, match="PoolingMax.encode is not possible"):
            self.forward.encode(self.done, self.source)

    def test_a_destination_that_is_a_source(self) -> None:
        same = mg.NeuronGradient(mg.NeuronDescriptor("relu"))
        with mg.CommandBuffer() as commands:
            _, state = mg.Neuron(mg.NeuronDescriptor("relu")).encode(commands, self.source, return_state=True)
            for _ in range(2):
                out = mg.Image(self.source.descriptor)
                same.encode(commands, mg.Image(self.source.descriptor), self.source, state, destination_gradient=out)
            with pytest.raises(mg.GeometryError, match="shares memory"):
                same.encode(commands, out, self.source, state, destination_gradient=self.source)

    def test_a_used_up_temporary_image(self) -> None:
        with mg.CommandBuffer() as commands:
            temporary = mg.TemporaryImage(commands, self.source.descriptor)
            self.forward.encode(commands, temporary)
            with pytest.raises(mg.StateError, match="read_count 0"):
                self.forward.encode(commands, temporary)

    def test_a_temporary_image_of_another_command_buffer(self) -> None:
        with mg.CommandBuffer() as other:
            temporary = mg.TemporaryImage(other, self.source.descriptor)
            with mg.CommandBuffer() as commands, pytest.raises(mg.StateError, match="belongs to"):
                self.forward.encode(commands, temporary)

    def test_a_state_of_another_size(self) -> None:
        small = mg.Image.from_array(_array(1, (1, 4, 4, 8)))
        with mg.CommandBuffer() as commands:
            _, state = self.forward.encode(commands, small, return_state=True)
            with pytest.raises(mg.GeometryError, match="gradient_state was made for"):
                self.gradient.encode(commands, self.incoming, self.source, state)

    @pytest.mark.parametrize(
        ("others", "error", "message"),
        [
            ([(2, 6, 4, 8)], mg.GeometryError, r"source_images\[1\] is 2x6x4x8"),
            ([None], mg.FormatError, r"source_images\[1\] is NoneType"),
            (None, mg.FormatError, "source_images is Image"),
        ],
    )
    def test_sources_that_cannot_be_concatenated(self, others: Any, error: type[Exception], message: str) -> None:
        kernel = mg.Concatenation()
        sources: Any = self.source
        if others is not None:
            made = [mg.Image.from_array(_array(1, shape)) if shape is not None else None for shape in others]
            sources = [self.source, *made]
        with mg.CommandBuffer() as commands:
            for _ in range(2):
                kernel.encode(commands, [self.source, self.source])
            with pytest.raises(error, match=message):
                kernel.encode(commands, sources)

    def test_no_image(self) -> None:
        with mg.CommandBuffer() as commands, pytest.raises(mg.FormatError, match="source_gradient is NoneType"):
            self.gradient.encode(commands, None, self.source, self.state)


def test_a_state_that_recorded_nothing_is_not_taken_for_one_that_did() -> None:
    forward, gradient = PAIRS["pooling_max_recorded"]()
    x, g = _array(1), None
    for _ in range(2):
        source = mg.Image.from_array(x)
        with mg.CommandBuffer() as commands:
            y, state = forward.encode(commands, source, return_state=True)
            g = mg.Image.from_array(_array(2, y.shape))
            wanted = gradient.encode(commands, g, source, state)
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        empty = forward.result_state(source, destination_image=y)
        got = gradient.encode(commands, g, source, empty)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_a_coupled_state_is_not_taken_for_none() -> None:
    weights = np.random.default_rng(6).standard_normal((8, 3, 3, 8)).astype(np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, stride=(1, 2))
    convolution, transposed = mg.Convolution(data), mg.ConvolutionTranspose(data)
    source = mg.Image.from_array(_array(1))
    with mg.CommandBuffer() as commands:
        y, state = convolution.encode(commands, source, return_state=True)
        for _ in range(2):
            for coupled in (None, state):
                made = transposed.encode(commands, y, coupled)
                alone = mg.ConvolutionTranspose(data).encode(commands, y, coupled)
                assert made.shape == alone.shape
                assert made.shape == (source.shape if coupled is not None else (2, 6, 5, 8))


def test_one_image_for_both_sources_is_not_taken_for_two() -> None:
    descriptor = mg.NeuronDescriptor("sigmoid")
    forward, gradient = mg.Neuron(descriptor), mg.NeuronGradient(descriptor)
    x, g = _array(1), _array(2)
    source, incoming = mg.Image.from_array(x), mg.Image.from_array(g)
    with mg.CommandBuffer() as commands:
        _, state = forward.encode(commands, source, return_state=True)
        gradient.encode(commands, source, source, state)
        both = gradient.encode(commands, source, source, state)
        two = gradient.encode(commands, incoming, source, state)
        again = gradient.encode(commands, incoming, source, state)
    expected = reference.neuron_gradient(g, x, type="sigmoid")
    np.testing.assert_allclose(np.asarray(two), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(two), np.asarray(again))
    np.testing.assert_allclose(
        np.asarray(both), reference.neuron_gradient(x, x, type="sigmoid"), rtol=1e-5, atol=1e-6
    )


def test_new_weights_reach_the_next_encode() -> None:
    weights = np.ones((4, 1, 1, 8), np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.zeros(4, np.float32))
    kernel = mg.Convolution(data)
    source = mg.Image.from_array(np.ones(SHAPE, np.float32))
    for factor in (1.0, 2.0, 3.0):
        data.weights[...] = factor
        kernel.reload_weights_and_biases_from_data_source()
        for _ in range(2):
            with mg.CommandBuffer() as commands:
                y = kernel.encode(commands, source)
            np.testing.assert_array_equal(np.asarray(y), np.float32(8 * factor))


def test_no_more_encodes_are_kept_than_the_limit() -> None:
    kernel = mg.NeuronReLU()
    with mg.CommandBuffer() as commands:
        for width in range(1, REMEMBERED_ENCODES + 20):
            kernel.encode(commands, mg.Image.from_array(np.ones((1, 1, width, 4), np.float32)))
            assert len(kernel._encodes) <= REMEMBERED_ENCODES


@pytest.mark.parametrize("kept", [0, repeated_encode.SCRATCH_KEPT_BYTES])
@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "mean_squared_error"])
def test_encodes_take_turns_with_scratch_memory(loss: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one command buffer, and those between two replays of another."""
    monkeypatch.setattr(repeated_encode, "SCRATCH_KEPT_BYTES", kept)
    descriptor = mg.LossDescriptor(loss, "mean")
    kernel, sources = mg.Loss(descriptor), [mg.Image.from_array(_array(seed)) for seed in range(3)]
    labels = [mg.LossLabels.from_array(np.abs(_array(seed + 3)), loss_image_size=(1, 1, 1)) for seed in range(3)]

    def losses(kernels: list[mg.Loss]) -> list[np.ndarray]:
        with mg.CommandBuffer() as commands:
            for each, source, target in zip(kernels, sources, labels, strict=True):
                each.encode(commands, source, target)
        return [np.array(target.loss_image) for target in labels]

    wanted = losses([mg.Loss(descriptor) for _ in sources])
    for _ in range(2):
        np.testing.assert_array_equal(losses([kernel] * 3), wanted)
    (remembered,) = kernel._encodes.values()
    assert bool(remembered.work.scratch_sizes) == (kept == 0)
    recorded = mg.LossLabels.from_array(np.abs(_array(3)), loss_image_size=(1, 1, 1))
    commands = mg.CommandBuffer()
    kernel.encode(commands, sources[0], recorded)
    recording = commands.record()
    for _ in range(2):
        recording.replay().wait_until_completed()
        np.testing.assert_array_equal(losses([kernel] * 3), wanted)
        np.testing.assert_array_equal(np.asarray(recorded.loss_image), wanted[0])


@pytest.mark.parametrize("kernel", [mg.Add, mg.ReduceFeatureChannelsAndWeightsSum, mg.PoolingMax, mg.ReduceRowSum])
def test_states_share_what_they_say_of_the_forward_kernel_until_that_changes(kernel: Any) -> None:
    forward = kernel(kernel_width=2, kernel_height=2) if kernel is mg.PoolingMax else kernel()
    names = ("primary", "secondary") if isinstance(forward, mg.BinaryKernel) else ("snapshot",)

    def snapshots(shape: tuple[int, ...]) -> list[Any]:
        sources = [mg.Image.from_array(np.ones(shape, np.float32)) for _ in names]
        with mg.CommandBuffer() as commands:
            _, state = forward.encode(commands, *sources, return_state=True)
        return [getattr(state, name) for name in names]

    made, again, larger = snapshots(SHAPE), snapshots(SHAPE), snapshots((2, 8, 6, 8))
    assert all(one is other for one, other in zip(made, again, strict=True))
    assert [each.source.shape[:3] for each in larger] == [(2, 8, 6)] * len(larger)
    forward.clip_rect = mg.Region(mg.Offset(), mg.Size(1, 1, 2))
    clipped = snapshots((2, 8, 6, 8))
    assert all(each.clip_rect == forward.clip_rect != larger[0].clip_rect for each in clipped)
