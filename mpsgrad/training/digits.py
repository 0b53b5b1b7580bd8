"""scikit-learn's handwritten digits: 1 797 pictures of 8 x 8 pixels that come inside the package."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpsgrad.errors import MPSGradError

CLASSES = 10
TRAIN_FRACTION = 0.8
SPLIT_SEED = 0
LARGEST_VALUE = 16.0


@dataclass(frozen=True)
class Digits:
    """Pictures (images x 8 x 8 x 1, float32, 0 to 1) and their classes (int), split into training and test."""

    train_images: np.ndarray
    train_classes: np.ndarray
    test_images: np.ndarray
    test_classes: np.ndarray


def load() -> Digits:
    """The digits with a fixed 80/20 split. Raises ``MPSGradError`` if scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MPSGradError("the digits come with scikit-learn: pip install 'mpsgrad[train]'") from None
    data = load_digits()
    images = (data.images / LARGEST_VALUE).astype(np.float32)[..., None]
    classes = data.target.astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    count = round(TRAIN_FRACTION * len(images))
    train, test = order[:count], order[count:]
    return Digits(images[train], classes[train], images[test], classes[test])


def one_hot(classes: np.ndarray) -> np.ndarray:
    """Labels of shape images x 1 x 1 x 10, float32."""
    return np.eye(CLASSES, dtype=np.float32)[classes].reshape(-1, 1, 1, CLASSES)
