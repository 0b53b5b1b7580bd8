"""Batch normalization refuses bad input by name."""

from __future__ import annotations

import numpy as np
import pytest
from batch_normalization_case import Case, batch, encode_statistics

import mpsgrad as mg


def use(function):
    """Runs ``function`` with a command buffer and the parts of a small case whose statistics are complete."""

    def call():
        case = Case.draw((2, 3, 4, 5))
        kernel, source, incoming = case.kernel(), batch(case.x), batch(case.g)
        state = kernel.result_state(mg.Image.from_array(case.x))
        with mg.CommandBuffer() as commands:
            encode_statistics(case, commands, state)
            function(commands, kernel, source, incoming, state)

    return call


SUMS, GRADIENT, STATISTICS = (
    mg.BatchNormalizationStatisticsGradient,
    mg.BatchNormalizationGradient,
    mg.BatchNormalizationStatistics,
)
FROM_ARRAYS = mg.BatchNormalizationDataSource.from_arrays
ONES = np.ones(5, np.float32)
OTHER = mg.Image.from_array(np.ones((1, 3, 4, 6), np.float32))
UNAVAILABLE = [
    (lambda c, k, x, g, s: STATISTICS().encode(c, x[0]), "BatchNormalizationStatistics.encode .*encode_batch"),
    (lambda c, k, x, g, s: STATISTICS().encode(c, x[0], destination_image=x[1]), "BatchNormalizationStatistics.encode"),
    (lambda c, k, x, g, s: STATISTICS().encode_batch(c, x), "encode_batch with source_images only"),
    (
        lambda c, k, x, g, s: STATISTICS().encode_batch(c, x, destination_images=g),
        "encode_batch with destination_images",
    ),
    (
        lambda c, k, x, g, s: STATISTICS().result_state(x[0], destination_image=x[1]),
        "BatchNormalizationStatistics.result_state .*BatchNormalization.result_state",
    ),
    (lambda c, k, x, g, s: SUMS().encode(c, g[0], x[0], s), "NormalizationStatisticsGradient.encode .*encode_batch"),
    (lambda c, k, x, g, s: SUMS().encode(c, g[0], x[0], s, destination_gradient=x[1]), "StatisticsGradient.encode"),
    (lambda c, k, x, g, s: SUMS().encode_batch(c, g, x, [s, s]), "Gradient.encode_batch with gradient states"),
    (
        lambda c, k, x, g, s: SUMS().encode_batch(c, g, x, s, destination_gradients=x),
        "StatisticsGradient.encode_batch with destination_gradients",
    ),
    (lambda c, k, x, g, s: k.encode(c, x[0], return_state=True), "BatchNormalization.encode with a destination state"),
    (
        lambda c, k, x, g, s: k.encode(c, x[0], destination_image=g[0], destination_state=s),
        "BatchNormalization.encode with a destination state",
    ),
    (
        lambda c, k, x, g, s: k.encode_batch(c, x, return_state=True),
        "BatchNormalization.encode_batch with a destination state .*result_state",
    ),
]


@pytest.mark.parametrize("function, words", UNAVAILABLE)
def test_unavailable_encodes_name_what_to_call(function, words):
    with pytest.raises(NotImplementedError, match=words):
        use(function)()


