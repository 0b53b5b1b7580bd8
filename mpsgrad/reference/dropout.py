"""Dropout: the generator of its masks, forward and gradient."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .window import Array, image

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: npt.ArrayLike, key: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """The four words of Philox 4x32-10 for counters [..., 4] of 32-bit words.

    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for turn in range(10):
        keys = [np.uint64((k + turn * w) & 0xFFFFFFFF) for k, w in zip(key, _WEYL, strict=True)]
        products = np.uint64(_MULTIPLIERS[0]) * c0, np.uint64(_MULTIPLIERS[1]) * c2
        c0, c2, c1, c3 = (
            (products[1] >> shift) ^ c1 ^ keys[0],
            (products[0] >> shift) ^ c3 ^ keys[1],
            products[1] & mask,
            products[0] & mask,
        )
    return np.stack([c0, c1, c2, c3], -1)


def dropout_mask(
    shape: tuple[int, int, int, int],
    keep_probability: float,
    seed: int = 0,
    drawn_images: int = 0,
    mask_stride: tuple[int, int, int] = (1, 1, 1),
) -> npt.NDArray[np.uint8]:
    """1 for kept, 0 for dropped elements of images of ``shape``; ``mask_stride`` is (x, y, feature channels).

    Random number i of an image, in row-major order of the places of the mask, is word i % 128 / 32 of the counter
    (i / 128 * 32 + i % 32, image, 0, 0) with the key (seed, 0), and keeps where it is below keep_probability * 2^32.
    """
    x, y, c = mask_stride
    places = (shape[1] if y else 1, shape[2] if x else 1, shape[3] if c else 1)
    i = np.arange(np.prod(places))
    masks = []
    for n in range(shape[0]):
        counters = np.zeros((i.size, 4), np.uint64)
        counters[:, 0] = i // 128 * 32 + i % 32
        counters[:, 1] = drawn_images + n
        words = philox(counters, (seed, 0))[i, i % 128 // 32]
        kept = words < round(float(np.float32(keep_probability)) * 2**32)
        masks.append(np.broadcast_to(kept.reshape(places), shape[1:]))
    return np.stack(masks).astype(np.uint8)


def dropout(source: npt.ArrayLike, mask: npt.ArrayLike, keep_probability: float) -> Array:
    """y = mask * x / keep_probability (MPSCNNDropout)."""
    return np.where(np.asarray(mask) != 0, image(source, "source") / keep_probability, 0.0)


def dropout_gradient(source_gradient: npt.ArrayLike, mask: npt.ArrayLike, keep_probability: float) -> Array:
    """dx = mask * g / keep_probability (MPSCNNDropoutGradient)."""
    return dropout(source_gradient, mask, keep_probability)
