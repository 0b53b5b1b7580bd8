"""The network that learns the digits: a list of layers, from pictures to ten scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.image import Image
from mpsgrad.kernels.loss import Loss
from mpsgrad.kernels.loss_descriptor import LossDescriptor
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.kernels.optimizer import OptimizerStochasticGradientDescent
from mpsgrad.kernels.soft_max import SoftMax
from mpsgrad.training.digits import CLASSES
from mpsgrad.training.layers import (
    BatchNormalizationLayer,
    ConvolutionLayer,
    FullyConnectedLayer,
    Layer,
    PoolingMaxLayer,
    ReLULayer,
)


class Network:
    """Layers in order, with softmax for predictions and the softmax cross-entropy loss for training."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        self._soft_max = SoftMax()

    @classmethod
    def for_digits(cls, generator: np.random.Generator) -> Network:
        """Two blocks of convolution, batch normalization and ReLU, max pooling, and two fully connected layers."""
        return cls(
            [
                ConvolutionLayer("convolution_1", 3, 1, 16, generator),
                BatchNormalizationLayer("batch_normalization_1", 16),
                ReLULayer("relu_1"),
                ConvolutionLayer("convolution_2", 3, 16, 32, generator),
                BatchNormalizationLayer("batch_normalization_2", 32),
                ReLULayer("relu_2"),
                PoolingMaxLayer("pooling", 2),
                FullyConnectedLayer("fully_connected_1", 4, 4, 32, 64, generator),
                ReLULayer("relu_3"),
                FullyConnectedLayer("fully_connected_2", 1, 1, 64, CLASSES, generator),
            ]
        )

    def train_step(
        self, pictures: np.ndarray, labels: np.ndarray, optimizer: OptimizerStochasticGradientDescent
    ) -> TrainingStep:
        """One step on a batch: forward, loss, backward and update, all in one command buffer.

        The loss of each picture weighs ``1 / number of pictures``, so that the gradients are means over the batch.
        """
        targets = LossLabels.from_array(labels)
        with CommandBuffer(label="training step") as commands:
            prediction, gradient = self.encode_step(commands, Image.from_array(pictures), targets, optimizer)
        return TrainingStep(float(np.asarray(targets.loss_image).sum()), prediction, labels, gradient)

    def encode_step(
        self,
        commands: CommandBuffer,
        pictures: Image,
        targets: LossLabels,
        optimizer: OptimizerStochasticGradientDescent,
    ) -> tuple[Image, Image]:
        """Adds one step to ``commands``; gives the prediction and the loss's gradient with respect to it.

        Encoded after another step it can also be recorded: each replay is then a step that goes on from the last.
        """
        loss = Loss(LossDescriptor("softmax_cross_entropy", "sum", weight=1.0 / pictures.number_of_images))
        image = pictures
        for layer in self.layers:
            image = layer.forward(commands, image)
        first_gradient = loss.encode(commands, image, targets)
        assert first_gradient is not None
        gradient: Image | None = first_gradient
        for layer in reversed(self.layers):
            assert gradient is not None
            gradient = layer.backward(commands, gradient)
        for layer in self.layers:
            layer.update(commands, optimizer)
        return image, first_gradient

    def probabilities(self, pictures: np.ndarray) -> np.ndarray:
        """The probability of each class for each picture, with the running statistics of batch normalization."""
        with CommandBuffer(label="evaluation") as commands:
            image = Image.from_array(pictures)
            for layer in self.layers:
                image = layer.infer(commands, image)
            image = self._soft_max.encode(commands, image)
        return np.array(image).reshape(len(pictures), CLASSES)

    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of all parameters as ``layer.parameter``."""
        return {f"{layer.name}.{name}": value for layer in self.layers for name, value in layer.parameters().items()}


class TrainingStep:
    """The loss of one step, and the images at the end of the network that the verification needs."""

    def __init__(self, loss: float, prediction: Image, labels: np.ndarray, gradient: Image) -> None:
        self.loss = loss
        self.prediction = prediction
        self.labels = labels
        self.gradient = gradient
