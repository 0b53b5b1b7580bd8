"""The reference of normalization by neighbours: value by value, and central differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

shapes = st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
sizes = st.integers(1, 5)
PARAMETERS = (0.7, 0.75, 1.5)


def window(at: int, size: int, length: int) -> range:
    return range(max(at - size // 2, 0), min(at + (size - 1) // 2 + 1, length))


@settings(deadline=None)
@given(shapes, sizes, seeds)
def test_each_value_on_its_own(shape, size, seed):
    x = np.random.default_rng(seed).standard_normal(shape)
    alpha, beta, delta = PARAMETERS
    across = reference.cross_channel_normalization(x, size, *PARAMETERS)
    around = reference.spatial_normalization(x, (size, size), *PARAMETERS)
    contrast = reference.local_contrast_normalization(x, (size, size), *PARAMETERS, 0.5, 0.25, 2.0)
    for n, i, j, c in np.ndindex(*shape):
        squares = sum(x[n, i, j, q] ** 2 for q in window(c, size, shape[3]))
        np.testing.assert_allclose(across[n, i, j, c], x[n, i, j, c] * (delta + alpha / size * squares) ** -beta)
        inside = [x[n, a, b, c] for a in window(i, size, shape[1]) for b in window(j, size, shape[2])]
        patch = np.array(inside + [0.0] * (size**2 - len(inside)))
        base = delta + alpha * (patch**2).mean()
        np.testing.assert_allclose(around[n, i, j, c], x[n, i, j, c] * base**-beta)
        base = delta + alpha * patch.var()
        expected = 0.25 + 2.0 * (x[n, i, j, c] - 0.5 * patch.mean()) * base**-beta
        np.testing.assert_allclose(contrast[n, i, j, c], expected, atol=1e-12)


@settings(deadline=None)
@given(shapes, sizes, st.sampled_from([(0.7, 0.75, 1.5), (1.0, 5.0, 1.0), (0.0, 0.5, 2.0)]), seeds)
def test_gradients_against_central_differences(shape, size, parameters, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal(shape), rng.standard_normal(shape)
    for name, at in (("cross_channel", size), ("spatial", (size, size)), ("local_contrast", (size, size))):
        more = ((0.8, 0.3, 1.3), (0.8, 1.3)) if name == "local_contrast" else ((), ())
        function = getattr(reference, f"{name}_normalization")
        dx = getattr(reference, f"{name}_normalization_gradient")(g, x, at, *parameters, *more[1])
        assert_gradient(lambda v, f=function, a=at, m=more[0]: f(v, a, *parameters, *m), x, g, dx, rng)


@pytest.mark.parametrize("size", [3, 5])
def test_across_channels_against_pytorch(size):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 7))
    alpha, beta, delta = PARAMETERS
    expected = torch.nn.functional.local_response_norm(
        torch.from_numpy(x).permute(0, 3, 1, 2), size, alpha, beta, delta
    )
    np.testing.assert_allclose(
        reference.cross_channel_normalization(x, size, *PARAMETERS), expected.permute(0, 2, 3, 1).numpy(), rtol=1e-12
    )
