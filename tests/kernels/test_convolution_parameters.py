"""Where the weights of a convolution come from and go to: data sources, states, reloads, archives, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import archive, reference

FLOAT32 = np.float32


def arrays(outputs=4, inputs=3, kernel=(3, 3), seed=0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    weights = random.standard_normal((outputs, *kernel, inputs)).astype(FLOAT32)
    return weights, random.standard_normal(outputs).astype(FLOAT32)


def data_source(**options) -> mg.ConvolutionDataSource:
    return mg.ConvolutionDataSource.from_arrays(*arrays(), **options)


def image(height=5, width=6, channels=3, images=2, dtype=FLOAT32, seed=1) -> mg.Image:
    random = np.random.default_rng(seed)
    return mg.Image.from_array(random.standard_normal((images, height, width, channels)).astype(dtype))


def result(kernel: mg.Convolution, source: mg.Image) -> np.ndarray:
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, source)
    return np.array(y)


class Recorder(mg.ConvolutionDataSource):
    """A data source whose attributes may only be read between load and purge, and that writes down what happens."""

    def __init__(self, weights, bias_terms=None, *, loads=True, data_type=mg.DataType.FLOAT32, descriptor=None) -> None:
        self.values = weights, bias_terms
        self.loads = loads
        self.type = data_type
        self.calls: list[str] = []
        self.made_of = descriptor or mg.ConvolutionDescriptor(
            weights.shape[2], weights.shape[1], weights.shape[3], weights.shape[0]
        )

    def _loaded(self, value: Any) -> Any:
        assert self.calls and self.calls[-1] == "load", "read without a load"
        return value

    @property
    def data_type(self):
        return self._loaded(self.type)

    @property
    def descriptor(self):
        return self._loaded(self.made_of)

    @property
    def weights(self):
        return self._loaded(self.values[0])

    @property
    def bias_terms(self):
        return self._loaded(self.values[1])

    def load(self) -> bool:
        self.calls.append("load")
        return self.loads

    def purge(self) -> None:
        self.calls.append("purge")


def test_every_load_is_followed_by_a_purge_and_nothing_is_read_outside():
    data = Recorder(*arrays())
    kernel, gradient_kernel = mg.Convolution(data), mg.ConvolutionGradient(data)
    assert data.calls == ["load", "purge"] * 2
    result(kernel, image())
    assert len(data.calls) == 4
    kernel.reload_weights_and_biases_from_data_source()
    gradient_kernel.reload_weights_and_biases_from_data_source()
    assert data.calls == ["load", "purge"] * 4
    data.values = (np.zeros((4, 2, 2, 3), FLOAT32), None)
    with pytest.raises(mg.GeometryError, match="weights has shape"):
        kernel.reload_weights_and_biases_from_data_source()
    assert data.calls[-2:] == ["load", "purge"]


def test_a_kernel_keeps_nothing_of_what_a_data_source_purges():
    class Purging(Recorder):
        def purge(self) -> None:
            super().purge()
            for array in self.values:
                array[...] = np.nan

    expected = result(mg.Convolution(data_source()), image())
    assert np.array_equal(result(mg.Convolution(Purging(*arrays())), image()), expected)


def test_a_data_source_needs_the_attributes_only():
    class Plain:
        label = "plain"
        data_type = mg.DataType.FLOAT32
        descriptor = mg.ConvolutionDescriptor(3, 3, 3, 4)
        weights, bias_terms = arrays()

        def load(self):
            return True

        def purge(self):
            pass

    assert np.array_equal(result(mg.Convolution(Plain()), image()), result(mg.Convolution(data_source()), image()))


def test_optional_methods_do_nothing_by_default():
    data = mg.ConvolutionDataSource()
    assert data.update_with_command_buffer(None, None, None) is None
    assert data.update_with_gradient_state(None, None) is False
    assert data.load() and data.purge() is None and data.label is None and data.bias_terms is None


def test_float16_weights_are_widened():
    weights, biases = arrays()
    half = mg.ConvolutionDataSource.from_arrays(weights.astype(np.float16), biases)
    wide = mg.ConvolutionDataSource.from_arrays(weights.astype(np.float16).astype(FLOAT32), biases)
    assert half.data_type is mg.DataType.FLOAT16 and wide.data_type is mg.DataType.FLOAT32
    assert np.array_equal(result(mg.Convolution(half), image()), result(mg.Convolution(wide), image()))


def test_the_data_source_describes_its_arrays():
    weights, biases = arrays(outputs=6, inputs=2, kernel=(3, 5))
    data = mg.ConvolutionDataSource.from_arrays(
        weights, biases, stride=(2, 1), dilation=(1, 3), groups=3, label="first"
    )
    descriptor = data.descriptor
    assert (descriptor.kernel_width, descriptor.kernel_height) == (5, 3)
    assert (descriptor.stride_in_pixels_x, descriptor.stride_in_pixels_y) == (1, 2)
    assert (descriptor.dilation_rate_x, descriptor.dilation_rate_y) == (3, 1)
    assert (descriptor.input_feature_channels, descriptor.output_feature_channels, descriptor.groups) == (6, 6, 3)
    assert data.weights is weights and data.bias_terms is biases and data.label == "first"
    kernel, gradient_kernel = mg.Convolution(data), mg.ConvolutionGradient(data)
    assert (kernel.kernel_width, kernel.kernel_height) == (5, 3)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (1, 2)
    assert (kernel.dilation_rate_x, kernel.dilation_rate_y) == (3, 1)
    assert (kernel.input_feature_channels, kernel.output_feature_channels, kernel.groups) == (6, 6, 3)
    assert kernel.data_source is data and gradient_kernel.data_source is data
    assert (kernel.channel_multiplier, kernel.sub_pixel_scale_factor) == (0, 1)
    assert kernel.accumulator_precision_option is mg.ConvolutionAccumulatorPrecisionOption.FLOAT
    assert gradient_kernel.source_gradient_feature_channels == 6
    assert gradient_kernel.source_image_feature_channels == 6
    assert gradient_kernel.serialize_weights_and_biases is False


def test_batch_normalization_is_folded_into_the_weights():
    weights, biases = arrays()
    random = np.random.default_rng(2)
    mean, beta = random.standard_normal((2, 4)).astype(FLOAT32)
    variance, gamma = random.uniform(0.5, 2, (2, 4)).astype(FLOAT32)
    for bias_terms in (biases, None):
        data = mg.ConvolutionDataSource.from_arrays(weights, bias_terms)
        plain = result(mg.Convolution(data), image()).astype(np.float64)
        data.descriptor.set_batch_normalization_parameters_for_inference(mean, variance, gamma, beta, 1e-3)
        kernel = mg.Convolution(data)
        expected = gamma * (plain - mean) / np.sqrt(variance + 1e-3) + beta
        np.testing.assert_allclose(result(kernel, image()), expected, rtol=0, atol=1e-4)
        restored = archive.from_bytes(archive.to_bytes(kernel))
        assert np.array_equal(result(restored, image()), result(kernel, image()))
        with pytest.raises(NotImplementedError, match="ConvolutionGradient.*batch_normalization_parameters"):
            mg.ConvolutionGradient(data)


def test_a_reload_from_the_data_source_leaves_earlier_encodes_alone():
    weights, biases = arrays()
    data = mg.ConvolutionDataSource.from_arrays(weights, biases)
    kernel, source = mg.Convolution(data), image()
    before = result(kernel, source)
    with mg.CommandBuffer() as commands:
        early = kernel.encode(commands, source)
        weights *= 2
        biases += 1
        kernel.reload_weights_and_biases_from_data_source()
        late = kernel.encode(commands, source)
    assert np.array_equal(np.asarray(early), before)
    assert np.array_equal(np.asarray(late), result(mg.Convolution(data), source))
    assert not np.array_equal(np.asarray(late), before)


def test_export_gives_what_reload_took():
    kernel = mg.Convolution(data_source())
    other = mg.ConvolutionWeightsAndBiasesState.from_arrays(*arrays(seed=9))
    with mg.CommandBuffer() as commands:
        first = kernel.export_weights_and_biases(commands)
        kernel.reload_weights_and_biases(commands, other)
        second = kernel.export_weights_and_biases(commands)
        with pytest.raises(mg.StateError, match="before its command buffer was committed"):
            _ = kernel.weights_and_biases
    for state, (weights, biases) in ((first, arrays()), (second, arrays(seed=9))):
        assert np.array_equal(state.weights, weights) and np.array_equal(state.biases, biases)
    assert np.array_equal(kernel.weights_and_biases[0], arrays(seed=9)[0])
    assert np.array_equal(kernel.data_source.weights, arrays()[0]), "the data source was changed"


def test_a_state_is_not_loaded_before_the_work_that_writes_it():
    kernel, first, second = mg.Convolution(data_source()), mg.CommandBuffer(), mg.CommandBuffer()
    kernel.reload_weights_and_biases(second, kernel.export_weights_and_biases(first))
    with pytest.raises(mg.StateError, match="Convolution: state is written by .* not committed"):
        second.commit()
    first.commit()
    second.commit()


def test_a_temporary_export_is_used_up_by_two_reloads():
    source = image()
    kernel, other = mg.Convolution(data_source()), mg.Convolution(mg.ConvolutionDataSource.from_arrays(*arrays(seed=9)))
    gradient_kernel = mg.ConvolutionGradient(kernel.data_source)
    with mg.CommandBuffer() as commands:
        state = other.export_weights_and_biases(commands, result_state_can_be_temporary=True)
        assert state.is_temporary and state.read_count == 1
        state.read_count = 2
        kernel.reload_weights_and_biases(commands, state)
        gradient_kernel.reload_weights_and_biases(commands, state)
        with pytest.raises(mg.StateError, match="read_count 0"):
            kernel.reload_weights_and_biases(commands, state)
    assert np.array_equal(result(kernel, source), result(other, source))
    assert np.array_equal(gradient_kernel.weights_and_biases[1], arrays(seed=9)[1])


def test_work_takes_the_weights_that_are_loaded_when_it_runs_on_the_device():
    """Encodes and reloads of one command buffer run in their order."""
    source, kernel = image(), mg.Convolution(data_source())
    other = mg.ConvolutionWeightsAndBiasesState.from_arrays(*arrays(seed=9))
    with mg.CommandBuffer() as commands:
        early = kernel.encode(commands, source)
        kernel.reload_weights_and_biases(commands, other)
        late = kernel.encode(commands, source)
    assert np.array_equal(np.asarray(early), result(mg.Convolution(data_source()), source))
    expected = mg.Convolution(mg.ConvolutionDataSource.from_arrays(*arrays(seed=9)))
    assert np.array_equal(np.asarray(late), result(expected, source))


def test_states_over_existing_buffers():
    weights, biases = arrays()
    device = mg.default_device()
    together = device.allocate(4 * (5 + weights.size + 2 + biases.size))
    offsets = 4 * 5, 4 * (5 + weights.size + 2)
    together.write(weights, offsets[0])
    together.write(biases, offsets[1])
    descriptor = data_source().descriptor
    state = mg.ConvolutionWeightsAndBiasesState.with_buffers(
        together, together, weights_offset=offsets[0], biases_offset=offsets[1], descriptor=descriptor
    )
    assert (state.weights_offset, state.biases_offset) == offsets
    assert np.array_equal(state.weights, weights) and np.array_equal(state.biases, biases)
    kernel = mg.Convolution(mg.ConvolutionDataSource.from_arrays(*arrays(seed=9)))
    with mg.CommandBuffer() as commands:
        kernel.reload_weights_and_biases(commands, state)
    assert np.array_equal(kernel.weights_and_biases[0], weights)
    assert np.array_equal(kernel.weights_and_biases[1], biases)
    with pytest.raises(NotImplementedError, match="weights_offset is 20"):
        _ = state.parameter_vectors

    exact = device.allocate(4 * weights.size)
    exact.write(weights)
    flat = mg.ConvolutionWeightsAndBiasesState.with_buffers(exact)
    assert flat.biases is None and np.array_equal(flat.weights, weights.ravel())
    without = mg.Convolution(mg.ConvolutionDataSource.from_arrays(arrays(seed=9)[0]))
    with mg.CommandBuffer() as commands:
        without.reload_weights_and_biases(commands, flat)
        exported = without.export_weights_and_biases(commands)
    assert np.array_equal(exported.weights, weights) and exported.biases is None


def test_a_state_made_from_a_descriptor_is_zero():
    for descriptor in (data_source().descriptor, mg.DepthWiseConvolutionDescriptor(3, 2, 5, 5)):
        state = mg.ConvolutionWeightsAndBiasesState.with_descriptor(descriptor)
        assert state.weights.shape == descriptor.weights_shape and not state.weights.any()
        assert state.biases.shape == (descriptor.output_feature_channels,) and not state.biases.any()
    kernel = mg.Convolution(data_source())
    with mg.CommandBuffer() as commands:
        temporary = mg.ConvolutionWeightsAndBiasesState.temporary(commands, kernel.descriptor)
        kernel.reload_weights_and_biases(commands, temporary)
        assert temporary.read_count == 0
    assert not kernel.weights_and_biases[0].any() and not kernel.weights_and_biases[1].any()


def test_a_convolution_without_biases_stays_without_through_an_update():
    weights, _ = arrays()
    data = mg.ConvolutionDataSource.from_arrays(weights)
    kernel, gradient_kernel, source = mg.Convolution(data), mg.ConvolutionGradient(data), image()
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.1)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
        gradient_kernel.encode(commands, y, source, state)
        now = kernel.export_weights_and_biases(commands)
        then = mg.ConvolutionWeightsAndBiasesState.with_descriptor(kernel.descriptor)
        optimizer.encode_convolution(commands, state, now, result_state=then)
        kernel.reload_weights_and_biases(commands, then)
    assert now.biases is None
    new_weights, new_biases = kernel.weights_and_biases
    assert new_biases is None or not new_biases.any()
    np.testing.assert_allclose(new_weights, weights - FLOAT32(0.1) * state.gradient_for_weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda: mg.Convolution(data_source(stride=(2, 1)), label="stem"),
        lambda: mg.ConvolutionGradient(data_source(dilation=(1, 2))),
        lambda: mg.Convolution(mg.ConvolutionDataSource.from_arrays(np.ones((3, 2, 2), FLOAT32), label="depthwise")),
        lambda: mg.FullyConnected(mg.ConvolutionDataSource.from_arrays(*arrays(kernel=(5, 6)))),
        lambda: mg.FullyConnectedGradient(mg.ConvolutionDataSource.from_arrays(*arrays(kernel=(5, 6)))),
    ],
)
def test_a_restored_kernel_gives_the_same_bits(build):
    kernel, source = build(), image()
    if isinstance(kernel, mg.ConvolutionGradient):
        kernel.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_DATA
    else:
        kernel.edge_mode = mg.EdgeMode.CLAMP
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert type(restored) is type(kernel) and restored.label == kernel.label
    assert restored.descriptor.geometry == kernel.descriptor.geometry
    assert restored.data_source.label == kernel.data_source.label
    if isinstance(kernel, mg.ConvolutionGradient):
        assert restored.gradient_option is kernel.gradient_option
        assert np.array_equal(restored.weights_and_biases[0], kernel.weights_and_biases[0])
    else:
        assert np.array_equal(result(restored, source), result(kernel, source))


def test_a_restored_kernel_has_the_weights_that_were_loaded_on_the_device():
    kernel, source = mg.Convolution(data_source()), image()
    with mg.CommandBuffer() as commands:
        kernel.reload_weights_and_biases(
            commands, mg.ConvolutionWeightsAndBiasesState.from_arrays(*arrays(seed=9))
        )
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert np.array_equal(result(restored, source), result(kernel, source))
    assert np.array_equal(restored.data_source.weights, arrays()[0])


def test_a_kernel_with_a_data_source_of_your_own_is_not_archived():
    with pytest.raises(mg.ArchiveError, match="Recorder"):
        archive.to_bytes(mg.Convolution(Recorder(*arrays())))


def encoded(kernel, source, **arguments):
    with mg.CommandBuffer() as commands:
        return kernel.encode(commands, source, **arguments)


def gradient(kernel=None, data=None, incoming=None, source=None, state=None, **properties):
    """One gradient encode of which every part can be replaced by a wrong one."""
    kernel = kernel or mg.Convolution(data_source())
    gradient_kernel = mg.ConvolutionGradient(data or data_source())
    for name, value in properties.items():
        setattr(gradient_kernel, name, value)
    own = image()
    with mg.CommandBuffer() as commands:
        y, made = kernel.encode(commands, own, return_state=True)
        return gradient_kernel.encode(commands, incoming or y, source or own, state or made)


def reused_state():
    kernel, source = mg.Convolution(data_source()), image()
    gradient_kernel = mg.ConvolutionGradient(kernel.data_source)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
        gradient_kernel.encode(commands, y, source, state)
        kernel.encode(commands, source, destination_image=mg.Image(y.descriptor), destination_state=state)


def state_of_another_kernel():
    kernel, other, source = mg.Convolution(data_source()), mg.Convolution(data_source()), image()
    with mg.CommandBuffer() as commands:
        y, state = other.encode(commands, source, return_state=True)
        kernel.encode(commands, source, destination_image=y, destination_state=state)


def state_in_two_open_command_buffers():
    kernel, source = mg.Convolution(data_source()), image()
    gradient_kernel = mg.ConvolutionGradient(kernel.data_source)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
    gradient_kernel.encode(mg.CommandBuffer(), y, source, state)
    gradient_kernel.encode(mg.CommandBuffer(), y, source, state)


def reload(state, kernel=None, commands=None):
    (kernel or mg.Convolution(data_source())).reload_weights_and_biases(commands or mg.CommandBuffer(), state)


def committed() -> mg.CommandBuffer:
    with mg.CommandBuffer() as commands:
        return commands


def changed_data_source():
    data = Recorder(*arrays())
    kernel = mg.Convolution(data)
    data.made_of = mg.ConvolutionDescriptor(3, 3, 3, 4, stride_in_pixels_x=2)
    kernel.reload_weights_and_biases_from_data_source()


def from_arrays(weights=None, bias_terms=None, **options):
    return mg.ConvolutionDataSource.from_arrays(arrays()[0] if weights is None else weights, bias_terms, **options)


def transposed():
    return from_arrays(np.ones((3, 3, 3, 4), FLOAT32).transpose(3, 1, 2, 0))


def fully_connected(**options):
    return mg.FullyConnected(mg.ConvolutionDataSource.from_arrays(*arrays(kernel=(5, 6)), **options))


def mirrored():
    kernel = mg.Convolution(data_source())
    kernel.edge_mode = mg.EdgeMode.MIRROR
    return kernel


State = mg.ConvolutionWeightsAndBiasesState
NotSupported = NotImplementedError

BAD_INPUT = {
    "weights are a list": (lambda: from_arrays([1.0]), mg.FormatError, "weights is list"),
    "weights with two axes": (lambda: from_arrays(np.ones((3, 3), FLOAT32)), mg.GeometryError, r"shape \(3, 3\)"),
    "no weights": (lambda: from_arrays(np.ones((0, 3, 3, 1), FLOAT32)), mg.GeometryError, "empty"),
    "float64 weights": (lambda: from_arrays(np.ones((4, 3, 3, 3))), mg.FormatError, "float64.*float32"),
    "uint8 weights": (lambda: from_arrays(np.ones((4, 3, 3, 3), np.uint8)), NotSupported, "UINT8"),
    "weights of the other byte order": (
        lambda: from_arrays(np.ones((4, 3, 3, 3), ">f4" if np.little_endian else "<f4")), mg.FormatError, "native"),
    "weights in another order": (transposed, mg.FormatError, "C-contiguous"),
    "biases of another length": (
        lambda: from_arrays(bias_terms=np.ones(3, FLOAT32)), mg.GeometryError, r"\(3,\).*\(4,\)"),
    "float16 biases": (lambda: from_arrays(bias_terms=np.ones(4, np.float16)), mg.FormatError, "bias_terms.*float16"),
    "biases are a list": (lambda: from_arrays(bias_terms=[1, 2, 3, 4]), mg.FormatError, "bias_terms is list"),
    "stride 0": (lambda: from_arrays(stride=(0, 1)), mg.GeometryError, "stride is 0"),
    "negative stride": (lambda: from_arrays(stride=(1, -2)), mg.GeometryError, "stride is -2"),
    "one stride": (lambda: from_arrays(stride=2), mg.FormatError, "stride is 2"),
    "dilation 0": (lambda: from_arrays(dilation=(1, 0)), mg.GeometryError, "dilation is 0"),
    "groups 0": (lambda: from_arrays(groups=0), mg.GeometryError, "groups is 0"),
    "outputs not divisible": (
        lambda: from_arrays(groups=3), mg.GeometryError, "output_feature_channels is 4.*groups = 3"),
    "groups of a depthwise convolution": (
        lambda: from_arrays(np.ones((4, 3, 3), FLOAT32), groups=2), mg.GeometryError, "groups is 2"),
    "channel multiplier 2": (
        lambda: mg.Convolution(Recorder(
            np.ones((4, 3, 3, 1), FLOAT32), descriptor=mg.DepthWiseConvolutionDescriptor(3, 3, 2, 4))),
        NotSupported, "channel multiplier of 1"),
    "kernel size 0": (lambda: mg.ConvolutionDescriptor(0, 3, 1, 1), mg.GeometryError, "kernel_width is 0"),
    "no channels": (lambda: mg.ConvolutionDescriptor(3, 3, 0, 1), mg.GeometryError, "input_feature_channels is 0"),
    "fractional kernel size": (lambda: mg.ConvolutionDescriptor(3, 2.5, 1, 1), mg.FormatError, "kernel_height is 2.5"),
    "inputs not divisible": (
        lambda: State.with_descriptor(mg.ConvolutionDescriptor(3, 3, 4, 6, groups=3)), mg.GeometryError,
        "input_feature_channels is 4.*groups = 3"),
    "too many weights": (
        lambda: State.with_descriptor(mg.ConvolutionDescriptor(2**10, 2**10, 2**10, 2**10)), mg.GeometryError,
        "elements"),
    "fused neuron of another kind": (
        lambda: from_arrays(fused_neuron_descriptor="relu"), mg.FormatError, "fused_neuron_descriptor is 'relu'"),
    "too few slopes": (
        lambda: from_arrays(fused_neuron_descriptor=mg.NeuronDescriptor.prelu([0.1, 0.2, 0.3])), mg.GeometryError,
        "3 slopes but 4"),
    "gradient of a fused neuron": (
        lambda: mg.ConvolutionGradient(data_source(fused_neuron_descriptor=mg.NeuronDescriptor("relu"))), NotSupported,
        "ConvolutionGradient.*fused_neuron_descriptor"),
    "batch normalization of other channels": (
        lambda: data_source().descriptor.set_batch_normalization_parameters_for_inference(
            np.ones(3), None, None, None, 0.1), mg.GeometryError, r"mean has shape \(3,\).*4"),
    "batch normalization of words": (
        lambda: data_source().descriptor.set_batch_normalization_parameters_for_inference(
            None, "one", None, None, 0.1), mg.FormatError, "variance is str; it has to be an array of 4 numbers"),
    "batch normalization without epsilon": (
        lambda: data_source().descriptor.set_batch_normalization_parameters_for_inference(
            None, np.zeros(4), None, None, 0), mg.GeometryError, r"variance is 0\.0 with epsilon 0\.0"),
    "batch normalization with a word for epsilon": (
        lambda: data_source().descriptor.set_batch_normalization_parameters_for_inference(
            None, None, None, None, "small"), mg.FormatError, "epsilon is 'small'"),
    "groups that divide no channels": (
        lambda: mg.ConvolutionDescriptor(3, 3, 4, 6, groups=3), mg.GeometryError,
        "ConvolutionDescriptor: input_feature_channels is 4.*groups = 3"),
    "numbers that are no pair of arrays": (
        lambda: setattr(mg.Convolution(data_source()), "weights_and_biases", 3), mg.FormatError,
        "weights_and_biases is int; it has to be two arrays"),
    "numbers that are words": (
        lambda: setattr(mg.Convolution(data_source()), "weights_and_biases", ("a", "b")), mg.FormatError,
        "weights_and_biases is tuple; it has to be two arrays"),
    "no data source": (lambda: mg.Convolution(None), mg.FormatError, "NoneType"),
    "an array as data source": (lambda: mg.Convolution(arrays()[0]), mg.FormatError, "ndarray.*ConvolutionDataSource"),
    "a data source that does not load": (
        lambda: mg.Convolution(Recorder(*arrays(), loads=False)), mg.StateError, "could not load"),
    "a data source without descriptor": (
        lambda: mg.Convolution(Recorder(*arrays(), descriptor="3x3")), mg.FormatError, "descriptor is '3x3'"),
    "UINT8 data source": (
        lambda: mg.Convolution(Recorder(arrays()[0].astype(np.uint8), data_type=mg.DataType.UINT8)), NotSupported,
        "UINT8 without ranges_for_uint8_kernel or lookup_table_for_uint8_kernel"),
    "invalid data type": (
        lambda: mg.Convolution(Recorder(*arrays(), data_type=mg.DataType.INVALID)), mg.FormatError, "INVALID"),
    "data type and dtype differ": (
        lambda: mg.Convolution(Recorder(*arrays(), data_type=mg.DataType.FLOAT16)), mg.FormatError, "float32.*float16"),
    "weights and descriptor differ": (
        lambda: mg.Convolution(Recorder(*arrays(), descriptor=mg.ConvolutionDescriptor(3, 3, 4, 4))),
        mg.GeometryError, r"\(4, 3, 3, 3\).*\(4, 3, 3, 4\)"),
    "a data source that changed": (changed_data_source, mg.GeometryError, "stride 2x1"),
    "source with too few channels": (
        lambda: encoded(mg.Convolution(data_source()), image(channels=2)), mg.GeometryError, "has 2 .* need 3"),
    "destination with too few channels": (
        lambda: encoded(mg.Convolution(data_source()), image(),
                        destination_image=mg.Image(mg.ImageDescriptor(width=6, height=5, number_of_images=2))),
        mg.GeometryError, "has 1 feature channels but 4"),
    "another channel format": (
        lambda: encoded(mg.Convolution(data_source()), image(),
                        destination_image=image(channels=4, dtype=np.float16)), mg.FormatError, "FLOAT16.*FLOAT32"),
    "accumulator of another kind": (
        lambda: setattr(mg.Convolution(data_source()), "accumulator_precision_option", 5), mg.FormatError, "is 5"),
    "source is the destination": (
        lambda: (lambda x: encoded(mg.Convolution(data_source()), x, destination_image=x))(image(channels=4)),
        mg.GeometryError, "alias"),
    "a state used for a second batch": (reused_state, mg.StateError, "not re-usable across batches"),
    "a state of another kernel": (state_of_another_kernel, mg.StateError, "another kernel"),
    "a state in two open command buffers": (state_in_two_open_command_buffers, mg.StateError, "commit it first"),
    "incoming gradient of another size": (
        lambda: gradient(incoming=image(channels=4, height=4)), mg.GeometryError, "2x4x6x4.*2x5x6x4"),
    "incoming gradient of another size, by hand": (
        lambda: gradient(incoming=image(channels=4, height=4), kernel_offset_x=1), mg.GeometryError, "2x4x6x4"),
    "source of another size": (lambda: gradient(source=image(width=5)), mg.GeometryError, "2x5x5x3.*2x5x6x3"),
    "gradient kernel of another stride": (
        lambda: gradient(data=data_source(stride=(2, 2))), mg.StateError, "stride 2x2"),
    "gradient kernel of other channels": (
        lambda: gradient(data=mg.ConvolutionDataSource.from_arrays(*arrays(outputs=8))), mg.StateError, "3 to 8"),
    "state of a pooling": (
        lambda: gradient(state=encoded(mg.SoftMax(), image(), return_state=True)[1]), mg.StateError, "SoftMax"),
    "no state": (lambda: gradient(state=5), mg.FormatError, "gradient_state is int"),
    "gradient option": (lambda: gradient(gradient_option="data"), mg.FormatError, "gradient_option is 'data'"),
    "mirrored edges": (lambda: encoded(mirrored(), image()), NotSupported, "edge_mode is MIRROR"),
    "reload from an array": (lambda: reload(arrays()[0]), mg.FormatError, "state is ndarray"),
    "reload with no command buffer": (
        lambda: reload(State.from_arrays(*arrays()), commands="none"), mg.FormatError, "command_buffer"),
    "reload after the commit": (
        lambda: reload(State.from_arrays(*arrays()), commands=committed()), mg.StateError, "committed"),
    "reload of other weights": (
        lambda: reload(State.from_arrays(*arrays(inputs=2))), mg.GeometryError, "72 weights.*108"),
    "reload of other biases": (
        lambda: reload(State.from_arrays(arrays()[0], arrays(outputs=5)[1])), mg.GeometryError, "5 biases.*4"),
    "reload without the biases": (
        lambda: reload(State.from_arrays(arrays()[0])), mg.GeometryError, "state has no biases but the kernel 4"),
    "reload of a state of another command buffer": (
        lambda: reload(State.temporary(mg.CommandBuffer(), data_source().descriptor)), mg.StateError,
        "another command buffer"),
    "export after the commit": (
        lambda: mg.Convolution(data_source()).export_weights_and_biases(committed()), mg.StateError, "committed"),
    "an odd offset": (
        lambda: State.with_buffers(mg.default_device().allocate(40), weights_offset=2), mg.GeometryError,
        "multiple of 4"),
    "a buffer that is too small": (
        lambda: State.with_buffers(mg.default_device().allocate(40), descriptor=data_source().descriptor),
        mg.GeometryError, "40 bytes but 432"),
    "an array as buffer": (lambda: State.with_buffers(arrays()[0]), mg.FormatError, "weights is ndarray"),
    "fully connected with a stride": (
        lambda: fully_connected(stride=(2, 1)), mg.GeometryError, "stride_in_pixels_y is 2"),
    "fully connected with dilation": (
        lambda: fully_connected(dilation=(1, 2)), mg.GeometryError, "dilation_rate_x is 2"),
    "fully connected with groups": (lambda: fully_connected(groups=2), mg.GeometryError, "groups is 2"),
    "fully connected depthwise": (
        lambda: mg.FullyConnectedGradient(from_arrays(np.ones((3, 5, 6), FLOAT32))), mg.GeometryError, "depthwise"),
    "fully connected source of another size": (
        lambda: encoded(fully_connected(), image(height=6)), mg.GeometryError, "6x6 pixels.*6x5"),
    "fully connected result of more than a pixel": (
        lambda: encoded(fully_connected(), image(), destination_image=image(channels=4)), mg.GeometryError,
        "6x5 pixels.*1x1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    build, error, words = BAD_INPUT[case]
    with pytest.raises(error, match=words):
        build()


def test_nothing_is_dispatched_when_an_encode_is_refused():
    kernel, commands = mg.Convolution(data_source()), mg.CommandBuffer()
    for source in (image(channels=2), "no image"):
        with pytest.raises(mg.MPSGradError):
            kernel.encode(commands, source)
    assert not commands._dispatches


def test_the_references_agree_with_the_layer_used_here():
    weights, biases = arrays()
    source = image()
    expected = reference.convolution(np.asarray(source), weights, biases, size=(5, 6))
    np.testing.assert_allclose(result(mg.Convolution(data_source()), source), expected, rtol=0, atol=1e-4)
