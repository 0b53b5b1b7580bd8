"""SoftMax, LogSoftMax and the softmax cross-entropy beside PyTorch, where they mean the same."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg

torch = pytest.importorskip("torch")

SHAPES = [(2, 3, 4, 1), (1, 5, 5, 10), (3, 2, 2, 129), (1, 1, 1, 1000)]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("forward", "gradient", "function"),
    [
        (mg.SoftMax, mg.SoftMaxGradient, torch.nn.functional.softmax),
        (mg.LogSoftMax, mg.LogSoftMaxGradient, torch.nn.functional.log_softmax),
    ],
    ids=["softmax", "log_softmax"],
)
def test_softmax_and_its_gradient(forward, gradient, function, shape):
    x, g = draw(*shape), draw(*shape)[::-1].copy()
    with mg.CommandBuffer() as commands:
        y, state = forward().encode(commands, mg.Image.from_array(x), return_state=True)
        dx = gradient().encode(commands, mg.Image.from_array(g), y, state)
    source = torch.from_numpy(x).requires_grad_()
    expected = function(source, dim=-1)
    expected.backward(torch.from_numpy(g))
    slack = 4 * (shape[-1] + 10) * 2.0**-23
    np.testing.assert_allclose(np.asarray(y), expected.detach().numpy(), atol=slack * 0.1 + 1e-6)
    np.testing.assert_allclose(np.asarray(dx), source.grad.numpy(), atol=slack * np.abs(g).max() + 1e-6)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(reduction, smoothing):
    """PyTorch's means divide by the pixels of the whole batch, which is ``reduce_across_batch``."""
    x = draw(3, 4, 5, 7)
    classes = np.random.default_rng(1).integers(0, 7, x.shape[:3])
    kernel = mg.Loss(
        mg.LossDescriptor(
            "softmax_cross_entropy", reduction, label_smoothing=smoothing, number_of_classes=7, reduce_across_batch=True
        ),
        gradient_follows_reduction=True,
    )
    labels = mg.LossLabels.from_array(np.eye(7, dtype=np.float32)[classes])
    with mg.CommandBuffer() as commands:
        dx = kernel.encode(commands, mg.Image.from_array(x), labels)
    source = torch.from_numpy(x).requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        source.permute(0, 3, 1, 2), torch.from_numpy(classes), reduction=reduction, label_smoothing=smoothing
    )
    expected.backward()
    np.testing.assert_allclose(np.asarray(labels.loss_image).sum(), expected.item(), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(dx), source.grad.numpy(), rtol=1e-4, atol=1e-7)
