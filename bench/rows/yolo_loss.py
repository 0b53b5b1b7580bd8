"""The loss of an object detector's boxes and classes, summed over each image, and its gradient.

PyTorch has no kernel for it; beside ours run its operations on whole tensors, with the gradient written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import Case, Part, TorchCall, Work
from bench.drawn import Draw
from bench.inputs import RandomArray, empty_image
from bench.shapes import Shape, in_groups, text
from bench.tiny_op import Call, TinyOp, tiny_image
from mpsgrad import reference
from mpsgrad.accuracy import error_bound
from mpsgrad.reference import YOLOOptions

ANCHORS = ((1.0, 2.0), (1.5, 1.0), (0.5, 0.75), (2.0, 2.0), (3.0, 1.5))
CLASSES = 20
Grid = tuple[int, int, int]
"""Images, rows and columns of cells."""

DESIGN: Mapping[str, tuple[Grid, ...]] = {"cpu": ((16, 19, 19),), "gpu": ((64, 38, 38),)}
OTHERS: Mapping[str, tuple[Grid, ...]] = {"small": ((1, 13, 13),)}
OPTIONS = YOLOOptions(ANCHORS)
FUNCTION_ULPS = 64


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, grid in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(grid, dtype, group)


def drawn_shape(draw: Draw) -> Grid:
    return draw.shape(channels=len(ANCHORS) * (5 + CLASSES))[:3]


def cases_of(grid: Grid, dtype: str, group: str) -> Iterator[Case]:
    shape: Shape = (*grid[:3], len(ANCHORS) * (5 + CLASSES))
    x, t = RandomArray(shape, dtype), RandomArray(shape, dtype, 1)
    nbytes = 2 * x.nbytes + 4 * x.size
    yield Case("loss_yolo", text(shape), dtype, group, nbytes, 12 * x.size, partial(_prepare, x, t))


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    boxes = tiny_image(device, 6)
    loss = mg.YOLOLoss(mg.YOLOLossDescriptor([(1, 1)]), device=device)
    yield TinyOp("YOLOLoss", Call(loss.encode, boxes, mg.LossLabels.from_images(boxes)))


def _prepare(x: RandomArray, t: RandomArray, device: mg.Device) -> Work:
    source, result = x.image(device), empty_image(x.shape, x.dtype, device)
    labels = mg.LossLabels.from_images(mg.Image.from_array(t.array().astype(np.float32), device))
    kernel = mg.YOLOLoss(mg.YOLOLossDescriptor(ANCHORS), device=device)

    def parts() -> list[Part]:
        exact, gradient, _ = reference.yolo_loss(x.first(), t.first(), OPTIONS)
        sizes = np.abs(reference.yolo_loss(x.first(), t.first(), OPTIONS, reduction="none")[0])
        magnitude = sizes.sum((1, 2, 3), keepdims=True) + 100.0 * sizes.shape[1] * sizes.shape[2] * len(ANCHORS)
        bound = error_bound(np.float32, sizes[0].size, magnitude, exact, function_ulps=FUNCTION_ULPS)
        of_gradient = error_bound(x.dtype, 8, np.abs(gradient) + 20.0, gradient, function_ulps=FUNCTION_ULPS)
        return [
            Part("gradient", (slice(0, 1),), gradient, of_gradient),
            Part("loss", (slice(0, 1),), exact, bound),
        ]

    def torch_calls(where: Any) -> Mapping[str, TorchCall]:
        import torch

        anchors = torch.tensor(ANCHORS, device=where)
        return {"dense": TorchCall(_torch_loss, (x.tensor(where).float(), t.tensor(where).float(), anchors), _results)}

    return Work(
        partial(kernel.encode, source_image=source, labels=labels, destination_image=result),
        lambda: {"gradient": result, "loss": labels.loss_image},
        parts,
        torch_calls,
    )


def _torch_loss(x: Any, t: Any, anchors: Any) -> Any:
    import torch
    from torch.nn import functional

    shape = (*x.shape[:3], len(ANCHORS), 5 + CLASSES)
    y, t = x.reshape(shape), t.reshape(shape)
    seen, has_label = y[..., :2].sigmoid(), t[..., 4] > 0
    extents, wanted = anchors * y[..., 2:4].exp(), anchors * t[..., 2:4].exp()
    first = torch.maximum(seen - extents / 2, t[..., :2] - wanted / 2)
    last = torch.minimum(seen + extents / 2, t[..., :2] + wanted / 2)
    intersection = (last - first).clamp(min=0).prod(-1)
    overlaps = torch.where(has_label, intersection / (extents.prod(-1) + wanted.prod(-1) - intersection), 0.0)
    best = torch.where(has_label, overlaps, -1.0).argmax(-1, keepdim=True)
    responsible = torch.arange(len(ANCHORS), device=x.device) == best
    found = has_label & (responsible | (overlaps >= OPTIONS.least_of_object))
    nothing = ~found & (overlaps <= OPTIONS.most_of_nothing)
    confidence = torch.where(found, overlaps, 0.0)
    factor = torch.where(found, OPTIONS.scale_object, torch.where(nothing, OPTIONS.scale_no_object, 0.0))
    mask = found[..., None].float()
    powers = y[..., 5:].softmax(-1)
    of_sizes = OPTIONS.scale_wh * mask * functional.huber_loss(y[..., 2:4], t[..., 2:4], reduction="none")
    of_confidences = functional.binary_cross_entropy_with_logits(y[..., 4], confidence, reduction="none")
    losses = (
        (OPTIONS.scale_xy * mask * (seen - t[..., :2]) ** 2).sum((1, 2, 3, 4))
        + of_sizes.sum((1, 2, 3, 4))
        + (factor * of_confidences).sum((1, 2, 3))
        - (OPTIONS.scale_class * mask * t[..., 5:] * y[..., 5:].log_softmax(-1)).sum((1, 2, 3, 4))
    )
    parts = (
        2 * OPTIONS.scale_xy * mask * (seen - t[..., :2]) * seen * (1 - seen),
        OPTIONS.scale_wh * mask * (y[..., 2:4] - t[..., 2:4]).clamp(-1, 1),
        (factor * (y[..., 4].sigmoid() - confidence))[..., None],
        OPTIONS.scale_class * mask * (powers - t[..., 5:]),
    )
    return losses, torch.cat(parts, -1).reshape(x.shape)


def _results(returned: Any) -> Mapping[str, Any]:
    loss, gradient = returned
    return {"loss": loss.reshape(-1, 1, 1, 1), "gradient": gradient}
