"""Stochastic gradient descent beside PyTorch's, whose momentum is the same for a constant learning rate."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("weight_decay", [0.0, 0.25])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_descent(momentum, nesterov, weight_decay):
    generator = np.random.default_rng(3)
    start, gradients = generator.standard_normal(500), generator.standard_normal((10, 500))
    start, gradients = start.astype(np.float32), gradients.astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs = torch.optim.SGD([parameter], lr=0.05, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    ours = mg.OptimizerStochasticGradientDescent(
        mg.OptimizerDescriptor(0.05, regularization_type=2, regularization_scale=weight_decay),
        momentum_scale=momentum,
        use_nesterov_momentum=nesterov,
    )
    values, slot = mg.Vector.from_array(start), mg.Vector(500) if momentum else None
    with mg.CommandBuffer() as commands:
        for gradient in gradients:
            ours.encode(
                commands,
                input_gradient_vector=mg.Vector.from_array(gradient),
                input_values_vector=values,
                input_momentum_vector=slot,
                result_values_vector=values,
            )
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        theirs.step()
    np.testing.assert_allclose(np.asarray(values), parameter.detach().numpy(), rtol=1e-5, atol=1e-5)
