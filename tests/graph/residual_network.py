"""ResNet-18 for pictures of ImageNet (He et al., 2015, https://arxiv.org/abs/1512.03385)."""

from __future__ import annotations

import numpy as np

import mpsgrad as mg
from mpsgrad.training.models import normalized, residual_stages

DESCRIPTOR = mg.LossDescriptor("softmax_cross_entropy")


def residual_network(width: int = 64, classes: int = 1000) -> mg.LossNode:
    """With ``width`` channels in its first stage, for pictures of 224 x 224 pixels with 3 channels."""
    generator = np.random.default_rng(0)
    image = normalized(mg.ImageNode("pictures"), "stem", width, 7, 3, 2, generator, has_relu=True)
    image = mg.PoolingMaxNode(image, 3, 2, padding_policy=mg.ExplicitPadding(1, 1)).result_image
    scores = residual_stages(image, classes, generator, width)
    return mg.LossNode(scores.result_image, descriptor=DESCRIPTOR)
