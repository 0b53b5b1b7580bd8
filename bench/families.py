"""Families of ops, by their names: what a plot gives one colour and a table one line."""

from __future__ import annotations

from collections.abc import Mapping

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "batch normalization": ("batch_normalization",),
    "convolution": ("convolution", "sub_pixel_convolution"),
    "pooling": ("pooling",),
    "neurons": ("neuron",),
    "softmax": ("soft_max", "log_soft_max"),
    "losses": ("loss", "forward_loss", "yolo_loss"),
    "optimizers": ("optimizer",),
    "instance and group normalization": ("group_normalization", "instance_normalization"),
    "normalization by neighbours": (
        "cross_channel_normalization",
        "spatial_normalization",
        "local_contrast_normalization",
    ),
    "dropout": ("dropout",),
    "resampling": ("upsampling", "crop_and_resize"),
    "arithmetic": ("arithmetic",),
    "reductions": ("reduction", "weighted_reduction", "gram_matrix"),
    "copies": ("copies", "pad"),
}
"""How the ops' names begin."""
OTHERS = "others"


def family_of(op: str) -> str:
    """The family that ``op`` belongs to by its name."""
    return next((family for family, beginnings in FAMILIES.items() if op.startswith(beginnings)), OTHERS)


def pass_of(op: str) -> str:
    """Which part of training ``op`` is: "" forward (a loss gives its gradient there), or which gradient."""
    for ending, name in (("_gradient_data", "gradient for data"), ("_gradient_weights", "gradient for weights")):
        if op.endswith(ending):
            return name
    return "gradient" if "_gradient" in op else ""
