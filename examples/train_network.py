"""A model for ``mpsgrad train --model examples/train_network.py``: a convolution, batch normalization and dropout."""

import mpsgrad as mg
from mpsgrad.training import initial


def build(pictures, shape, classes, generator):
    """A score for each class; ``shape`` is height, width and channels of a picture."""
    height, width, channels = shape
    convolution = mg.ConvolutionNode(pictures, initial.weights(generator, 16, 3, channels, biases=False))
    normalization = mg.BatchNormalizationNode(convolution.result_image, initial.normalization(16))
    relu = mg.NeuronReLUNode(normalization.result_image)
    pooling = mg.PoolingMaxNode(relu.result_image, 2)
    dropout = mg.DropoutNode(pooling.result_image, keep_probability=0.8)
    size = (height + 1) // 2, (width + 1) // 2
    return mg.FullyConnectedNode(dropout.result_image, initial.weights(generator, classes, size, 16))
