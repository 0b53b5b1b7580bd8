"""The reference of the YOLO loss: central differences, overlaps, and who is responsible for an object."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference
from mpsgrad.reference import YOLOOptions

KINDS = ["mean_squared_error", "huber", "sigmoid_cross_entropy"]
ANCHORS = ((1.0, 2.0), (1.5, 1.0), (0.5, 0.5))


def _case(seed: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (2, 2, 3, len(ANCHORS), 5 + classes)
    y, t = rng.standard_normal(shape), 0.3 * rng.standard_normal(shape)
    t[..., 0:2] = rng.random((*shape[:4], 2))
    t[..., 4] = rng.random(shape[:4]) < 0.5
    t[..., 5:] = np.eye(classes)[rng.integers(0, classes, shape[:4])]
    return y.reshape(*shape[:3], -1), t.reshape(*shape[:3], -1)


@settings(deadline=None)
@given(seeds, st.integers(1, 3), st.booleans(), st.sampled_from(KINDS))
def test_gradients_against_central_differences(seed, classes, rescore, kind):
    """With the choices held: they, and the confidences that are to be reached, are constants."""
    y, t = _case(seed, classes)
    types = (kind, "huber", "sigmoid_cross_entropy", "softmax_cross_entropy")
    options = YOLOOptions(ANCHORS, types=types, rescore=rescore, most_of_nothing=0.1)
    choices = reference.yolo_choices(y, t, options)
    weights = np.random.default_rng(seed).random(y.shape)
    # The gradient of softmax cross-entropy takes one weight for all classes.
    weights.reshape(*y.shape[:3], 3, -1)[..., 5:] = 0.5
    _, dy, _ = reference.yolo_loss(y, t, options, choices=choices, weights=weights)

    def loss(y: np.ndarray) -> np.ndarray:
        return reference.yolo_loss(y, t, options, choices=choices, weights=weights)[0]

    g = np.ones((2, 1, 1, 1))
    assert_gradient(loss, y, g, dy, np.random.default_rng(seed))


def test_overlaps_by_hand():
    """Boxes of one cell's size around the cell's middle, and the label's half a cell to the right."""
    y = np.array([0.0, 0, 0, 0, 0, 0]).reshape(1, 1, 1, 6)
    t = np.array([1.0, 0.5, 0, 0, 1, 1]).reshape(1, 1, 1, 6)
    assert reference.yolo_overlaps(y, t, ((1.0, 1.0),)) == pytest.approx(1 / 3)
    t[0, 0, 0, 4] = 0
    assert reference.yolo_overlaps(y, t, ((1.0, 1.0),)) == 0


def test_who_has_found_what():
    """Of three anchors with the same label the one whose box fits best; one that fits well enough too; one that is
    neither an object nor nothing; and in a cell without a label all have found nothing."""
    y, t = np.zeros((1, 1, 2, 4, 6)), np.zeros((1, 1, 2, 4, 6))
    anchors = ((1.0, 1.0), (1.0, 0.8), (1.0, 0.5), (0.1, 0.1))
    t[0, 0, 0, :, 0:2] = 0.5
    t[0, 0, 0, :, 2:4] = -np.log(anchors)
    t[0, 0, 0, :, 4] = 1
    options = YOLOOptions(anchors)
    is_object, is_nothing, confidence = reference.yolo_choices(y.reshape(1, 1, 2, -1), t.reshape(1, 1, 2, -1), options)
    np.testing.assert_array_equal(is_object[0, 0], [[True, True, False, False], [False] * 4])
    np.testing.assert_array_equal(is_nothing[0, 0], [[False, False, False, True], [True] * 4])
    np.testing.assert_allclose(confidence[0, 0], [[1, 0.8, 0, 0], [0] * 4])


def test_of_equal_overlaps_the_first_is_responsible():
    y, t = np.zeros((1, 1, 1, 12)), np.tile([0.5, 0.5, 2.0, 2.0, 1, 1], 2).reshape(1, 1, 1, 12)
    is_object, _, _ = reference.yolo_choices(y, t, YOLOOptions(((1.0, 1.0),) * 2))
    np.testing.assert_array_equal(is_object.ravel(), [True, False])
