"""The models of ``mpsgrad train --model``, and how a file of one's own is read."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpsgrad.errors import ModelError
from mpsgrad.graph import ConvolutionNode, FullyConnectedNode, ImageNode, NeuronReLUNode, PoolingMaxNode
from mpsgrad.training import initial

Build = Callable[[ImageNode, tuple[int, int, int], int, np.random.Generator], Any]
"""``build(pictures, shape, classes, generator)``: the nodes of a network, of which the last one or its result image is
returned.

``shape`` is height, width and channels of a picture; the result has a score for each class, 1 x 1 x ``classes``, to
which the loss applies the softmax. It is called more than once and has to make the same nodes from the same
``generator``.
"""


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
        height, width = -(-height // 2), -(-width // 2)
    size = height, width
    for number, outputs in enumerate((120, 84), 1):
        node = FullyConnectedNode(
            image, initial.weights(generator, outputs, size, channels), label=f"fully_connected_{number}"
        )
        image, channels, size = NeuronReLUNode(node.result_image).result_image, outputs, (1, 1)
    return FullyConnectedNode(image, initial.weights(generator, classes, 1, channels), label="fully_connected_3")


MODELS: dict[str, Build] = {"lenet": lenet}


def load(text: str) -> Build:
    """The model that ``text`` names: one of ``MODELS``, or the function ``build`` of a Python file.

    Raises ``ModelError`` if there is neither, and for a file that fails or has no such function.
    """
    if text in MODELS:
        return MODELS[text]
    if not text.endswith(".py"):
        raise ModelError(f"no model {text!r}; it has to be one of {', '.join(MODELS)} or a Python file")
    if not Path(text).is_file():
        raise ModelError(f"{text}: there is no such file")
    try:
        found = runpy.run_path(text).get("build")
    except Exception as error:
        raise ModelError(f"{text}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ModelError(f"{text}: has no function build(pictures, shape, classes, generator)")
    return found
