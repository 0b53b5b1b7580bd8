"""Dispatches of batch normalization that become one on GPUs where an image has few pixels.

Statistics and normalization, or the sums and the data gradient, are different encodes, so the dispatches are joined
where they follow each other.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from mpsgrad.devices import Buffer, Device, Dispatch
from mpsgrad.kernels.batch_normalization_families import (
    AT_ONCE,
    FAMILIES_AT_ONCE,
    FOURS,
    LONG_CHANNELS,
    NEURONS_AT_ONCE,
    PAIRS,
    TILE_PARAMETERS,
    VECTORS,
    families_of,
    width_of,
)
from mpsgrad.kernels.neuron_descriptor import NeuronType
from mpsgrad.kernels.pointwise import values_of_vector
from mpsgrad.neighbouring_dispatches import join_when_adjacent


def _normalized(statistics: Dispatch, stream: Dispatch) -> Dispatch | None:
    """One kernel for the statistics of an image and what it is then normalized to, or None."""
    kind, metal_type = _kind(stream)
    if kind is None or not _is_own(statistics, NeuronType.NONE, metal_type):
        return None
    source, mean, variance, parameters = statistics.buffers
    own_source, own_mean, own_variance, gamma, beta, destination, parameters_of_stream = stream.buffers
    if (own_source, own_mean, own_variance) != (source, mean, variance) or destination is source:
        return None
    buffers = source, mean, variance, gamma, beta, destination
    return _at_once(kind, metal_type, statistics, stream, buffers, parameters, parameters_of_stream)


def _gradient(sums: Dispatch, stream: Dispatch) -> Dispatch | None:
    """One kernel for the sums over a gradient and the data gradient that takes them, or None."""
    kind, metal_type = _kind(stream)
    if kind is None or not _is_own(sums, kind, metal_type):
        return None
    *sources_and_numbers, parameters = sums.buffers
    *own_sources_and_numbers, destination, parameters_of_stream = stream.buffers
    gradient, source, *_ = sources_and_numbers
    if own_sources_and_numbers != sources_and_numbers or destination in (gradient, source):
        return None
    buffers = *sources_and_numbers, destination
    return _at_once(kind, metal_type, sums, stream, buffers, parameters, parameters_of_stream)


def _kind(stream: Dispatch) -> tuple[NeuronType | None, str]:
    """The neuron that is part of the kernel, if one kernel may do all with it, and the Metal type of the images."""
    for kind in NEURONS_AT_ONCE if stream.buffers else ():
        metal_type = families_of(stream.function.name)[kind].dtype_of(stream.function, stream.buffers[0].device)
        if metal_type is not None:
            return kind, metal_type
    return None, ""


def _is_own(sums: Dispatch, kind: NeuronType, metal_type: str) -> bool:
    """Whether they are made by the kernel of this neuron for such images, not by one that is only called so."""
    family = families_of(sums.function.name)[kind]
    return bool(sums.buffers) and family.dtype_of(sums.function, sums.buffers[0].device) == metal_type


def _at_once(
    kind: NeuronType,
    metal_type: str,
    sums: Dispatch,
    stream: Dispatch,
    buffers: tuple[Buffer, ...],
    parameters: Buffer,
    parameters_of_stream: Buffer,
) -> Dispatch | None:
    """The kernel with ``buffers`` that does what both do, if both are of the whole of the same images."""
    device: Device = buffers[0].device
    width = width_of(sums.function.name, values_of_vector(metal_type))
    packed = _joined(*(bytes(each.read(0, each.nbytes)) for each in (parameters, parameters_of_stream)), width)
    if packed is None:
        return None
    _, at_once, rest = sums.function.name.partition(AT_ONCE)
    stream_name, *_ = stream.function.name.partition("_of_")
    function_name = f"{stream_name}{at_once}{rest}"
    function = families_of(function_name)[kind].function(device, function_name, metal_type)
    return Dispatch(function, sums.threadgroups, (*buffers, device.constant_buffer(packed)))


@lru_cache(maxsize=512)
def _joined(sums: bytes, stream: bytes, width: int) -> bytes | None:
    """The parameters of one kernel, of those of the ``sums`` and of what is streamed; None if these differ in more than
    the tiles and the destination, or vectors of ``width`` channels are not aligned there."""
    p, q = (np.frombuffer(data, TILE_PARAMETERS.dtype, 1)[0] for data in (sums, stream))
    if any(p[name] != q[name] for name in ("gradient", "source", "rows", "channels", "epsilon")):
        return None
    if q["pixels"] not in (0, q["rows"]) or any(int(number) % width for number in q["destination"].tolist()[:4]):
        return None
    values = q.copy()
    for name in ("across", "row_lanes", "tiles"):
        values[name] = p[name]
    return values.tobytes()


def join_at_once() -> None:
    """Has ``CommandBuffer`` join them, kernels for vectors, too, with those for single channels that follow them."""
    endings = "", PAIRS, FOURS, VECTORS
    for threads, suffix, of_stream in product(FAMILIES_AT_ONCE, endings, (*endings, LONG_CHANNELS)):
        join_when_adjacent(_normalized, f"batch_statistics{AT_ONCE}{threads}{suffix}", f"normalize{of_stream}")
        sums = f"normalization_gradient_sums{AT_ONCE}{threads}{suffix}"
        join_when_adjacent(_gradient, sums, f"normalization_gradient{of_stream}")
