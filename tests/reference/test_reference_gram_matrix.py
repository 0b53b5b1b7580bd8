"""The reference of Gram matrices: gradients against central differences, and a case by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))


@settings(deadline=None)
@given(shapes, seeds)
def test_gradients_against_central_differences(shape, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal(shape), rng.standard_normal((shape[0], 1, shape[3], shape[3]))
    dx = reference.gram_matrix_gradient(g, x, alpha=0.5)
    assert_gradient(lambda x: reference.gram_matrix(x, alpha=0.5), x, g, dx, rng)


def test_a_case_by_hand():
    x = np.array([[1.0, 2.0], [3.0, -1.0]]).reshape(1, 1, 2, 2)
    g = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 1, 2, 2)
    np.testing.assert_array_equal(reference.gram_matrix(x, alpha=0.5)[0, 0], [[5, -0.5], [-0.5, 2.5]])
    np.testing.assert_array_equal(reference.gram_matrix_gradient(g, x, alpha=0.5)[0, 0], [[6, 10.5], [0.5, 3.5]])
