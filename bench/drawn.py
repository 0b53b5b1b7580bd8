"""Shapes that nobody chose, drawn from a seed: a sample of what users run, rather than the layers of known networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from bench.shapes import Shape

GROUP = "drawn"
"""The group of cases with drawn shapes."""
LEAST_ELEMENTS = {"cpu": 2**14, "gpu": 2**19}
MOST_ELEMENTS = {"cpu": 2**22, "gpu": 2**26}
"""Of an image batch, between which the size is drawn."""
MOST_OF_AN_IMAGE = 2**19
"""The exact results of an image with more elements would take the host longer than timing the kernel."""
MOST_IMAGES = {"cpu": 32, "gpu": 64}
MOST_CHANNELS = 1024
ASPECT = 2.0
"""Images are up to so many times as wide as high, or as high as wide."""
ROUNDED = 4
"""Some numbers of channels are multiples of it, as those of most networks are; the others are as they come."""

T = TypeVar("T")


class Draw:
    """Draws for the rows of one module in one dtype: the same for the same seed, whatever other modules draw."""

    def __init__(self, seed: int, module: str, dtype: str, hardware: str) -> None:
        self.hardware = hardware
        self._random = np.random.default_rng([seed, *f"{module} {dtype}".encode()])

    def integer(self, least: int, most: int) -> int:
        """From ``least`` to ``most``, both included, the logarithm evenly distributed: few are as likely as many."""
        logarithm = self._random.uniform(math.log(least), math.log(most + 1))
        return min(most, int(math.exp(logarithm)))

    def chosen(self, options: Sequence[T]) -> T:
        """One of the ``options``, each as likely as the others; what stands there twice is twice as likely."""
        return options[int(self._random.integers(len(options)))]

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Up to ``most`` of the ``options``, in their order."""
        picked = self._random.permutation(len(options))[:most]
        return [options[index] for index in sorted(picked)]

    def channels(self, least: int = 1) -> int:
        """Feature channels of an image."""
        channels = self.integer(least, MOST_CHANNELS)
        return -(-channels // ROUNDED) * ROUNDED if self.chosen((True, False, False)) else channels

    def elements(self) -> int:
        """How many numbers a batch of images has, or a vector."""
        return self.integer(LEAST_ELEMENTS[self.hardware], MOST_ELEMENTS[self.hardware])

    def shape(
        self,
        *,
        smallest: int = 1,
        channels: int | None = None,
        most_pixels: float = math.inf,
        most_elements: float = math.inf,
    ) -> Shape:
        """N x H x W x C.

        It has at least ``smallest`` rows and columns, and not many more than ``most_pixels`` in an image and
        ``most_elements`` in all.
        """
        channels = channels or self.channels()
        images = self.integer(1, MOST_IMAGES[self.hardware])
        of_an_image = min(min(self.elements(), most_elements) / images, MOST_OF_AN_IMAGE)
        pixels = min(max(1.0, of_an_image / channels), most_pixels)
        aspect = math.exp(self._random.uniform(-math.log(ASPECT), math.log(ASPECT)))
        height, width = (max(smallest, round(math.sqrt(pixels * ratio))) for ratio in (1 / aspect, aspect))
        return images, height, width, channels

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """The ``options`` in any order."""
        return [options[index] for index in self._random.permutation(len(options))]
