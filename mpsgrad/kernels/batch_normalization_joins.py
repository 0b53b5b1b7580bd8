"""Dispatches of batch normalization that become one on CPUs where they follow each other, in whichever encodes."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.devices import Buffer, Device, Dispatch, Function
from mpsgrad.kernels.batch_normalization_families import (
    FAMILIES,
    FAMILIES_IN_ONE,
    MOST_ELEMENTS_IN_ONE,
    PARAMETERS,
)
from mpsgrad.kernels.neuron_descriptor import NeuronType
from mpsgrad.neighbouring_dispatches import join_when_adjacent

MOST_THREADGROUPS_IN_ONE = 16
"""Into which such an image is divided. It is seen at once, where reading the parameters takes longer than a launch."""
FUNCTIONS_REMEMBERED = 256
"""To find out whose kernels they are takes longer than a launch."""


def _statistics_and_coefficients(merge: Dispatch, coefficients: Dispatch) -> Dispatch | None:
    """One kernel for statistics that are merged and then used to normalize, or None for those of others."""
    both = _both(merge.function, coefficients.function, coefficients.buffers[0].device)
    if both is None:
        return None
    source, means, deviations, mean, variance, parameters = merge.buffers
    *numbers, gamma, beta, gamma_gradient, beta_gradient, table, parameters_of_table = coefficients.buffers
    if not [mean, variance] == numbers == [gamma_gradient, beta_gradient]:
        return None
    buffers = source, means, deviations, mean, variance, gamma, beta, table, parameters, parameters_of_table
    return Dispatch(both, merge.threadgroups, buffers)


def _sums_and_coefficients(merge: Dispatch, coefficients: Dispatch) -> Dispatch | None:
    """One kernel for sums that are merged and then used for the data gradient, or None for those of others."""
    both = _both(merge.function, coefficients.function, coefficients.buffers[0].device)
    if both is None:
        return None
    sums, products, variance, *gradients, parameters = merge.buffers
    mean, own_variance, gamma, beta, *own_gradients, table, parameters_of_table = coefficients.buffers
    if variance is not own_variance or gradients != own_gradients:
        return None
    buffers = sums, products, variance, *gradients, mean, gamma, beta, table, parameters, parameters_of_table
    return Dispatch(both, merge.threadgroups, buffers)


@lru_cache(maxsize=FUNCTIONS_REMEMBERED)
def _both(first: Function, second: Function, device: Device) -> Function | None:
    """The kernel for what two kernels do one after the other, or None if they are none of a CPU's."""
    family = FAMILIES[NeuronType.NONE]
    dtype = family.dtype_of(first, device)
    if device.family != "cpu" or dtype is None or dtype != family.dtype_of(second, device):
        return None
    return family.function(device, f"{first.name}_and_coefficients", dtype)


def _normalized_in_one(statistics: Dispatch, merge: Dispatch, stream: Dispatch) -> Dispatch | None:
    """One kernel for statistics of a small image and what it is then normalized to, or None."""
    if _is_divided(stream):
        return None
    plain = statistics.function, merge.function
    function = _in_one("normalize_in_one", stream.buffers[0].device, (stream.function,), plain)
    if function is None:
        return None
    source, *partial, parameters = statistics.buffers
    source_of_merge, *rest = merge.buffers
    *partial_of_merge, mean, variance, gamma, beta, table, parameters_of_merge, coefficients = rest
    source_of_stream, table_of_stream, destination, parameters_of_stream = stream.buffers
    if not _is_small(parameters, coefficients, images=1):
        return None
    if (
        (source_of_merge, source_of_stream, table_of_stream) != (source, source, table)
        or (parameters_of_merge, parameters_of_stream) != (parameters, coefficients)
        or partial_of_merge != partial
    ):
        return None
    buffers = source, *partial, mean, variance, gamma, beta, table, destination, parameters, coefficients
    return Dispatch(function, 1, buffers)


