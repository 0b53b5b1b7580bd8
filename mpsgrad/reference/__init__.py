"""NumPy float64 forward and gradient of every operation: the executable specification.

Images are N x H x W x C, weights O x kH x kW x I/groups; whatever is passed in is converted to float64. Geometry is
keyword-only, in pairs (y, x): kernel, stride, dilation, offset (source position of the centre tap of the first output
pixel), size (of the result) and edge, "zero" or "clamp". Nothing here knows the rest of the package.
"""

from .arithmetic import Comparison, Operation, arithmetic, arithmetic_gradient, compare
from .batch_normalization import (
    batch_normalization,
    batch_normalization_gradient,
    batch_normalization_inference_gradient,
    batch_normalization_statistics,
)
from .convolution import (
    convolution,
    convolution_gradient_biases,
    convolution_gradient_data,
    convolution_gradient_weights,
    convolution_transpose,
    convolution_transpose_gradient,
    fully_connected,
    fully_connected_gradient_data,
    fully_connected_gradient_weights,
)
from .copies import (
    concatenation,
    concatenation_gradient,
    reshape,
    reshape_gradient,
    slice_image,
    slice_image_gradient,
    sub_pixels,
)
from .dropout import dropout, dropout_gradient, dropout_mask, philox
from .gram_matrix import gram_matrix, gram_matrix_gradient
from .group_normalization import (
    group_normalization,
    group_normalization_gradient,
    group_normalization_statistics,
    instance_normalization,
    instance_normalization_gradient,
)
from .loss import (
    LossType,
    Reduction,
    loss,
    loss_elements,
    loss_gradient,
    reduced_loss_gradient,
    reduced_loss_gradient_labels,
)
from .neuron import (
    NEURON_DEFAULTS,
    NeuronArguments,
    neuron,
    neuron_derivative,
    neuron_gradient,
    prelu_gradient_slopes,
)
from .optimizer import Preprocessing, adam, preprocess_gradient, rms_prop, stochastic_gradient_descent
from .pad import PadMode, pad, pad_gradient, pad_matrix
from .padding import padding_offset, padding_reverse_size, padding_size
from .pooling import (
    pooling_average,
    pooling_average_gradient,
    pooling_l2_norm,
    pooling_l2_norm_gradient,
    pooling_max,
    pooling_max_gradient,
    pooling_max_indices,
)
from .reduction import reduction, reduction_gradient, weighted_reduction, weighted_reduction_gradient
from .response_normalization import (
    cross_channel_normalization,
    cross_channel_normalization_gradient,
    local_contrast_normalization,
    local_contrast_normalization_gradient,
    local_contrast_statistics,
    spatial_normalization,
    spatial_normalization_gradient,
)
from .soft_max import log_soft_max, log_soft_max_gradient, soft_max, soft_max_gradient
from .upsampling import (
    crop_and_resize,
    crop_and_resize_gradient,
    crop_matrix,
    interpolation_matrix,
    resample,
    resample_gradient,
)
from .window import window_extent
from .yolo_loss import YOLOOptions, yolo_choices, yolo_loss, yolo_overlaps

__all__ = [
    "NEURON_DEFAULTS",
    "Comparison",
    "LossType",
    "NeuronArguments",
    "Operation",
    "PadMode",
    "Preprocessing",
    "Reduction",
    "YOLOOptions",
    "adam",
    "arithmetic",
    "arithmetic_gradient",
    "batch_normalization",
    "batch_normalization_gradient",
    "batch_normalization_inference_gradient",
    "batch_normalization_statistics",
    "compare",
    "concatenation",
    "concatenation_gradient",
    "convolution",
    "convolution_gradient_biases",
    "convolution_gradient_data",
    "convolution_gradient_weights",
    "convolution_transpose",
    "convolution_transpose_gradient",
    "crop_and_resize",
    "crop_and_resize_gradient",
    "crop_matrix",
    "cross_channel_normalization",
    "cross_channel_normalization_gradient",
    "dropout",
    "dropout_gradient",
    "dropout_mask",
    "fully_connected",
    "fully_connected_gradient_data",
    "fully_connected_gradient_weights",
    "group_normalization",
    "group_normalization_gradient",
    "group_normalization_statistics",
    "instance_normalization",
    "instance_normalization_gradient",
    "interpolation_matrix",
    "local_contrast_normalization",
    "local_contrast_normalization_gradient",
    "local_contrast_statistics",
    "gram_matrix",
    "gram_matrix_gradient",
    "log_soft_max",
    "log_soft_max_gradient",
    "loss",
    "loss_elements",
    "loss_gradient",
    "neuron",
    "neuron_derivative",
    "neuron_gradient",
    "pad",
    "pad_gradient",
    "pad_matrix",
    "padding_offset",
    "padding_reverse_size",
    "padding_size",
    "philox",
    "pooling_average",
    "pooling_average_gradient",
    "pooling_l2_norm",
    "pooling_l2_norm_gradient",
    "pooling_max",
    "pooling_max_gradient",
    "pooling_max_indices",
    "preprocess_gradient",
    "prelu_gradient_slopes",
    "reduced_loss_gradient",
    "reduced_loss_gradient_labels",
    "reduction",
    "reduction_gradient",
    "reshape",
    "reshape_gradient",
    "rms_prop",
    "resample",
    "resample_gradient",
    "slice_image",
    "slice_image_gradient",
    "soft_max",
    "soft_max_gradient",
    "spatial_normalization",
    "spatial_normalization_gradient",
    "stochastic_gradient_descent",
    "sub_pixels",
    "weighted_reduction",
    "weighted_reduction_gradient",
    "window_extent",
    "yolo_choices",
    "yolo_loss",
    "yolo_overlaps",
]
