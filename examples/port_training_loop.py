"""A training loop of Metal Performance Shaders, carried over line by line: handwritten digits, with Apple's names.

    python examples/port_training_loop.py --steps 300 --output runs/examples

Above each line stands the one of Objective-C that it was. Needs ``pip install 'mpsgrad[train]'``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

from mpsgrad.mps import (
    MPSCNNConvolution,
    MPSCNNConvolutionDataSource,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
    MPSCNNLoss,
    MPSCNNLossDescriptor,
    MPSCNNLossLabels,
    MPSCNNLossTypeSoftMaxCrossEntropy,
    MPSCNNNeuron,
    MPSCNNNeuronGradient,
    MPSCNNNeuronTypeReLU,
    MPSCNNPoolingMax,
    MPSCNNPoolingMaxGradient,
    MPSCNNReductionTypeMean,
    MPSDataTypeFloat32,
    MPSImage,
    MPSNNNeuronDescriptor,
    MPSNNOptimizerAdam,
    MPSVector,
    MTLCommandQueue,
    MTLCreateSystemDefaultDevice,
    MTLSizeMake,
)
from mpsgrad.training import digits

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FILTERS = 8
BATCH = 64
LEARNING_RATE = 0.01


# @interface Weights : NSObject <MPSCNNConvolutionDataSource>
class Weights(MPSCNNConvolutionDataSource):
    """The parameters of one layer, drawn at random."""

    def __init__(self, label: str, taps: int, inputs: int, outputs: int, generator: np.random.Generator) -> None:
        self.name = label
        # _descriptor = [MPSCNNConvolutionDescriptor cnnConvolutionDescriptorWithKernelWidth:taps kernelHeight:taps
        #                                            inputFeatureChannels:inputs outputFeatureChannels:outputs];
        self.convolution = MPSCNNConvolutionDescriptor.cnnConvolutionDescriptorWithKernelWidth(
            taps, kernelHeight=taps, inputFeatureChannels=inputs, outputFeatureChannels=outputs
        )
        scale = np.sqrt(2 / (taps * taps * inputs))
        self.values = (scale * generator.standard_normal((outputs, taps, taps, inputs))).astype(np.float32)
        self.biases = np.zeros(outputs, np.float32)

    # - (MPSDataType)dataType { return MPSDataTypeFloat32; }
    def dataType(self) -> int:
        return MPSDataTypeFloat32

    # - (MPSCNNConvolutionDescriptor *)descriptor { return _descriptor; }
    def descriptor(self) -> MPSCNNConvolutionDescriptor:
        return self.convolution

    # - (void *)weights { return _values.mutableBytes; }
    def weights(self) -> np.ndarray:
        return self.values

    # - (float *)biasTerms { return _biases.mutableBytes; }
    def biasTerms(self) -> np.ndarray:
        return self.biases

    # - (BOOL)load { return YES; }
    def load(self) -> bool:
        return True

    # - (void)purge {}
    def purge(self) -> None:
        pass

    # - (NSString *)label { return _name; }
    def label(self) -> str:
        return self.name


class TrainedLayer:
    """A convolution or fully connected kernel, its gradient, and an optimizer that updates both on the device."""

    def __init__(self, kernel_class, gradient_class, weights, device, queue) -> None:
        # _forward = [[MPSCNNConvolution alloc] initWithDevice:device weights:weights];
        self.forward = kernel_class.initWithDevice(device, weights=weights)
        # _gradient = [[MPSCNNConvolutionGradient alloc] initWithDevice:device weights:weights];
        self.gradient = gradient_class.initWithDevice(device, weights=weights)
        # _optimizer = [[MPSNNOptimizerAdam alloc] initWithDevice:device learningRate:0.01];
        self.optimizer = MPSNNOptimizerAdam.initWithDevice(device, learningRate=LEARNING_RATE)
        # id<MTLCommandBuffer> commandBuffer = [queue commandBuffer];
        commandBuffer = queue.commandBuffer()
        # _parameters = [_forward exportWeightsAndBiasesWithCommandBuffer:commandBuffer resultStateCanBeTemporary:NO];
        self.parameters = self.forward.exportWeightsAndBiasesWithCommandBuffer(
            commandBuffer, resultStateCanBeTemporary=False
        )
        # [commandBuffer commit];
        commandBuffer.commit()
        # _momenta = @[[[MPSVector alloc] initWithDevice:device descriptor:weightsVector], ...];
        sizes = (weights.values.size, weights.biases.size)
        self.momenta = [MPSVector(size, device) for size in sizes]
        self.velocities = [MPSVector(size, device) for size in sizes]

    def update(self, commandBuffer, state) -> None:
        # [_optimizer encodeToCommandBuffer:commandBuffer convolutionGradientState:state
        #            convolutionSourceState:_parameters inputMomentumVectors:_momenta
        #              inputVelocityVectors:_velocities resultState:_parameters];
        self.optimizer.encodeToCommandBuffer(
            commandBuffer,
            convolutionGradientState=state,
            convolutionSourceState=self.parameters,
            inputMomentumVectors=self.momenta,
            inputVelocityVectors=self.velocities,
            resultState=self.parameters,
        )
        # [_forward reloadWeightsAndBiasesWithCommandBuffer:commandBuffer state:_parameters];
        self.forward.reloadWeightsAndBiasesWithCommandBuffer(commandBuffer, state=self.parameters)
        # [_gradient reloadWeightsAndBiasesWithCommandBuffer:commandBuffer state:_parameters];
        self.gradient.reloadWeightsAndBiasesWithCommandBuffer(commandBuffer, state=self.parameters)


class Network:
    """Convolution, ReLU, max pooling and a fully connected layer, with the loss."""

    def __init__(self, device, queue) -> None:
        generator = np.random.default_rng(0)
        self.convolution = TrainedLayer(
            MPSCNNConvolution, MPSCNNConvolutionGradient, Weights("filters", 3, 1, FILTERS, generator), device, queue
        )
        # descriptor = [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:MPSCNNNeuronTypeReLU a:0];
        descriptor = MPSNNNeuronDescriptor.cnnNeuronDescriptorWithType(MPSCNNNeuronTypeReLU, a=0)
        # _relu = [[MPSCNNNeuron alloc] initWithDevice:device neuronDescriptor:descriptor];
        self.relu = MPSCNNNeuron.initWithDevice(device, neuronDescriptor=descriptor)
        # _reluGradient = [[MPSCNNNeuronGradient alloc] initWithDevice:device neuronDescriptor:descriptor];
        self.relu_gradient = MPSCNNNeuronGradient.initWithDevice(device, neuronDescriptor=descriptor)
        # _pool = [[MPSCNNPoolingMax alloc] initWithDevice:device kernelWidth:2 kernelHeight:2
        #                                  strideInPixelsX:2 strideInPixelsY:2];
        window = {"kernelWidth": 2, "kernelHeight": 2, "strideInPixelsX": 2, "strideInPixelsY": 2}
        self.pool = MPSCNNPoolingMax.initWithDevice(device, **window)
        # _poolGradient = [[MPSCNNPoolingMaxGradient alloc] initWithDevice:device kernelWidth:2 ...];
        self.pool_gradient = MPSCNNPoolingMaxGradient.initWithDevice(device, **window)
        self.dense = TrainedLayer(
            MPSCNNFullyConnected,
            MPSCNNFullyConnectedGradient,
            Weights("dense", 4, FILTERS, digits.CLASSES, generator),
            device,
            queue,
        )
        # lossDescriptor = [MPSCNNLossDescriptor cnnLossDescriptorWithType:MPSCNNLossTypeSoftMaxCrossEntropy
        #                                                    reductionType:MPSCNNReductionTypeMean];
        loss = MPSCNNLossDescriptor.cnnLossDescriptorWithType(
            MPSCNNLossTypeSoftMaxCrossEntropy, reductionType=MPSCNNReductionTypeMean
        )
        # lossDescriptor.numberOfClasses = 10;
        loss.numberOfClasses = digits.CLASSES
        # _loss = [[MPSCNNLoss alloc] initWithDevice:device lossDescriptor:lossDescriptor];
        self.loss = MPSCNNLoss.initWithDevice(device, lossDescriptor=loss)

    def scores(self, commandBuffer, x):
        """The result of the fully connected layer; nothing is kept for a backward pass."""
        # MPSImage *y = [_forward encodeToCommandBuffer:commandBuffer sourceImage:x];
        y = self.convolution.forward.encodeToCommandBuffer(commandBuffer, sourceImage=x)
        # y = [_relu encodeToCommandBuffer:commandBuffer sourceImage:y];
        y = self.relu.encodeToCommandBuffer(commandBuffer, sourceImage=y)
        # y = [_pool encodeToCommandBuffer:commandBuffer sourceImage:y];
        y = self.pool.encodeToCommandBuffer(commandBuffer, sourceImage=y)
        # return [_dense encodeToCommandBuffer:commandBuffer sourceImage:y];
        return self.dense.forward.encodeToCommandBuffer(commandBuffer, sourceImage=y)

    def step(self, commandBuffer, x, labels) -> None:
        """Forward, loss, backward and update, in one command buffer."""
        # MPSImage *a = [_forward encodeToCommandBuffer:commandBuffer sourceImage:x
        #                              destinationState:&s1 destinationStateIsTemporary:NO];
        a, s1 = self.convolution.forward.encodeToCommandBuffer(
            commandBuffer, sourceImage=x, destinationStateIsTemporary=False
        )
        # MPSImage *b = [_relu encodeToCommandBuffer:commandBuffer sourceImage:a
        #                           destinationState:&s2 destinationStateIsTemporary:NO];
        b, s2 = self.relu.encodeToCommandBuffer(commandBuffer, sourceImage=a, destinationStateIsTemporary=False)
        # MPSImage *c = [_pool encodeToCommandBuffer:commandBuffer sourceImage:b
        #                           destinationState:&s3 destinationStateIsTemporary:NO];
        c, s3 = self.pool.encodeToCommandBuffer(commandBuffer, sourceImage=b, destinationStateIsTemporary=False)
        # MPSImage *d = [_dense encodeToCommandBuffer:commandBuffer sourceImage:c
        #                            destinationState:&s4 destinationStateIsTemporary:NO];
        d, s4 = self.dense.forward.encodeToCommandBuffer(
            commandBuffer, sourceImage=c, destinationStateIsTemporary=False
        )
        # MPSImage *g = [_loss encodeToCommandBuffer:commandBuffer sourceImage:d labels:labels];
        g = self.loss.encodeToCommandBuffer(commandBuffer, sourceImage=d, labels=labels)
        # g = [_denseGradient encodeToCommandBuffer:commandBuffer sourceGradient:g sourceImage:c gradientState:s4];
        g = self.dense.gradient.encodeToCommandBuffer(
            commandBuffer, sourceGradient=g, sourceImage=c, gradientState=s4
        )
        # g = [_poolGradient encodeToCommandBuffer:commandBuffer sourceGradient:g sourceImage:b gradientState:s3];
        g = self.pool_gradient.encodeToCommandBuffer(
            commandBuffer, sourceGradient=g, sourceImage=b, gradientState=s3
        )
        # g = [_reluGradient encodeToCommandBuffer:commandBuffer sourceGradient:g sourceImage:a gradientState:s2];
        g = self.relu_gradient.encodeToCommandBuffer(
            commandBuffer, sourceGradient=g, sourceImage=a, gradientState=s2
        )
        # g = [_gradient encodeToCommandBuffer:commandBuffer sourceGradient:g sourceImage:x gradientState:s1];
        self.convolution.gradient.encodeToCommandBuffer(
            commandBuffer, sourceGradient=g, sourceImage=x, gradientState=s1
        )
        self.convolution.update(commandBuffer, s1)
        self.dense.update(commandBuffer, s4)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", type=Path, default=Path("runs/examples"))
    chosen = parser.parse_args(arguments)
    data = digits.load()
    generator = np.random.default_rng(1)
    # id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    device = MTLCreateSystemDefaultDevice()
    # id<MTLCommandQueue> queue = [device newCommandQueue];
    queue = MTLCommandQueue(device)
    network = Network(device, queue)
    losses = []
    for _ in range(chosen.steps):
        batch = generator.choice(len(data.train_images), BATCH, replace=False)
        x = MPSImage.from_array(data.train_images[batch], device)
        # labels = [[MPSCNNLossLabels alloc] initWithDevice:device lossImageSize:MTLSizeMake(1, 1, 1)
        #                                       labelsImage:oneHot weightsImage:nil];
        labels = MPSCNNLossLabels.initWithDevice(
            device,
            lossImageSize=MTLSizeMake(1, 1, 1),
            labelsImage=MPSImage.from_array(digits.one_hot(data.train_classes[batch]), device),
            weightsImage=None,
        )
        # id<MTLCommandBuffer> commandBuffer = [queue commandBuffer];
        commandBuffer = queue.commandBuffer()
        network.step(commandBuffer, x, labels)
        # [commandBuffer commit];
        commandBuffer.commit()
        # [commandBuffer waitUntilCompleted];
        commandBuffer.waitUntilCompleted()
        losses.append(float(np.asarray(labels.lossImage()).mean()))
    commandBuffer = queue.commandBuffer()
    scores = network.scores(commandBuffer, MPSImage.from_array(data.test_images, device))
    commandBuffer.commit()
    commandBuffer.waitUntilCompleted()
    predicted = np.asarray(scores).reshape(-1, digits.CLASSES).argmax(1)
    accuracy = float((predicted == data.test_classes).mean())
    picture = chosen.output / "port_training_loop.png"
    draw(picture, losses, network.convolution.parameters.weights, data, predicted)
    report(device, losses, accuracy, picture)
    return {"first_loss": losses[0], "last_loss": float(np.mean(losses[-10:])), "accuracy": accuracy}


def draw(path: Path, losses: list[float], filters: np.ndarray, data: digits.Digits, predicted: np.ndarray) -> None:
    """The loss, the filters that were learned, and the first test pictures with their predictions."""
    figure = plt.figure(figsize=(11, 4), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=[4, 2, 4])
    axes = left.subplots()
    axes.plot(losses, color="#c9d7e8", linewidth=1)
    width = min(25, len(losses))
    axes.plot(
        np.arange(width - 1, len(losses)), np.convolve(losses, np.ones(width) / width, "valid"), color="#20558a"
    )
    axes.set(xlabel="step", ylabel="loss", title="Softmax cross-entropy", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    middle.suptitle("Filters")
    largest = np.abs(filters).max()
    for each, taps in zip(middle.subplots(FILTERS // 2, 2).flat, filters, strict=True):
        each.imshow(taps[..., 0], cmap="RdBu", vmin=-largest, vmax=largest)
        each.set_axis_off()
    right.suptitle("Test pictures")
    for index, each in enumerate(right.subplots(3, 6).flat):
        each.imshow(data.test_images[index, ..., 0], cmap="gray_r")
        is_right = predicted[index] == data.test_classes[index]
        each.set_title(predicted[index], color="#20558a" if is_right else "#c0392b", fontsize=9)
        each.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def report(device, losses: list[float], accuracy: float, picture: Path) -> None:
    table = Table(title="An MPS training loop in Python", show_header=False)
    table.add_row("device", device.identifier)
    table.add_row("steps", f"{len(losses)} of {BATCH} pictures")
    table.add_row("loss", f"{losses[0]:.3f} at first, {np.mean(losses[-10:]):.3f} at last")
    table.add_row("test accuracy", f"[bold]{accuracy:.1%}[/]")
    table.add_row("picture", str(picture))
    Console().print(table)


if __name__ == "__main__":
    main()
