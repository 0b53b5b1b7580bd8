"""Repeated encodes: what an encode of images of one geometry found out, for the next encode of images of the same one.

Checks, layouts and parameters of an encode depend on the kernel's properties, on where its images lie in their memory,
and on what its state says. The ``key`` of an encode stands for all of these. A kernel that was encoded with a key
before takes over what came out then, and makes only the checks that depend on the moment: open command buffers, reads
left of temporary images, and images that share memory.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from mpsgrad.devices import Buffer, Dispatch, Function
from mpsgrad.image import Image, ImageDescriptor

if TYPE_CHECKING:
    from mpsgrad.base_kernel import Regions

REMEMBERED_ENCODES = 64
"""How many encodes a kernel remembers; then it starts again with none."""
_REMEMBERED_TOKENS = 16384

_tokens: dict[Hashable, int] = {}
_next_token = itertools.count(1)


def token(value: Hashable) -> int:
    """A number that no unequal value has; equal values mostly get the same one."""
    found = _tokens.get(value)
    if found is None:
        if len(_tokens) >= _REMEMBERED_TOKENS:
            _tokens.clear()
        found = _tokens[value] = next(_next_token)
    return found


class Remembers(enum.Enum):
    """How much of an encode depends on its key alone."""

    NOTHING = enum.auto()
    REGIONS = enum.auto()
    """The checks and the regions."""
    DISPATCHES = enum.auto()
    """The dispatches too, but for the buffers of images, states and scratch memory."""


@dataclass(frozen=True, slots=True)
class DispatchPattern:
    """A dispatch whose buffers are picked from a list: images, buffers of the state, scratch memory, constants."""

    function: Function
    threadgroups: int
    pick: Callable[[Sequence[Buffer]], tuple[Buffer, ...]]


@dataclass(frozen=True, slots=True)
class RememberedEncode:
    """What one encode found out.

    ``values`` are the kernel's properties after it, ``descriptor`` is that of its destination, and ``is_filled`` says
    whether that is filled with zeros first. ``dispatches`` is None for a kernel that remembers regions only;
    ``resources`` are the indices of the state's buffers in them.
    """

    values: dict[str, Any]
    values_token: int
    descriptor: ImageDescriptor
    is_filled: bool
    regions: Regions
    dispatches: tuple[DispatchPattern, ...] | None
    resources: tuple[int, ...]
    scratch_sizes: tuple[int, ...]
    constants: tuple[Buffer, ...]


def patterns(
    dispatches: Sequence[Dispatch], given: Sequence[Buffer], scratch: Sequence[Buffer]
) -> tuple[tuple[DispatchPattern, ...], tuple[Buffer, ...]]:
    """``dispatches`` with their buffers replaced by positions in ``given + scratch + constants``, and the constants."""
    position = {id(buffer): index for index, buffer in reversed(list(enumerate((*given, *scratch))))}
    constants: list[Buffer] = []
    found = []
    for dispatch in dispatches:
        indices = []
        for buffer in dispatch.buffers:
            index = position.get(id(buffer))
            if index is None:
                index = position[id(buffer)] = len(given) + len(scratch) + len(constants)
                constants.append(buffer)
            indices.append(index)
        assert isinstance(dispatch.threadgroups, int)
        found.append(DispatchPattern(dispatch.function, dispatch.threadgroups, _picker(indices)))
    return tuple(found), tuple(constants)


def _picker(indices: Sequence[int]) -> Callable[[Sequence[Buffer]], tuple[Buffer, ...]]:
    if len(indices) == 1:
        only = indices[0]
        return lambda buffers: (buffers[only],)
    return itemgetter(*indices)


def image_token(image: Image) -> int:
    """The token of where the elements of ``image`` lie in its buffer, and of their format."""
    if image._token == 0:
        image._token = token((image.channel_format, *image.layout))
    return image._token
