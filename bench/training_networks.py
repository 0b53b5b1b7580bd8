"""The networks of ``bench.training`` in PyTorch, with copies of the parameters of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Parameters = Mapping[str, np.ndarray]


def lenet(parameters: Parameters) -> Any:
    """``mpsgrad.training.models.lenet`` for N x C x H x W tensors."""
    from torch import nn

    layers: list[Any] = []
    for number in (1, 2):
        layers += [_convolution(parameters, f"convolution_{number}", 1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), _linear(parameters, "fully_connected_1"), nn.ReLU()]
    layers += [_linear(parameters, "fully_connected_2"), nn.ReLU(), _linear(parameters, "fully_connected_3")]
    return nn.Sequential(*layers)


def resnet18(parameters: Parameters) -> Any:
    """``mpsgrad.training.models.resnet18`` for N x C x H x W tensors."""
    import torch
    from torch import nn

    def normalized(name: str, stride: int, *following: Any) -> list[Any]:
        convolution = _convolution(parameters, f"{name}_convolution", stride)
        values = {each: parameters[f"{name}_normalization.{each}"] for each in ("gamma", "beta")}
        normalization = nn.BatchNorm2d(len(values["gamma"]), eps=1e-5)
        with torch.no_grad():
            normalization.weight.copy_(torch.from_numpy(values["gamma"]))
            normalization.bias.copy_(torch.from_numpy(values["beta"]))
        return [convolution, normalization, *following]

    class Block(nn.Module):
        def __init__(self, name: str, stride: int) -> None:
            super().__init__()
            first, second = normalized(f"{name}_first", stride, nn.ReLU()), normalized(f"{name}_second", 1)
            self.path = nn.Sequential(*first, *second)
            has_shortcut = f"{name}_shortcut_convolution.weights" in parameters
            self.shortcut = nn.Sequential(*normalized(f"{name}_shortcut", stride) if has_shortcut else ())

        def forward(self, images: Any) -> Any:
            return torch.relu_(self.path(images).add_(self.shortcut(images)))

    layers = normalized("stem", 1, nn.ReLU())
    for stage in range(1, 5):
        for block in (1, 2):
            layers.append(Block(f"stage_{stage}_block_{block}", 2 if stage > 1 and block == 1 else 1))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), _linear(parameters, "fully_connected")]
    return nn.Sequential(*layers)


NETWORKS: dict[str, Callable[[Parameters], Any]] = {"lenet": lenet, "resnet18": resnet18}
"""By the names of ``mpsgrad train --model``."""


def _convolution(parameters: Parameters, name: str, stride: int) -> Any:
    from torch import nn

    weights = _weights(parameters, name)
    outputs, inputs, size, _ = weights.shape
    biases = parameters.get(f"{name}.biases")
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=biases is not None)
    return _with(layer, weights, biases)


def _linear(parameters: Parameters, name: str) -> Any:
    from torch import nn

    weights = _weights(parameters, name)
    weights = weights.reshape(len(weights), -1)
    return _with(nn.Linear(weights.shape[1], weights.shape[0]), weights, parameters[f"{name}.biases"])


def _weights(parameters: Parameters, name: str) -> np.ndarray:
    return np.ascontiguousarray(parameters[f"{name}.weights"].transpose(0, 3, 1, 2))


def _with(layer: Any, weights: np.ndarray, biases: np.ndarray | None) -> Any:
    import torch

    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weights))
        if biases is not None:
            layer.bias.copy_(torch.from_numpy(biases))
    return layer
