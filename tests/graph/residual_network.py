"""ResNet-18 as nodes (He et al., 2015, https://arxiv.org/abs/1512.03385)."""

from __future__ import annotations

import numpy as np

import mpsgrad as mg

DESCRIPTOR = mg.LossDescriptor("softmax_cross_entropy")


class _Builder:
    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def convolution(self, image: mg.ImageNode, size: int, inputs: int, outputs: int, stride: int) -> mg.ImageNode:
        """A convolution without biases and its batch normalization."""
        shape = (outputs, size, size, inputs)
        weights = (np.sqrt(2 / np.prod(shape[1:])) * self.random.standard_normal(shape)).astype(np.float32)
        source = mg.ConvolutionDataSource.from_arrays(weights, stride=(stride, stride))
        made = mg.ConvolutionNode(image, source, padding_policy=mg.ExplicitPadding(size // 2, size // 2))
        parameters = mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=outputs, epsilon=1e-5)
        return mg.BatchNormalizationNode(made.result_image, parameters).result_image

    def block(self, image: mg.ImageNode, inputs: int, outputs: int, stride: int) -> mg.ImageNode:
        """Two convolutions beside a short cut."""
        path = mg.NeuronReLUNode(self.convolution(image, 3, inputs, outputs, stride)).result_image
        path = self.convolution(path, 3, outputs, outputs, 1)
        short_cut = image if (inputs, stride) == (outputs, 1) else self.convolution(image, 1, inputs, outputs, stride)
        return mg.NeuronReLUNode(mg.AdditionNode(path, short_cut).result_image).result_image


def residual_network(width: int = 64, classes: int = 1000) -> mg.LossNode:
    """ResNet-18 with ``width`` channels in its first stage, for pictures of 224 x 224 pixels with 3 channels."""
    build = _Builder()
    image = mg.ImageNode("pictures")
    image = mg.NeuronReLUNode(build.convolution(image, 7, 3, width, 2)).result_image
    image = mg.PoolingMaxNode(image, 3, 2, padding_policy=mg.ExplicitPadding(1, 1)).result_image
    inputs = width
    for stage in range(4):
        outputs = width << stage
        for number in range(2):
            image = build.block(image, inputs, outputs, 2 if stage and not number else 1)
            inputs = outputs
    image = mg.ReductionSpatialMeanNode(image).result_image
    weights = (build.random.standard_normal((classes, 1, 1, inputs)) / np.sqrt(inputs)).astype(np.float32)
    scores = mg.FullyConnectedNode(image, mg.ConvolutionDataSource.from_arrays(weights, np.zeros(classes, np.float32)))
    return mg.LossNode(scores.result_image, descriptor=DESCRIPTOR)
