"""The Gram matrix of the channels of each image, and its gradient."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .window import Array


def gram_matrix(source: npt.ArrayLike, *, alpha: float = 1.0) -> Array:
    """y[n][0][f][c] = alpha sum over pixels of x[f] x[c] (MPSNNGramMatrixCalculation)."""
    x = np.asarray(source, np.float64)
    return alpha * np.einsum("nhwf,nhwc->nfc", x, x)[:, None]


def gram_matrix_gradient(source_gradient: npt.ArrayLike, source: npt.ArrayLike, *, alpha: float = 1.0) -> Array:
    """dx[c] = alpha sum_f x[f] (g[f][c] + g[c][f]) (MPSNNGramMatrixCalculationGradient)."""
    g, x = np.asarray(source_gradient, np.float64)[:, 0], np.asarray(source, np.float64)
    return alpha * np.einsum("nhwf,nfc->nhwc", x, g + g.transpose(0, 2, 1))
