"""Whether the results of a row are right, and how far ours and PyTorch's are from float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import mpsgrad as mg
from bench import pytorch
from bench.case import Index, Part, TorchCall, Work
from mpsgrad.accuracy import assert_within


@dataclass(frozen=True)
class Error:
    """The largest error of all parts of a result: ``relative`` to the part's largest exact value, and over its bound.

    Both are infinite if a value is not finite.
    """

    relative: float
    over_bound: float


def run_once(work: Work, device: mg.Device) -> None:
    with mg.CommandBuffer(device) as commands:
        work.encode(commands)


def check_ours(work: Work, parts: list[Part]) -> Error:
    """The error of the results that are there; raises ``AssertionError`` if one is out of its bound."""
    results = work.results()
    for part in parts:
        assert_within(_read(results[part.name], part.index), part.exact, part.bound, name=part.name)
    return _largest(parts, {part.name: _read(results[part.name], part.index) for part in parts})


def check_pytorch(call: TorchCall, parts: list[Part]) -> Error:
    """The error of the parts that PyTorch returns, over bounds that let it store them in its dtype."""
    tensors = call.results(call())
    known = [_stored(part, pytorch.epsilon(tensors[part.name])) for part in parts if part.name in tensors]
    return _largest(known, {part.name: pytorch.read(tensors[part.name], part.index) for part in known})


def _stored(part: Part, epsilon: float) -> Part:
    return replace(part, bound=part.bound + 0.5 * epsilon * np.abs(part.exact))


def _read(result: Any, index: Index) -> np.ndarray:
    """A slice of an image, a vector or an array; only what is needed of an image or a vector leaves the device."""
    images = index[0]
    if isinstance(result, mg.Image) and images.stop is not None and images.stop <= result.number_of_images:
        start = images.start or 0
        views = result.batch_representation(start, images.stop - start)
        return np.asarray(views, np.float64)[(slice(None), *index[1:])]
    if isinstance(result, mg.Vector) and len(index) == 1 and images.stop is not None:
        return np.asarray(mg.Vector.of_buffer(result.buffer, min(images.stop, len(result))), np.float64)[images]
    return np.asarray(result, np.float64)[index]


def _largest(parts: list[Part], values: Mapping[str, np.ndarray]) -> Error:
    relative = over_bound = 0.0
    for part in parts:
        error = np.abs(values[part.name] - part.exact)
        error[~np.isfinite(error)] = np.inf
        scale = float(np.abs(part.exact).max(initial=0.0))
        largest = float(error.max(initial=0.0))
        relative = max(relative, largest / scale if scale else largest)
        over_bound = max(over_bound, float((error / part.bound).max(initial=0.0)))
    return Error(relative, over_bound)
