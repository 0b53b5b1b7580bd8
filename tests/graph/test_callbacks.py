"""Callbacks supply the factor of a Gram matrix and the weight of a loss at each encode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import mps

RANDOM = np.random.default_rng(5)
PICTURE = RANDOM.standard_normal((1, 6, 6, 4)).astype(np.float32)
WANTED = RANDOM.standard_normal((1, 1, 4, 4)).astype(np.float32)


@dataclass
class Callback(mg.GramMatrixCallback, mg.LossCallback):
    """Gives ``factor`` and notes the extents of the images that it is asked for."""

    factor: Any
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def alpha_for_source_image(self, source_image: mg.Image, destination_image: mg.Image) -> float:
        self.asked.append((source_image.shape, destination_image.shape))
        return self.factor

    scalar_weight_for_source_image = alpha_for_source_image


def test_callbacks_are_asked_at_each_encode() -> None:
    gram = mg.GramMatrixCalculationNode(mg.ImageNode("picture"), alpha=0.5)
    loss = mg.ForwardLossNode(
        gram.result_image, mg.ImageNode("wanted"), descriptor=mg.LossDescriptor("mean_squared_error", "sum", weight=2.0)
    )
    (end,) = loss.training_graph(mg.InitialGradientNode(loss.result_image).result_image)
    graph = mg.Graph([end, loss])
    (loss_gradient,) = [node for node in graph.filters if isinstance(node, mg.LossGradientNode)]

    def require(alpha: float, weight: float, gradient_weight: float) -> None:
        """Compares an encode with y = alpha x'x, loss = weight sum (y - wanted)^2 and its gradient in float64."""
        further: list[mg.Image] = []
        with mg.CommandBuffer() as commands:
            sources = [mg.Image.from_array(PICTURE), mg.Image.from_array(WANTED)]
            gradient = graph.encode(commands, sources, intermediate_images=further)
        pixels = PICTURE.reshape(-1, 4).astype(np.float64)
        difference = alpha * pixels.T @ pixels - WANTED.reshape(4, 4)
        wanted = 4 * alpha * gradient_weight * pixels @ (difference + difference.T) / 2
        np.testing.assert_allclose(np.asarray(further[0]).sum(), weight * (difference**2).sum(), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(gradient).reshape(-1, 4), wanted, rtol=1e-4, atol=1e-4)

    require(0.5, 2, 2)
    gram.property_call_back = alpha = Callback(1 / 36)
    loss.property_call_back = weight = Callback(3)
    require(1 / 36, 3, 3)
    weight.factor = 5
    require(1 / 36, 5, 5)
    assert alpha.asked == 2 * [((1, 6, 6, 4), (1, 1, 4, 4))] and weight.asked == 2 * [((1, 1, 4, 4), (1, 1, 1, 1))]
    loss_gradient.property_call_back = Callback(7)
    require(1 / 36, 5, 7)
    for node in (gram, loss, loss_gradient):
        node.property_call_back = None
    require(0.5, 2, 2)


def test_wrong_callbacks_are_named() -> None:
    gram = mg.GramMatrixCalculationNode(mg.ImageNode(), label="style")
    with pytest.raises(mg.FormatError, match=r"is 2.0, which has no alpha_for_source_image; it has to be a GramMatrix"):
        gram.property_call_back = 2.0
    gram.property_call_back = Callback(float("nan"))
    graph = mg.Graph(gram)
    with mg.CommandBuffer() as commands:
        with pytest.raises(mg.GeometryError, match=r"style: .*Callback.alpha_for_source_image is nan"):
            graph.encode(commands, [mg.Image.from_array(PICTURE)])


def test_callbacks_by_apples_names() -> None:
    class Mean(mps.MPSNNGramMatrixCallback):
        def alphaForSourceImage(self, sourceImage: mps.MPSImage, *, destinationImage: mps.MPSImage) -> float:
            return destinationImage.width / (sourceImage.width * sourceImage.height)

    gram = mps.MPSNNGramMatrixCalculationNode.nodeWithSource(mps.MPSNNImageNode.nodeWithHandle("picture"))
    gram.propertyCallBack = mean = Mean()
    assert gram.propertyCallBack is mean
    graph = mps.MPSNNGraph.graphWithDevice(None, resultImage=gram.resultImage, resultImageIsNeeded=True)
    picture: Any = mps.MPSImage.from_array(PICTURE)
    commands = mps.MTLCommandQueue().commandBuffer()
    made = graph.encodeToCommandBuffer(commands, sourceImages=[picture])
    commands.commit()
    commands.waitUntilCompleted()
    pixels = PICTURE.reshape(-1, 4).astype(np.float64)
    np.testing.assert_allclose(np.asarray(made).reshape(4, 4), pixels.T @ pixels / 9, rtol=1e-5, atol=1e-5)
