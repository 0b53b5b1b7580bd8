"""One call for each op and each gradient: NumPy arrays in, NumPy arrays out.

Arrays are images x height x width x channels (or height x width x channels), float32 or float16, in any memory order;
results have the input's dtype, parameter gradients are float32. Windows take

* ``kernel``, ``stride``, ``dilation``: one integer, or a pair (y, x);
* ``padding``: ``"same"`` (the default: the remainder goes to the top left), ``"valid"``, ``"full"``, or pixels on each
  side as one integer or a pair (y, x), PyTorch's rule;
* ``edge_mode``: ``"zero"`` or ``"clamp"``, what lies outside the source.

Gradients take the gradient with respect to the forward result first. Errors are those of the kernels.
"""

from typing import TYPE_CHECKING, NoReturn

from mpsgrad.functional.activations import (
    dropout,
    dropout_gradient,
    log_soft_max,
    log_soft_max_gradient,
    neuron,
    neuron_gradient,
    soft_max,
    soft_max_gradient,
)
from mpsgrad.functional.arithmetic import (
    add,
    add_gradient,
    compare,
    divide,
    divide_gradient,
    multiply,
    multiply_gradient,
    subtract,
    subtract_gradient,
)
from mpsgrad.functional.convolutions import (
    convolution,
    convolution_gradient,
    convolution_transpose,
    convolution_transpose_gradient,
    fully_connected,
    fully_connected_gradient,
    sub_pixel_convolution,
)
from mpsgrad.functional.copies import (
    concatenation,
    concatenation_gradient,
    pad,
    pad_gradient,
    reshape,
    reshape_gradient,
    slice_image,
    slice_image_gradient,
)
from mpsgrad.functional.losses import loss, loss_gradient, softmax_cross_entropy, yolo_loss
from mpsgrad.functional.normalizations import (
    batch_normalization,
    batch_normalization_gradient,
    cross_channel_normalization,
    cross_channel_normalization_gradient,
    group_normalization,
    group_normalization_gradient,
    instance_normalization,
    instance_normalization_gradient,
    local_contrast_normalization,
    local_contrast_normalization_gradient,
    spatial_normalization,
    spatial_normalization_gradient,
)
from mpsgrad.functional.pooling import (
    pooling_average,
    pooling_average_gradient,
    pooling_l2_norm,
    pooling_l2_norm_gradient,
    pooling_max,
    pooling_max_gradient,
)
from mpsgrad.functional.reductions import (
    gram_matrix,
    gram_matrix_gradient,
    reduction,
    reduction_gradient,
    weighted_reduction,
    weighted_reduction_gradient,
)
from mpsgrad.functional.resampling import (
    crop_and_resize,
    crop_and_resize_gradient,
    resize_bilinear,
    resize_bilinear_gradient,
    upsampling_bilinear,
    upsampling_bilinear_gradient,
    upsampling_nearest,
    upsampling_nearest_gradient,
)
from mpsgrad.known_attributes import no_such_name

__all__ = [
    "add",
    "add_gradient",
    "batch_normalization",
    "batch_normalization_gradient",
    "compare",
    "concatenation",
    "concatenation_gradient",
    "convolution",
    "convolution_gradient",
    "convolution_transpose",
    "convolution_transpose_gradient",
    "crop_and_resize",
    "crop_and_resize_gradient",
    "cross_channel_normalization",
    "cross_channel_normalization_gradient",
    "divide",
    "divide_gradient",
    "dropout",
    "dropout_gradient",
    "fully_connected",
    "fully_connected_gradient",
    "gram_matrix",
    "gram_matrix_gradient",
    "group_normalization",
    "group_normalization_gradient",
    "instance_normalization",
    "instance_normalization_gradient",
    "local_contrast_normalization",
    "local_contrast_normalization_gradient",
    "log_soft_max",
    "log_soft_max_gradient",
    "loss",
    "loss_gradient",
    "multiply",
    "multiply_gradient",
    "neuron",
    "neuron_gradient",
    "pad",
    "pad_gradient",
    "pooling_average",
    "pooling_average_gradient",
    "pooling_l2_norm",
    "pooling_l2_norm_gradient",
    "pooling_max",
    "pooling_max_gradient",
    "reduction",
    "reduction_gradient",
    "reshape",
    "reshape_gradient",
    "resize_bilinear",
    "resize_bilinear_gradient",
    "slice_image",
    "slice_image_gradient",
    "soft_max",
    "soft_max_gradient",
    "softmax_cross_entropy",
    "spatial_normalization",
    "spatial_normalization_gradient",
    "sub_pixel_convolution",
    "subtract",
    "subtract_gradient",
    "upsampling_bilinear",
    "upsampling_bilinear_gradient",
    "upsampling_nearest",
    "upsampling_nearest_gradient",
    "weighted_reduction",
    "weighted_reduction_gradient",
    "yolo_loss",
]


if not TYPE_CHECKING:  # which takes a module with this function to have every name

    def __getattr__(name: str) -> NoReturn:
        raise no_such_name(__name__, name, __all__)