BAD = [
    (lambda: FROM_ARRAYS(), mg.GeometryError, "no arrays and no number_of_feature_channels"),
    (lambda: FROM_ARRAYS(ONES, ONES[:4]), mg.GeometryError, r"beta has shape \(4,\) but there are 5"),
    (lambda: FROM_ARRAYS(ONES.astype(np.float64)), mg.FormatError, "gamma is dtype.*float32"),
    (lambda: FROM_ARRAYS([1.0, 2.0]), mg.FormatError, "gamma is list.*NumPy array"),
    (lambda: FROM_ARRAYS(ONES.astype(">f4")), mg.FormatError, "gamma is dtype.*native"),
    (lambda: FROM_ARRAYS(variance=-ONES), mg.GeometryError, "variance has the value -1.0"),
    (lambda: FROM_ARRAYS(ONES, epsilon=0), mg.GeometryError, "epsilon is 0.0.*positive"),
    (lambda: FROM_ARRAYS(ONES, epsilon=1e39), mg.GeometryError, "epsilon is 1e\\+39.*finite"),
    (lambda: FROM_ARRAYS(ONES, epsilon="small"), mg.FormatError, "epsilon is 'small'.*number"),
    (lambda: FROM_ARRAYS(number_of_feature_channels=0), mg.GeometryError, "number_of_feature_channels is 0"),
    (lambda: mg.BatchNormalization(ONES), mg.FormatError, "data_source is ndarray, which has no .*gamma"),
    (
        lambda: mg.Convolution(mg.ConvolutionDataSource),  # type: ignore[arg-type]
        mg.FormatError,
        "^Convolution: data_source is the class ConvolutionDataSource; it has to be an object of one$",
    ),
    (
        lambda: mg.BatchNormalization(FROM_ARRAYS(ONES), fused_neuron_descriptor="relu"),
        mg.FormatError,
        "BatchNormalization: fused_neuron_descriptor is 'relu'",
    ),
    (
        lambda: mg.BatchNormalization(FROM_ARRAYS(ONES), fused_neuron_descriptor=mg.NeuronDescriptor.prelu([1])),
        mg.GeometryError,
        "BatchNormalization: .*1 slopes but 5",
    ),
    (lambda: setattr(mg.BatchNormalization(FROM_ARRAYS(ONES)), "epsilon", -1), mg.GeometryError, "epsilon is -1.0"),
    (
        lambda: mg.NormalizationGammaAndBetaState.from_arrays(ONES, ONES[:3]),
        mg.GeometryError,
        "NormalizationGammaAndBetaState: gamma has 5 values but beta has 3",
    ),
    (
        lambda: mg.NormalizationMeanAndVarianceState.from_arrays(ONES, ONES.astype(np.float16)),
        mg.FormatError,
        "variance is dtype.*float32",
    ),
    (lambda: mg.NormalizationGammaAndBetaState(0), mg.GeometryError, "number_of_feature_channels is 0"),
    (
        use(lambda c, k, x, g, s: k.reload_gamma_and_beta_with_command_buffer(c, s)),
        mg.FormatError,
        "gamma_and_beta_state is BatchNormalizationState; it has to be a NormalizationGammaAndBetaState",
    ),
    (
        use(
            lambda c, k, x, g, s: k.reload_mean_and_variance_with_command_buffer(
                c, mg.NormalizationMeanAndVarianceState(4)
            )
        ),
        mg.GeometryError,
        "mean_and_variance_state has 4 feature channels but the kernel has 5",
    ),
    (
        use(lambda c, k, x, g, s: k.encode(c, OTHER)),
        mg.GeometryError,
        "BatchNormalization: the data source has 5 feature channels but 6 are read from source_image 1x3x4x6",
    ),
    (
        use(lambda c, k, x, g, s: k.encode(c, x[0], batch_normalization_state=3)),
        mg.FormatError,
        "BatchNormalization: batch_normalization_state is int",
    ),
    (
        use(lambda c, k, x, g, s: Case.draw((2, 3, 4, 5)).kernel().encode(c, x[0], batch_normalization_state=s)),
        mg.StateError,
        "BatchNormalization: batch_normalization_state was made by another kernel",
    ),
    (
        use(
            lambda c, k, x, g, s: k.encode(
                c, mg.Image.from_array(np.ones((1, 2, 2, 5), np.float32)), batch_normalization_state=s
            )
        ),
        mg.StateError,
        "made for a source of 2x3x4x5 but source_image is 1x2x2x5",
    ),
    (
        use(lambda c, k, x, g, s: k.encode(c, x[0], batch_normalization_state=k.result_state(x[0]))),
        mg.StateError,
        "BatchNormalization: batch_normalization_state holds no statistics",
    ),
    (
        use(lambda c, k, x, g, s: k.encode(c, x[0], batch_normalization_state=s, destination_image=x[0])),
        mg.GeometryError,
        "alias",
    ),
    (
        use(lambda c, k, x, g, s: STATISTICS().encode_batch(c, [OTHER], s)),
        mg.GeometryError,
        "BatchNormalizationStatistics: 6 feature channels are read from source_images 1x3x4x6.*has 5",
    ),
    (use(lambda c, k, x, g, s: STATISTICS().encode_batch(c, x[0], s)), mg.FormatError, "source_images is Image"),
    (use(lambda c, k, x, g, s: STATISTICS().encode_batch(c, [], s)), mg.GeometryError, "empty batch"),
    (
        use(lambda c, k, x, g, s: STATISTICS().encode_batch(c, x, mg.State([4]))),
        mg.FormatError,
        "batch_normalization_state is State",
    ),
    (
        use(lambda c, k, x, g, s: SUMS().encode_batch(c, g, x[:1], s)),
        mg.GeometryError,
        "source_images has 1 images but the batch has 2",
    ),
    (
        use(lambda c, k, x, g, s: SUMS().encode_batch(c, [OTHER], x[:1], s)),
        mg.GeometryError,
        "source_gradient is 1x3x4x6 but BatchNormalization of a 2x3x4x5 source gives 2x3x4x5",
    ),
    (
        use(lambda c, k, x, g, s: SUMS().encode_batch(c, g, x, k.result_state(x[0]))),
        mg.StateError,
        "BatchNormalizationStatisticsGradient: batch_normalization_state holds no statistics",
    ),
    (
        use(lambda c, k, x, g, s: [SUMS().encode_batch(c, g, x, s) for _ in range(2)]),
        mg.StateError,
        "gradients of 48 pixels in all, but the statistics of batch_normalization_state are of 24 pixels",
    ),
    (
        use(lambda c, k, x, g, s: SUMS(fused_neuron_descriptor=mg.NeuronDescriptor("relu")).encode_batch(c, g, x, s)),
        mg.StateError,
        "fused_neuron_descriptor is .*RELU.* but that of batch_normalization_state's kernel is None",
    ),
    (
        use(lambda c, k, x, g, s: GRADIENT().encode(c, g[0], x[0], s)),
        mg.StateError,
        "BatchNormalizationGradient: .*gradients of 0 pixels but statistics of 24; encode .*whole batch",
    ),
    (
        use(lambda c, k, x, g, s: (SUMS().encode_batch(c, g[:1], x[:1], s), GRADIENT().encode_batch(c, g, x, s))),
        mg.StateError,
        "gradients of 12 pixels but statistics of 24",
    ),
    (
        use(lambda c, k, x, g, s: GRADIENT().encode(c, g[0], x[0], mg.State([4]))),
        mg.FormatError,
        "BatchNormalizationGradient: batch_normalization_state is State",
    ),
    (
        use(
            lambda c, k, x, g, s: (
                SUMS().encode_batch(c, g, x, s),
                GRADIENT().encode(c, mg.Image.from_array(np.ones((1, 3, 4, 5), np.float16)), x[0], s),
            )
        ),
        mg.FormatError,
        "FLOAT32 but source_gradient is FLOAT16",
    ),
    (
        use(lambda c, k, x, g, s: GRADIENT(fused_neuron_descriptor=3)),
        mg.FormatError,
        "BatchNormalizationGradient: fused_neuron_descriptor is 3",
    ),
]


@pytest.mark.parametrize("build, error, words", BAD)
def test_bad_input_is_refused(build, error, words):
    with pytest.raises(error, match=words):
        build()


def test_statistics_of_a_part_of_an_image_are_refused():
    kernel = STATISTICS()
    kernel.offset = mg.Offset(1, 0)
    with pytest.raises(NotImplementedError, match="offset Offset.*statistics are of whole images"):
        use(lambda c, k, x, g, s: kernel.encode_batch(c, x, s))()
