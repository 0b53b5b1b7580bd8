"""Small arguments for every method of ``mpsgrad.mps``, by the names that Apple gives its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad import mps
from mpsgrad.geometry import Size
from mpsgrad.mps.manifest import Member

CHANNELS = 4


class Weights(mps.MPSCNNConvolutionDataSource):
    """A data source as a program has it that was carried over."""

    def __init__(self, descriptor: Any = None) -> None:
        self.convolution = descriptor or convolution_descriptor()
        generator = np.random.default_rng(3)
        self.numbers = generator.standard_normal(self.convolution.weights_shape).astype(np.float32)
        self.biases = generator.standard_normal(self.convolution.output_feature_channels).astype(np.float32)

    def dataType(self):
        return mps.MPSDataTypeFloat32

    def descriptor(self):
        return self.convolution

    def weights(self):
        return self.numbers

    def biasTerms(self):
        return self.biases

    def load(self):
        return True

    def purge(self):
        pass

    def label(self):
        return "weights"


class GammaAndBeta:
    """What the data sources of normalizations have in common."""

    def __init__(self) -> None:
        self.scales = np.linspace(0.5, 1.5, CHANNELS, dtype=np.float32)
        self.shifts = np.linspace(-1, 1, CHANNELS, dtype=np.float32)

    def gamma(self):
        return self.scales

    def beta(self):
        return self.shifts

    def load(self):
        return True

    def purge(self):
        pass

    def label(self):
        return None


class BatchStatistics(GammaAndBeta, mps.MPSCNNBatchNormalizationDataSource):
    def numberOfFeatureChannels(self):
        return CHANNELS

    def mean(self):
        return self.shifts

    def variance(self):
        return self.scales


class OfImages(GammaAndBeta, mps.MPSCNNInstanceNormalizationDataSource):
    numberOfFeatureChannels = CHANNELS


class OfGroups(GammaAndBeta, mps.MPSCNNGroupNormalizationDataSource):
    numberOfFeatureChannels = CHANNELS
    numberOfGroups = 2


def convolution_descriptor() -> Any:
    return mps.MPSCNNConvolutionDescriptor.cnnConvolutionDescriptorWithKernelWidth(
        3, kernelHeight=3, inputFeatureChannels=CHANNELS, outputFeatureChannels=CHANNELS
    )


def image(shape: tuple[int, ...] = (2, 6, 8, CHANNELS), *, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).uniform(0.1, 0.9, shape).astype(np.float32)
    return mps.MPSImage.from_array(values)


def value_of(cls: str, member: Member, name: str) -> Any:
    """A small value for the parameter ``name`` of ``member``, a method that makes an object of class ``cls``."""
    specific = _BY_CLASS.get((cls, name))
    value = specific if specific is not None else _BY_NAME[name]
    return value() if callable(value) else value


def _buffer(count: int) -> Any:
    buffer = mps.MTLCreateSystemDefaultDevice().allocate(4 * count)
    buffer.write(np.ones(count, np.float32))
    return buffer


_BY_NAME: dict[str, Any] = {
    "a": 0.5, "b": 1.5, "c": 2.0, "alignCorners": False, "alpha": 0.5, "applyGradientClipping": True, "beta1": 0.8,
    "beta": lambda: np.zeros(CHANNELS, np.float32), "beta2": 0.9, "biases": lambda: _buffer(CHANNELS),
    "biasesOffset": 0, "bufferSize": 64, "bufferSizes": 64, "channelFormat": mps.MPSImageFeatureChannelFormatFloat32,
    "resourceList": lambda: mps.MPSStateResourceList.resourceListWithBufferSizes(64),
    "biasTerms": lambda: np.ones(CHANNELS, np.float32), "convolutionDescriptor": convolution_descriptor,
    "flags": mps.MPSCNNConvolutionFlagsNone, "kernelWeights": lambda: np.ones(9 * CHANNELS**2, np.float32),
    "neuronFilter": lambda: mps.MPSCNNNeuronReLU.initWithDevice(None, a=0.5),
    "cnnConvolutionDescriptor": convolution_descriptor, "commandBuffer": lambda: mps.MTLCommandQueue().commandBuffer(),
    "commandQueue": mps.MTLCommandQueue, "count": CHANNELS, "data": lambda: np.ones((2, 3, CHANNELS), np.float32),
    "dataSource": BatchStatistics, "decay": 0.8, "device": mps.MTLCreateSystemDefaultDevice, "dilationRateX": 2,
    "dilationRateY": 2, "doWeightedSumByNonZeroWeights": True, "epsilon": 1e-6,
    "featureChannels": CHANNELS, "fillValueArray": [0.5] * 12,
    "fusedNeuronDescriptor": None,
    "gamma": lambda: np.ones(CHANNELS, np.float32), "gradientClipMax": 1.0, "gradientClipMin": -1.0,
    "gradientRescale": 0.5, "height": 6, "imageDescriptor": lambda: image().descriptor,
    "inputFeatureChannels": CHANNELS, "integerScaleFactorX": 2, "integerScaleFactorY": 3,
    "isSecondarySourceFilter": False, "keepProbability": 0.7, "kernelHeight": 3, "kernelSize": 5, "kernelWidth": 3,
    "labelsDescriptor": lambda: labels_descriptor(), "labelsImage": image,
    "layout": mps.MPSDataLayoutHeightxWidthxFeatureChannels,
    "learningRate": 0.1, "lossDescriptor": lambda: loss_descriptor(), "lossImageSize": Size(1, 1, 1),
    "maskStrideInPixels": Size(1, 1, 1), "mean": lambda: np.zeros(CHANNELS, np.float32),
    "method": mps.MPSNNPaddingMethodSizeFull, "momentumScale": 0.9,
    "neuronDescriptor": lambda: mps.MPSNNNeuronDescriptor.cnnNeuronDescriptorWithType(mps.MPSCNNNeuronTypeELU, a=0.5),
    "noCopy": False, "numberOfRegions": 2, "paddingSizeAfter": (1, 2, 4), "paddingSizeBefore": (2, 1, 4),
    "regions": [(0.0, 0.0, 0.5, 0.5), (0.25, 0.25, 0.5, 0.75)],
    "numberOfFeatureChannels": CHANNELS, "numberOfImages": 2,
    "optimizerDescriptor": lambda: optimizer_descriptor(), "outputFeatureChannels": CHANNELS,
    "reductionType": mps.MPSCNNReductionTypeSum, "regularizationScale": 0.1,
    "regularizationType": mps.MPSNNRegularizationTypeL2, "resizeHeight": 5, "resizeWidth": 7, "seed": 5,
    "size": Size(3, 2, CHANNELS), "strideInPixelsX": 2, "strideInPixelsY": 1, "timeStep": 3,
    "type": mps.MPSCNNNeuronTypeReLUN, "usage": 3, "useNesterovMomentum": True, "useNestrovMomentum": True,
    "variance": lambda: np.ones(CHANNELS, np.float32), "weights": Weights,
    "weightsDescriptor": lambda: labels_descriptor(), "weightsImage": image, "weightsOffset": 0, "width": 8,
    "zone": None, "xYLossType": mps.MPSCNNLossTypeMeanSquaredError, "WHLossType": mps.MPSCNNLossTypeHuber,
    "confidenceLossType": mps.MPSCNNLossTypeSigmoidCrossEntropy, "numberOfAnchorBoxes": 1,
    "classesLossType": mps.MPSCNNLossTypeSoftMaxCrossEntropy, "anchorBoxes": lambda: np.ones((1, 2), np.float32),
}  # fmt: skip
_BY_CLASS: dict[tuple[str, str], Any] = {
    ("MPSCNNInstanceNormalization", "dataSource"): OfImages,
    ("MPSCNNGroupNormalization", "dataSource"): OfGroups,
    ("MPSCNNNeuronPReLU", "a"): lambda: np.full(CHANNELS, 0.2, np.float32),
    ("MPSCNNNeuronSoftPlus", "b"): 0.5,
    ("MPSNNNeuronDescriptor", "data"): lambda: np.full(CHANNELS, 0.2, np.float32),
    ("MPSCNNYOLOLoss", "lossDescriptor"): lambda: yolo_loss_descriptor(),
    ("MPSCNNLossDescriptor", "type"): mps.MPSCNNLossTypeMeanSquaredError,
    ("MPSCNNConvolutionWeightsAndBiasesState", "weights"): lambda: _buffer(CHANNELS * 9 * CHANNELS),
}


def labels_descriptor() -> Any:
    return mps.MPSCNNLossDataDescriptor.cnnLossDataDescriptorWithData(
        np.ones((2, 3, CHANNELS), np.float32),
        layout=mps.MPSDataLayoutHeightxWidthxFeatureChannels,
        size=Size(3, 2, CHANNELS),
    )


def loss_descriptor() -> Any:
    return mps.MPSCNNLossDescriptor.cnnLossDescriptorWithType(
        mps.MPSCNNLossTypeMeanSquaredError, reductionType=mps.MPSCNNReductionTypeSum
    )


def yolo_loss_descriptor() -> Any:
    return mps.MPSCNNYOLOLossDescriptor.cnnLossDescriptorWithXYLossType(
        mps.MPSCNNLossTypeMeanSquaredError,
        WHLossType=mps.MPSCNNLossTypeHuber,
        confidenceLossType=mps.MPSCNNLossTypeSigmoidCrossEntropy,
        classesLossType=mps.MPSCNNLossTypeSoftMaxCrossEntropy,
        reductionType=mps.MPSCNNReductionTypeSum,
        anchorBoxes=[(1.0, 1.0)],
        numberOfAnchorBoxes=1,
    )


def optimizer_descriptor() -> Any:
    return mps.MPSNNOptimizerDescriptor.optimizerDescriptorWithLearningRate(
        0.1, gradientRescale=1.0, regularizationType=mps.MPSNNRegularizationTypeNone, regularizationScale=0.0
    )


def made(cls: str, member: Member) -> Any:
    """The object that the method ``member`` of class ``cls`` makes of small arguments."""
    method = getattr(getattr(mps, cls), member.name)
    if "Coder" in member.selector:
        return None
    first, *rest = [each.name for each in member.inputs] or [""]
    arguments = [value_of(cls, member, first)] if first else []
    return method(*arguments, **{name: value_of(cls, member, name) for name in rest})

