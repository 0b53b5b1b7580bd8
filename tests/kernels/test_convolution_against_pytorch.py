"""Convolution and fully connected layers beside PyTorch, where the two mean the same."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg

torch = pytest.importorskip("torch")

CASES = [
    # image, inputs, outputs, kernel, stride, padding, dilation, groups
    ((9, 8), 5, 6, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((9, 8), 4, 6, (3, 2), (2, 1), (1, 0), (1, 1), 2),
    ((12, 11), 3, 7, (3, 3), (1, 2), (2, 2), (2, 2), 1),
    ((8, 8), 6, 6, (3, 3), (2, 2), (1, 1), (1, 1), 6),
    ((7, 7), 16, 33, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((15, 15), 3, 8, (7, 7), (2, 2), (3, 3), (1, 1), 1),
]


def differs(actual, expected, terms):
    """The larger of the errors in units of float32 rounding of a sum of ``terms`` numbers of the result's size."""
    scale = np.abs(expected).max() * np.finfo(np.float32).eps * np.sqrt(terms)
    return np.abs(np.asarray(actual) - expected).max() / scale


@pytest.mark.parametrize(("size", "inputs", "outputs", "kernel", "stride", "padding", "dilation", "groups"), CASES)
def test_convolution(size, inputs, outputs, kernel, stride, padding, dilation, groups):
    random = np.random.default_rng(0)
    x = random.standard_normal((2, *size, inputs)).astype(np.float32)
    w = random.standard_normal((outputs, *kernel, inputs // groups)).astype(np.float32)
    b = random.standard_normal(outputs).astype(np.float32)
    tensors = [torch.tensor(a.transpose(0, 3, 1, 2).copy(), requires_grad=True) for a in (x, w)]
    bias = torch.tensor(b, requires_grad=True)
    y = torch.nn.functional.conv2d(tensors[0], tensors[1], bias, stride, padding, dilation, groups)
    g = random.standard_normal(y.shape).astype(np.float32)
    y.backward(torch.tensor(g))

    data = mg.ConvolutionDataSource.from_arrays(w, b, stride=stride, dilation=dilation, groups=groups)
    forward, backward = mg.Convolution(data), mg.ConvolutionGradient(data)
    # PyTorch says how much lies left of the image, MPS where the centre tap is first.
    centres = [(k - 1) * d // 2 - p + (k - 1) * d % 2 for k, d, p in zip(kernel, dilation, padding, strict=True)]
    forward.offset = mg.Offset(centres[1], centres[0])
    source = mg.Image.from_array(x)
    incoming = mg.Image.from_array(g.transpose(0, 2, 3, 1).copy())
    result = mg.Image(incoming.descriptor)
    state = forward.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        forward.encode(commands, source, destination_image=result, destination_state=state)
        gradient = backward.encode(commands, incoming, source, state)
    terms = kernel[0] * kernel[1] * max(inputs, outputs)
    assert differs(result, y.detach().numpy().transpose(0, 2, 3, 1), terms) < 4
    assert differs(gradient, tensors[0].grad.numpy().transpose(0, 2, 3, 1), terms) < 4
    pixels = 2 * y.shape[2] * y.shape[3]
    assert differs(state.gradient_for_weights, tensors[1].grad.numpy().transpose(0, 2, 3, 1), pixels) < 4
    assert differs(state.gradient_for_biases, bias.grad.numpy(), pixels) < 4


def test_fully_connected():
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 4, 3, 6)).astype(np.float32)
    w = random.standard_normal((10, 4, 3, 6)).astype(np.float32)
    b = random.standard_normal(10).astype(np.float32)
    g = random.standard_normal((5, 10)).astype(np.float32)
    tensors = [torch.tensor(a.reshape(len(a), -1), requires_grad=True) for a in (x, w)]
    bias = torch.tensor(b, requires_grad=True)
    y = torch.nn.functional.linear(*tensors, bias)
    y.backward(torch.tensor(g))
    data = mg.ConvolutionDataSource.from_arrays(w, b)
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        result, state = mg.FullyConnected(data).encode(commands, source, return_state=True)
        gradient = mg.FullyConnectedGradient(data).encode(
            commands, mg.Image.from_array(g.reshape(5, 1, 1, 10)), source, state
        )
    assert differs(result, y.detach().numpy().reshape(5, 1, 1, 10), 72) < 4
    assert differs(gradient, tensors[0].grad.numpy().reshape(x.shape), 10) < 4
    assert differs(state.gradient_for_weights, tensors[1].grad.numpy().reshape(w.shape), 5) < 4
    assert differs(state.gradient_for_biases, bias.grad.numpy(), 5) < 4
