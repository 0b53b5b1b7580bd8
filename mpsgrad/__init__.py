"""The gradient kernels of Metal Performance Shaders, hand-written in Metal, on Apple GPUs and on any CPU."""

from mpsgrad import archive, errors, functional
from mpsgrad.command import CommandBuffer, CommandBufferStatus, Recording
from mpsgrad.data_type import DataType
from mpsgrad.devices import Device, available_devices, default_device, find_device, set_default_device
from mpsgrad.errors import (
    ArchiveError,
    CheckpointError,
    DataError,
    DeviceError,
    DeviceNotFoundError,
    FormatError,
    GeometryError,
    ModelError,
    MPSGradError,
    ShaderError,
    StateError,
)
from mpsgrad.geometry import NO_CLIP, EdgeMode, ImageCoordinate, Offset, Origin, Region, Size
from mpsgrad.graph import (
    AdditionGradientNode,
    AdditionNode,
    ArithmeticGradientNode,
    ArithmeticGradientStateNode,
    BatchNormalizationFlags,
    BatchNormalizationGradientNode,
    BatchNormalizationNode,
    BilinearScaleGradientNode,
    BilinearScaleNode,
    BinaryArithmeticNode,
    BinaryGradientStateNode,
    ComparisonNode,
    ConcatenationGradientNode,
    ConcatenationNode,
    ConvolutionGradientNode,
    ConvolutionGradientStateNode,
    ConvolutionNode,
    ConvolutionTransposeGradientNode,
    ConvolutionTransposeGradientStateNode,
    ConvolutionTransposeNode,
    CropAndResizeBilinearGradientNode,
    CropAndResizeBilinearNode,
    CrossChannelNormalizationGradientNode,
    CrossChannelNormalizationNode,
    DilatedPoolingMaxGradientNode,
    DilatedPoolingMaxNode,
    DivisionGradientNode,
    DivisionNode,
    DropoutGradientNode,
    DropoutNode,
    FilterNode,
    ForwardLossNode,
    FullyConnectedGradientNode,
    FullyConnectedNode,
    GradientFilterNode,
    GradientStateNode,
    GramMatrixCalculationGradientNode,
    GramMatrixCalculationNode,
    GramMatrixCallback,
    Graph,
    GroupNormalizationGradientNode,
    GroupNormalizationNode,
    ImageNode,
    InitialGradientNode,
    InstanceNormalizationGradientNode,
    InstanceNormalizationNode,
    LabelsNode,
    LocalContrastNormalizationGradientNode,
    LocalContrastNormalizationNode,
    LogSoftMaxGradientNode,
    LogSoftMaxNode,
    LossCallback,
    LossGradientNode,
    LossNode,
    MultiaryGradientStateNode,
    MultiplicationGradientNode,
    MultiplicationNode,
    NeuronAbsoluteNode,
    NeuronELUNode,
    NeuronExponentialNode,
    NeuronGeLUNode,
    NeuronGradientNode,
    NeuronHardSigmoidNode,
    NeuronLinearNode,
    NeuronLogarithmNode,
    NeuronNode,
    NeuronPowerNode,
    NeuronPReLUNode,
    NeuronReLUNNode,
    NeuronReLUNode,
    NeuronSigmoidNode,
    NeuronSoftPlusNode,
    NeuronSoftSignNode,
    NeuronTanHNode,
    NormalizationNode,
    PadGradientNode,
    PadNode,
    PoolingAverageGradientNode,
    PoolingAverageNode,
    PoolingGradientNode,
    PoolingL2NormGradientNode,
    PoolingL2NormNode,
    PoolingMaxGradientNode,
    PoolingMaxNode,
    PoolingNode,
    ReductionColumnMaxNode,
    ReductionColumnMeanNode,
    ReductionColumnMinNode,
    ReductionColumnSumNode,
    ReductionFeatureChannelsAndWeightsGradientNode,
    ReductionFeatureChannelsAndWeightsMeanNode,
    ReductionFeatureChannelsAndWeightsSumNode,
    ReductionFeatureChannelsArgumentMaxNode,
    ReductionFeatureChannelsArgumentMinNode,
    ReductionFeatureChannelsMaxNode,
    ReductionFeatureChannelsMeanNode,
    ReductionFeatureChannelsMinNode,
    ReductionFeatureChannelsSumNode,
    ReductionGradientNode,
    ReductionNode,
    ReductionRowMaxNode,
    ReductionRowMeanNode,
    ReductionRowMinNode,
    ReductionRowSumNode,
    ReductionSpatialMeanGradientNode,
    ReductionSpatialMeanNode,
    ReshapeGradientNode,
    ReshapeNode,
    SliceGradientNode,
    SliceNode,
    SoftMaxGradientNode,
    SoftMaxNode,
    SpatialNormalizationGradientNode,
    SpatialNormalizationNode,
    StateNode,
    SubtractionGradientNode,
    SubtractionNode,
    TrainableGradientNode,
    TrainableNode,
    TrainingStyle,
    UnaryNode,
    UpsamplingBilinearGradientNode,
    UpsamplingBilinearNode,
    UpsamplingNearestGradientNode,
    UpsamplingNearestNode,
    YOLOLossNode,
)
from mpsgrad.image import FeatureChannelFormat, Image, ImageBatch, ImageDescriptor, TemporaryImage
from mpsgrad.kernel import BinaryKernel, GradientKernel, Kernel, KernelOptions
from mpsgrad.kernels.arithmetic import (
    Add,
    AddGradient,
    Arithmetic,
    ArithmeticGradient,
    ArithmeticGradientState,
    Compare,
    ComparisonType,
    Divide,
    DivideGradient,
    Multiply,
    MultiplyGradient,
    Subtract,
    SubtractGradient,
)
from mpsgrad.kernels.batch_normalization import (
    BatchNormalization,
    BatchNormalizationGradient,
    BatchNormalizationStatistics,
    BatchNormalizationStatisticsGradient,
)
from mpsgrad.kernels.batch_normalization_data_source import BatchNormalizationDataSource
from mpsgrad.kernels.batch_normalization_state import (
    BatchNormalizationState,
    NormalizationGammaAndBetaState,
    NormalizationMeanAndVarianceState,
)
from mpsgrad.kernels.binary_convolution import BinaryConvolution, BinaryFullyConnected
from mpsgrad.kernels.convolution import (
    Convolution,
    ConvolutionAccumulatorPrecisionOption,
    ConvolutionGradient,
    ConvolutionGradientOption,
    FullyConnected,
    FullyConnectedGradient,
)
from mpsgrad.kernels.convolution_data_source import ConvolutionDataSource
from mpsgrad.kernels.convolution_descriptor import (
    ConvolutionDescriptor,
    DepthWiseConvolutionDescriptor,
    SubPixelConvolutionDescriptor,
)
from mpsgrad.kernels.convolution_quantization import ConvolutionWeightsQuantizationType
from mpsgrad.kernels.convolution_state import (
    ConvolutionGradientState,
    ConvolutionWeightsAndBiasesState,
    ConvolutionWeightsLayout,
)
from mpsgrad.kernels.convolution_transpose import (
    ConvolutionTranspose,
    ConvolutionTransposeGradient,
    ConvolutionTransposeGradientState,
)
from mpsgrad.kernels.copies import (
    Concatenation,
    ConcatenationGradient,
    ConcatenationGradientState,
    Reshape,
    ReshapeGradient,
    Slice,
    SliceGradient,
)
from mpsgrad.kernels.crop_and_resize import (
    CropAndResizeBilinear,
    CropAndResizeBilinearGradient,
    CropAndResizeGradientState,
)
from mpsgrad.kernels.dropout import Dropout, DropoutGradient, DropoutGradientState
from mpsgrad.kernels.forward_loss import ForwardLoss, InitialGradient, LossGradient, LossGradientState
from mpsgrad.kernels.gram_matrix import (
    GramMatrixCalculation,
    GramMatrixCalculationGradient,
    GramMatrixGradientState,
)
from mpsgrad.kernels.group_normalization import (
    GroupNormalization,
    GroupNormalizationGradient,
    InstanceNormalization,
    InstanceNormalizationGradient,
)
from mpsgrad.kernels.group_normalization_data_source import (
    GroupNormalizationDataSource,
    InstanceNormalizationDataSource,
)
from mpsgrad.kernels.group_normalization_state import (
    GroupNormalizationGradientState,
    InstanceNormalizationGradientState,
    NormalizationGradientSum,
)
from mpsgrad.kernels.loss import Loss
from mpsgrad.kernels.loss_descriptor import LossDescriptor, LossReductionType, LossType
from mpsgrad.kernels.loss_labels import LossDataDescriptor, LossLabels
from mpsgrad.kernels.loss_scale import LossScale
from mpsgrad.kernels.neuron import (
    Neuron,
    NeuronAbsolute,
    NeuronELU,
    NeuronExponential,
    NeuronGradient,
    NeuronGradientState,
    NeuronHardSigmoid,
    NeuronLinear,
    NeuronLogarithm,
    NeuronPower,
    NeuronPReLU,
    NeuronReLU,
    NeuronReLUN,
    NeuronSigmoid,
    NeuronSoftPlus,
    NeuronSoftSign,
    NeuronTanH,
)
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType
from mpsgrad.kernels.optimizer import OptimizerDescriptor, OptimizerStochasticGradientDescent, RegularizationType
from mpsgrad.kernels.optimizer_adaptive import OptimizerAdam, OptimizerRMSProp
from mpsgrad.kernels.pad import Pad, PadGradient, PadGradientState
from mpsgrad.kernels.pooling import (
    DilatedPoolingMax,
    DilatedPoolingMaxGradient,
    Pooling,
    PoolingAverage,
    PoolingAverageGradient,
    PoolingGradient,
    PoolingGradientState,
    PoolingL2Norm,
    PoolingL2NormGradient,
    PoolingMax,
    PoolingMaxGradient,
)
from mpsgrad.kernels.reduction import (
    ReduceColumnMax,
    ReduceColumnMean,
    ReduceColumnMin,
    ReduceColumnSum,
    ReduceFeatureChannelsArgumentMax,
    ReduceFeatureChannelsArgumentMin,
    ReduceFeatureChannelsMax,
    ReduceFeatureChannelsMean,
    ReduceFeatureChannelsMin,
    ReduceFeatureChannelsSum,
    ReduceGradient,
    ReduceRowMax,
    ReduceRowMean,
    ReduceRowMin,
    ReduceRowSum,
    ReduceUnary,
    ReductionGradientState,
    ReductionSpatialMean,
    ReductionSpatialMeanGradient,
)
from mpsgrad.kernels.response_normalization import (
    CrossChannelNormalization,
    CrossChannelNormalizationGradient,
    LocalContrastNormalization,
    LocalContrastNormalizationGradient,
    ResponseNormalizationGradientState,
    SpatialNormalization,
    SpatialNormalizationGradient,
)
from mpsgrad.kernels.soft_max import LogSoftMax, LogSoftMaxGradient, SoftMax, SoftMaxGradient
from mpsgrad.kernels.upsampling import (
    ResizeBilinear,
    ResizeBilinearGradient,
    Upsampling,
    UpsamplingBilinear,
    UpsamplingBilinearGradient,
    UpsamplingGradient,
    UpsamplingGradientState,
    UpsamplingNearest,
    UpsamplingNearestGradient,
)
from mpsgrad.kernels.weighted_reduction import (
    ReduceBinary,
    ReduceBinaryGradientState,
    ReduceFeatureChannelsAndWeightsGradient,
    ReduceFeatureChannelsAndWeightsMean,
    ReduceFeatureChannelsAndWeightsSum,
)
from mpsgrad.kernels.yolo_loss import YOLOLoss, YOLOLossDescriptor
from mpsgrad.padding import SAME, VALID_ONLY, DefaultPadding, ExplicitPadding, PaddingMethod
from mpsgrad.precompile import compile_at_import
from mpsgrad.runtime import KernelFunction, KernelLibrary, KernelRun, compile
from mpsgrad.state import BinaryGradientState, GradientState, State, StateBatch
from mpsgrad.vector import Vector

__version__ = "0.1.0"

compile_at_import()
