"""Random inputs that are the same numbers as an array, as an image and as a PyTorch tensor."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

import mpsgrad as mg

BLOCK = 4_194_301
"""So many numbers are drawn and then repeated; a prime, so that images and rows differ."""


@lru_cache
def _block(dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(BLOCK, np.float32).astype(dtype)


class RandomArray:
    """Normally distributed numbers of one shape: N x H x W x C, or any other for tensors and arrays."""

    def __init__(self, shape: tuple[int, ...], dtype: str, seed: int = 0) -> None:
        self.shape, self.dtype, self.seed = shape, dtype, seed

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def _numbers(self) -> np.ndarray:
        return _block(self.dtype, self.seed)[: self.size]

    def array(self) -> np.ndarray:
        """All of it."""
        return np.resize(self._numbers, self.shape)

    def first(self, images: int = 1) -> np.ndarray:
        """The first ``images``, float64."""
        shape = (min(images, self.shape[0]), *self.shape[1:])
        return np.resize(self._numbers, shape).astype(np.float64)

    def channels(self, count: int) -> np.ndarray:
        """The first ``count`` channels of every pixel, float64."""
        numbers = self._numbers
        pixels = np.arange(math.prod(self.shape[:-1])) * self.shape[-1]
        picked = numbers[(pixels[:, None] + np.arange(count)) % numbers.size]
        return picked.reshape(*self.shape[:-1], count).astype(np.float64)

    def fill(self, buffer: Any) -> None:
        """Writes the numbers to a device buffer."""
        numbers = self._numbers
        for start in range(0, self.nbytes, numbers.nbytes):
            rest = (self.nbytes - start) // numbers.itemsize
            buffer.write(numbers[:rest].view(np.uint8), start)

    def image(self, device: mg.Device) -> mg.Image:
        return _image(self.shape, self.dtype, self.seed, device)

    def tensor(self, where: Any) -> Any:
        """A contiguous tensor of this shape on a PyTorch device."""
        return _tensor(self.shape, self.dtype, self.seed, where)


@lru_cache(maxsize=4)
def _image(shape: tuple[int, ...], dtype: str, seed: int, device: mg.Device) -> mg.Image:
    result = empty_image(shape, dtype, device)
    RandomArray(shape, dtype, seed).fill(result.buffer)
    return result


@lru_cache(maxsize=4)
def _tensor(shape: tuple[int, ...], dtype: str, seed: int, where: Any) -> Any:
    import torch

    numbers = torch.from_numpy(RandomArray(shape, dtype, seed)._numbers).to(where)
    size = math.prod(shape)
    return numbers.repeat(-(-size // numbers.numel()))[:size].reshape(shape)


def empty_image(shape: tuple[int, ...], dtype: str, device: mg.Device) -> mg.Image:
    """An image for a result.

    Each row writes to the same images again and again, as PyTorch's allocator hands out the block that the call before
    gave back.
    """
    images, height, width, channels = shape
    channel_format = mg.FeatureChannelFormat.from_dtype(dtype)
    return mg.Image(mg.ImageDescriptor(channel_format, width, height, channels, images), device)


def forget_inputs() -> None:
    """Frees the images and tensors that are kept for the next row."""
    _image.cache_clear()
    _tensor.cache_clear()
