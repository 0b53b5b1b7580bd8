"""The models of ``mpsgrad train --model``, and how a file of one's own is read."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpsgrad.errors import ModelError
from mpsgrad.geometry import ceiling_divide
from mpsgrad.graph import (
    AdditionNode,
    BatchNormalizationNode,
    ConvolutionNode,
    FullyConnectedNode,
    ImageNode,
    NeuronReLUNode,
    PoolingMaxNode,
    ReductionSpatialMeanNode,
)
from mpsgrad.training import initial

Build = Callable[[ImageNode, tuple[int, int, int], int, np.random.Generator], Any]
"""``build(pictures, shape, classes, generator)``: the nodes of a network, of which the last one or its result image is
returned.

``shape`` is height, width and channels of a picture; the result has a score for each class, 1 x 1 x ``classes``, to
which the loss applies the softmax. It has to make the same nodes from the same ``generator``.
"""


def digits(
    pictures: ImageNode, shape: tuple[int, int, int], classes: int, generator: np.random.Generator
) -> FullyConnectedNode:
    """For pictures of few pixels: two convolutions with batch normalization and ReLU, max pooling, two fully connected
    layers."""
    height, width, channels = shape
    image = pictures
    for number, outputs in enumerate((16, 32), 1):
        convolution = ConvolutionNode(
            image, initial.weights(generator, outputs, 3, channels), label=f"convolution_{number}"
        )
        normalization = BatchNormalizationNode(
            convolution.result_image, initial.normalization(outputs), label=f"batch_normalization_{number}"
        )
        image, channels = NeuronReLUNode(normalization.result_image).result_image, outputs
    pooling = PoolingMaxNode(image, 2)
    size = ceiling_divide(height, 2), ceiling_divide(width, 2)
    node = FullyConnectedNode(
        pooling.result_image, initial.weights(generator, 64, size, channels), label="fully_connected_1"
    )
    relu = NeuronReLUNode(node.result_image)
    return FullyConnectedNode(
        relu.result_image, initial.weights(generator, classes, 1, 64), label="fully_connected_2"
    )


def lenet(
    pictures: ImageNode, shape: tuple[int, int, int], classes: int, generator: np.random.Generator
) -> FullyConnectedNode:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max pooling, and convolutions that keep the size of their sources."""
    height, width, channels = shape
    image = pictures
    for number, outputs in enumerate((6, 16), 1):
        convolution = ConvolutionNode(
            image, initial.weights(generator, outputs, 5, channels), label=f"convolution_{number}"
        )
        pooling = PoolingMaxNode(NeuronReLUNode(convolution.result_image).result_image, 2)
        image, channels = pooling.result_image, outputs
        height, width = ceiling_divide(height, 2), ceiling_divide(width, 2)
    size = height, width
    for number, outputs in enumerate((120, 84), 1):
        node = FullyConnectedNode(
            image, initial.weights(generator, outputs, size, channels), label=f"fully_connected_{number}"
        )
        image, channels, size = NeuronReLUNode(node.result_image).result_image, outputs, (1, 1)
    return FullyConnectedNode(image, initial.weights(generator, classes, 1, channels), label="fully_connected_3")


def resnet18(
    pictures: ImageNode,
    shape: tuple[int, int, int],
    classes: int,
    generator: np.random.Generator,
    *,
    width: int = 64,
) -> FullyConnectedNode:
    """ResNet-18 (He et al., 2016) for small pictures: a first convolution of 3 x 3 pixels and no pooling behind it.

    Four stages of two blocks with 1, 2, 4 and 8 times ``width`` channels; each but the first halves width and height.
    """
    image = normalized(pictures, "stem", width, 3, shape[2], 1, generator, has_relu=True)
    return residual_stages(image, classes, generator, width)


def residual_stages(
    image: ImageNode, classes: int, generator: np.random.Generator, width: int
) -> FullyConnectedNode:
    """ResNet-18 behind its first layers, whose result ``image`` has ``width`` channels."""
    channels = width
    for stage, outputs in enumerate((width, 2 * width, 4 * width, 8 * width), 1):
        for block in (1, 2):
            stride = 2 if stage > 1 and block == 1 else 1
            name = f"stage_{stage}_block_{block}"
            inner = normalized(image, f"{name}_first", outputs, 3, channels, stride, generator, has_relu=True)
            inner = normalized(inner, f"{name}_second", outputs, 3, outputs, 1, generator)
            if channels != outputs:
                image = normalized(image, f"{name}_shortcut", outputs, 1, channels, stride, generator)
            image = NeuronReLUNode(AdditionNode(inner, image).result_image).result_image
            channels = outputs
    mean = ReductionSpatialMeanNode(image)
    return FullyConnectedNode(
        mean.result_image, initial.weights(generator, classes, 1, channels), label="fully_connected"
    )


def normalized(
    image: ImageNode,
    name: str,
    outputs: int,
    size: int,
    inputs: int,
    stride: int,
    generator: np.random.Generator,
    *,
    has_relu: bool = False,
) -> ImageNode:
    """A convolution without biases, batch normalization, and with ``has_relu`` ReLU."""
    weights = initial.weights(generator, outputs, size, inputs, stride=stride, biases=False)
    convolution = ConvolutionNode(image, weights, label=f"{name}_convolution")
    normalization = BatchNormalizationNode(
        convolution.result_image, initial.normalization(outputs), label=f"{name}_normalization"
    )
    return NeuronReLUNode(normalization.result_image).result_image if has_relu else normalization.result_image


MODELS: dict[str, Build] = {"lenet": lenet, "resnet18": resnet18, "digits": digits}


def load(text: str) -> Build:
    """The model that ``text`` names: one of ``MODELS``, or the function ``build`` of a Python file.

    The file may import modules of its own folder, as a program that Python runs. Raises ``ModelError`` if there is
    neither, and for a file that fails or has no such function.
    """
    if text in MODELS:
        return MODELS[text]
    if not text.endswith(".py"):
        raise ModelError(f"no model {text!r}; it has to be one of {', '.join(MODELS)} or a Python file")
    if not Path(text).is_file():
        raise ModelError(f"{text}: there is no such file")
    folder = str(Path(text).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = runpy.run_path(text).get("build")
    except (Exception, SystemExit) as error:
        raise ModelError(f"{text}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ModelError(f"{text}: has no function build(pictures, shape, classes, generator)")
    return found
