"""Wherever a member of an enumeration is taken, its name in any case is, too."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import functional as mf

WEIGHTS = mg.ConvolutionDataSource.from_arrays(np.ones((1, 1, 1, 1), np.float32))


NODE = mg.ConvolutionNode(mg.ImageNode(), WEIGHTS)


@pytest.mark.parametrize(
    ("owner", "name", "value", "expected"),
    [
        (mg.PoolingMax(kernel_width=3, kernel_height=3), "edge_mode", "clamp", mg.EdgeMode.CLAMP),
        (mg.Pad(), "edge_mode", "Mirror_With_Edge", mg.EdgeMode.MIRROR_WITH_EDGE),
        (mg.Add(), "primary_edge_mode", "clamp", mg.EdgeMode.CLAMP),
        (mg.Compare(), "comparison_type", "LESS", mg.ComparisonType.LESS),
        (mg.SoftMax(), "options", "verbose", mg.KernelOptions.VERBOSE),
        (
            mg.ConvolutionGradient(WEIGHTS), "gradient_option", "gradient_with_data",
            mg.ConvolutionGradientOption.GRADIENT_WITH_DATA,
        ),
        (NODE, "training_style", "update_device_none", mg.TrainingStyle.UPDATE_DEVICE_NONE),
        (NODE.result_image, "format", "float16", mg.FeatureChannelFormat.FLOAT16),
    ],
)  # fmt: skip
def test_properties_take_names(owner, name, value, expected) -> None:
    setattr(owner, name, value)
    assert getattr(owner, name) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (mg.NeuronDescriptor("Hard_Sigmoid").neuron_type, mg.NeuronType.HARD_SIGMOID),
        (mg.LossDescriptor("Huber", "Mean").reduction_type, mg.LossReductionType.MEAN),
        (mg.OptimizerDescriptor(regularization_type="l2").regularization_type, mg.RegularizationType.L2),
        (mg.ImageDescriptor("float16").channel_format, mg.FeatureChannelFormat.FLOAT16),
    ],
)
def test_descriptors_take_names(found, expected) -> None:
    assert found is expected


def test_graphs_take_names_in_the_settings_of_nodes() -> None:
    x = np.arange(-8, 0, dtype=np.float32).reshape(1, 2, 4, 1)
    node = mg.PoolingMaxNode(mg.ImageNode(), 3, 1, edge_mode="clamp")
    with mg.CommandBuffer() as commands:
        y = mg.Graph(node).encode(commands, [mg.Image.from_array(x)])
    np.testing.assert_array_equal(y, mf.pooling_max(x, kernel=3, stride=1, edge_mode="clamp"))