def _gradient_in_one(sums: Dispatch, merge: Dispatch, stream: Dispatch) -> Dispatch | None:
    """One kernel for the sums over a small gradient and the data gradient that takes them, or None."""
    if _is_divided(stream):
        return None
    neuron = stream.function, sums.function
    function = _in_one("normalization_gradient_in_one", stream.buffers[0].device, neuron, (merge.function,))
    if function is None:
        return None
    gradient, source, mean, variance, gamma, beta, *slopes_and_partial, parameters = sums.buffers
    *partial_of_merge, own_variance, gamma_gradient, beta_gradient, own_mean, own_gamma, own_beta = merge.buffers[:8]
    table, parameters_of_merge, coefficients = merge.buffers[8:]
    gradient_of_stream, source_of_stream, table_of_stream, destination, parameters_of_stream = stream.buffers
    numbers = mean, variance, gamma, beta
    if not _is_small(parameters, coefficients, images=2):
        return None
    if (
        (gradient_of_stream, source_of_stream, table_of_stream) != (gradient, source, table)
        or (own_mean, own_variance, own_gamma, own_beta) != numbers
        or partial_of_merge != slopes_and_partial
        or (parameters_of_merge, parameters_of_stream) != (parameters, coefficients)
    ):
        return None
    buffers = (
        *(gradient, source, *numbers, *partial_of_merge, gamma_gradient, beta_gradient, table, destination),
        *(parameters, coefficients),
    )
    return Dispatch(function, 1, buffers)


def _is_divided(stream: Dispatch) -> bool:
    """Whether its image is one that many threads share."""
    return not (isinstance(stream.threadgroups, int) and stream.threadgroups <= MOST_THREADGROUPS_IN_ONE)


@lru_cache(maxsize=FUNCTIONS_REMEMBERED)
def _in_one(
    name: str, device: Device, with_neuron: tuple[Function, ...], plain: tuple[Function, ...]
) -> Function | None:
    """The kernel called ``name`` that does what these do, those of a neuron and those for every one, or None."""
    for kind, family in FAMILIES_IN_ONE.items():
        dtypes = {FAMILIES[kind].dtype_of(function, device) for function in with_neuron}
        if None not in dtypes:
            dtypes |= {FAMILIES[NeuronType.NONE].dtype_of(function, device) for function in plain}
            dtype = dtypes.pop()
            return family.function(device, name, dtype) if dtype is not None and not dtypes else None
    return None


@lru_cache(maxsize=FUNCTIONS_REMEMBERED)
def _is_small(sums: Buffer, stream: Buffer, images: int) -> bool:
    """Whether one thread does what has these parameters, for the sums over so many ``images`` and for what is streamed.

    They are constants, so that it is remembered: reading them takes as long as all else here.
    """
    p, q = PARAMETERS.values_in(sums), PARAMETERS.values_in(stream)
    return bool(
        p["previous"] == 0
        and p["channels"] == q["channels"]
        and p["epsilon"] == q["epsilon"]
        and images * max(each["rows"] * each["source"]["channels"] for each in (p, q)) <= MOST_ELEMENTS_IN_ONE
    )


def join_normalization() -> None:
    """Has ``CommandBuffer`` join them."""
    coefficients = "normalization_coefficients"
    for suffix in ("", "_of_eights"):
        join_when_adjacent(_statistics_and_coefficients, f"merge_batch_statistics{suffix}", coefficients)
        join_when_adjacent(_sums_and_coefficients, f"merge_normalization_gradient_sums{suffix}", coefficients)
    join_when_adjacent(
        _normalized_in_one,
        *("batch_statistics_of_eights", "merge_batch_statistics_of_eights_and_coefficients", "normalize_of_eights"),
    )
    join_when_adjacent(
        _gradient_in_one,
        "normalization_gradient_sums_of_eights",
        "merge_normalization_gradient_sums_of_eights_and_coefficients",
        "normalization_gradient_of_eights",
    )
