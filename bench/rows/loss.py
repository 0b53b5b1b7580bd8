"""Softmax cross-entropy: the mean loss over the batch, and its gradient with respect to the prediction.

Labels are a probability for each class, as MPS takes them. PyTorch runs the calls that its autograd would: once with
the same labels, and once with a class index for each row, which is less to read.
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

DESIGN: Mapping[str, tuple[Shape, ...]] = {"cpu": ((4096, 1, 1, 1000),), "gpu": ((16384, 1, 1, 1000),)}
OTHERS: Mapping[str, tuple[Shape, ...]] = {
    "resnet50": ((32, 1, 1, 1000),),
    "awkward": ((1000, 1, 1, 37),),
    "small": ((1, 1, 1, 1000),),
}
FUNCTION_ULPS = 8
# Per element: maximum, difference, exponential, sum; label times logarithm, sum; power times 1 / sum, minus the label.
CHECKED_ROWS = 64
MOST_ELEMENTS = 2**22
"""More are not drawn: the exact mean loss is that of the whole batch."""


def cases(dtype: str, hardware: str) -> Iterator[Case]:
    for group, shape in in_groups(DESIGN[hardware], OTHERS):
        yield from cases_of(shape, dtype, group)


def drawn_shape(draw: Draw) -> Shape:
    """Rows of classes, as a batch of images of one pixel."""
    classes = draw.channels(least=2)
    return max(1, min(draw.elements(), MOST_ELEMENTS) // classes), 1, 1, classes


def cases_of(shape: Shape, dtype: str, group: str) -> Iterator[Case]:
    row = _Row(shape, dtype)
    yield Case("loss_softmax_cross_entropy", text(shape), dtype, group, row.nbytes, 8 * row.x.size, row.prepare)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    source = tiny_image(device)
    descriptor = mg.LossDescriptor("softmax_cross_entropy")
    loss, forward = mg.Loss(descriptor, device=device), mg.ForwardLoss(descriptor, device=device)
    yield TinyOp("Loss", Call(loss.encode, source, mg.LossLabels.from_images(source)))
    yield TinyOp("ForwardLoss", Call(forward.encode, source, source))
    with mg.CommandBuffer(device) as commands:
        value = forward.encode(commands, source, source)
    yield TinyOp("InitialGradient", Call(mg.InitialGradient(device=device).encode, value))
    yield TinyOp("LossGradient", Call(mg.LossGradient(descriptor, device=device).encode, value, source, source))


class _Row:
    def __init__(self, shape: Shape, dtype: str) -> None:
        self.x = RandomArray(shape, dtype)

    @property
    def nbytes(self) -> int:
        return 2 * self.x.nbytes + 4 * self.x.size

    @property
    def _classes(self) -> np.ndarray:
        rows, channels = self.x.shape[0], self.x.shape[3]
        return np.random.default_rng(1).integers(0, channels, rows)

    @property
    def _labels(self) -> np.ndarray:
        return np.eye(self.x.shape[3], dtype=np.float32)[self._classes].reshape(self.x.shape)

    def prepare(self, device: mg.Device) -> Work:
        source, result = self.x.image(device), empty_image(self.x.shape, self.x.dtype, device)
        targets = mg.LossLabels.from_images(mg.Image.from_array(self._labels, device))
        descriptor = mg.LossDescriptor("softmax_cross_entropy", "mean", reduce_across_batch=True)
        kernel = mg.Loss(descriptor, gradient_follows_reduction=True, device=device)
        return Work(
            partial(kernel.encode, source_image=source, labels=targets, destination_image=result),
            lambda: {"gradient": result, "loss": targets.loss_image},
            self._parts,
            self._torch_calls,
        )

    def _parts(self) -> list[Part]:
        x, labels, channels, rows = self.x.array(), self._labels, self.x.shape[3], self.x.shape[0]
        exact = reference.loss(x, labels, "softmax_cross_entropy", reduction="mean", reduce_across_batch=True)
        magnitude = np.abs(exact) + np.abs(x).max()
        bound = error_bound(np.float32, channels + rows, magnitude, exact, function_ulps=FUNCTION_ULPS)
        loss = Part("loss", (slice(0, 1),), exact[:1], bound[:1])
        few = slice(0, min(CHECKED_ROWS, rows))
        powers = reference.soft_max(x[few])
        exact, magnitude = (powers - labels[few]) / rows, (powers + labels[few]) / rows
        bound = error_bound(self.x.dtype, channels, magnitude, exact, function_ulps=FUNCTION_ULPS)
        return [Part("gradient", (few,), exact, bound), loss]

    def _torch_calls(self, where: Any) -> Mapping[str, TorchCall]:
        import torch

        x, channels = self.x.tensor(where), self.x.shape[3]
        prediction = x.reshape(-1, channels)
        probabilities = torch.from_numpy(self._labels).to(where).to(prediction.dtype).reshape(-1, channels)
        indices = torch.from_numpy(self._classes).to(where)
        one = torch.ones((), dtype=prediction.dtype, device=where)
        return {
            "probabilities": TorchCall(_with_probabilities, (prediction, probabilities), self._torch_results),
            "class indices": TorchCall(_with_indices, (prediction, indices, one), self._torch_results),
        }

    def _torch_results(self, returned: Any) -> Mapping[str, Any]:
        loss, gradient = returned
        return {"loss": loss.reshape(1, 1, 1, 1), "gradient": gradient.reshape(self.x.shape)}


def _with_probabilities(prediction: Any, probabilities: Any) -> Any:
    import torch

    result = torch.log_softmax(prediction, 1)
    loss = (probabilities * result).sum() / -len(result)
    backward = torch.ops.aten._log_softmax_backward_data
    return loss, backward(probabilities / -len(result), result, 1, result.dtype)


def _with_indices(prediction: Any, indices: Any, one: Any) -> Any:
    import torch

    aten, mean = torch.ops.aten, 1
    result = torch.log_softmax(prediction, 1)
    loss, total_weight = aten.nll_loss_forward(result, indices, None, mean, -100)
    gradient = aten.nll_loss_backward(one, result, indices, None, mean, -100, total_weight)
    return loss, aten._log_softmax_backward_data(gradient, result, 1, result.dtype)
