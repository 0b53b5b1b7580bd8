"""Dispatches of batch normalization that become one on CPUs where they follow each other, in whichever encodes."""

from __future__ import annotations

from functools import lru_cache

from mpsgrad.devices import Buffer, Device, Dispatch, Function
from mpsgrad.kernels.batch_normalization_families import (
    BY_CHANNELS,
    FAMILIES,
    FAMILIES_BY_CHANNELS,
    FAMILIES_IN_ONE,
    PARAMETERS,
    WITHOUT_NEURON,
    most_elements_in_one,
)
from mpsgrad.kernels.neuron_descriptor import NeuronType
from mpsgrad.kernels.pointwise import Layout, merge_pixels
from mpsgrad.neighbouring_dispatches import join_when_adjacent
from mpsgrad.tunables import tunables

MOST_THREADGROUPS_IN_ONE = 20
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
    if not _is_small(parameters, coefficients, 1, _most_elements(source)):
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
    if not _is_small(parameters, coefficients, 2, _most_elements(source)):
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


def _most_elements(image: Buffer) -> int:
    return most_elements_in_one(tunables(image.device.tuning).has_many_registers)


@lru_cache(maxsize=FUNCTIONS_REMEMBERED)
def _is_small(sums: Buffer, stream: Buffer, images: int, most: int) -> bool:
    """Whether what has these parameters is of ``most`` elements, the sums over so many ``images`` and what is streamed.

    They are constants, so that it is remembered: reading them takes as long as all else here.
    """
    p, q = PARAMETERS.values_in(sums), PARAMETERS.values_in(stream)
    return bool(
        p["previous"] == 0
        and p["channels"] == q["channels"]
        and p["epsilon"] == q["epsilon"]
        and images * max(each["rows"] * each["source"]["channels"] for each in (p, q)) <= most
    )


def _normalized_by_channels(statistics: Dispatch, coefficients: Dispatch, stream: Dispatch) -> Dispatch | None:
    """One kernel for statistics by channels and what is then normalized to, or None for those of others."""
    functions = statistics.function, coefficients.function, stream.function
    function = _by_channels("normalize", stream.buffers[0].device, *functions)
    if function is None:
        return None
    source, origins, mean, variance, parameters = statistics.buffers
    own_source, own_table, destination, parameters_of_stream = stream.buffers
    *numbers, gamma, beta, _, _, table, own_parameters = coefficients.buffers
    if (own_source, own_table, own_parameters) != (source, table, parameters_of_stream) or numbers != [mean, variance]:
        return None
    buffers = source, origins, mean, variance, gamma, beta, destination
    return _with_streams(function, statistics, buffers, parameters, parameters_of_stream)


def _gradient_by_channels(sums: Dispatch, coefficients: Dispatch, stream: Dispatch) -> Dispatch | None:
    """One kernel for sums by channels and the data gradient that takes them, or None for those of others."""
    functions = sums.function, coefficients.function, stream.function
    function = _by_channels("normalization_gradient", stream.buffers[0].device, *functions)
    if function is None:
        return None
    *read, gamma_gradient, beta_gradient, parameters = sums.buffers
    gradient, source, *numbers = read
    own_gradient, own_source, own_table, destination, parameters_of_stream = stream.buffers
    *own_numbers, table, own_parameters = coefficients.buffers
    own = own_gradient, own_source, own_table, own_parameters
    if own != (gradient, source, table, parameters_of_stream):
        return None
    if own_numbers != [*numbers, gamma_gradient, beta_gradient]:
        return None
    buffers = *read, gamma_gradient, beta_gradient, destination
    return _with_streams(function, sums, buffers, parameters, parameters_of_stream)


def _with_streams(
    function: Function, sums: Dispatch, buffers: tuple[Buffer, ...], parameters: Buffer, of_stream: Buffer
) -> Dispatch | None:
    """``function`` with ``buffers`` on as many threadgroups as ``sums``, if the parameters are of the same pixels."""
    by_pixels = _by_pixels(parameters, of_stream)
    if by_pixels is None:
        return None
    return Dispatch(function, sums.threadgroups, (*buffers, parameters, by_pixels))


@lru_cache(maxsize=FUNCTIONS_REMEMBERED)
def _by_channels(
    name: str, device: Device, sums: Function, coefficients: Function, stream: Function
) -> Function | None:
    """The kernel called ``name`` that does by channels what these do; None if they are not all those of one neuron."""
    for kind, family in FAMILIES_BY_CHANNELS.items():
        dtype = FAMILIES[kind].dtype_of(stream, device)
        if dtype is not None:
            kind_of_sums = NeuronType.NONE if sums.name.startswith(WITHOUT_NEURON) else kind
            is_own = (
                FAMILIES_BY_CHANNELS[kind_of_sums].dtype_of(sums, device)
                == FAMILIES[NeuronType.NONE].dtype_of(coefficients, device)
                == dtype
            )
            return family.function(device, f"{name}{BY_CHANNELS}", dtype) if is_own else None
    return None


@lru_cache(maxsize=FUNCTIONS_REMEMBERED)
def _by_pixels(sums: Buffer, stream: Buffer) -> Buffer | None:
    """The parameters ``stream`` with rows of one pixel; None if these, or a gradient's neuron, are not the ``sums``'.

    They are constants, so that it is remembered.
    """
    p, q = PARAMETERS.values_in(sums), PARAMETERS.values_in(stream).copy()
    if p["channels"] != q["channels"] or p["epsilon"] != q["epsilon"]:
        return None
    if q["needs_gradients"] and p["neuron"].tolist() != q["neuron"].tolist():
        return None
    names = "gradient", "source", "destination"
    *read, written = (_unfolded(tuple(q[name].tolist()), int(q["channels"]), int(p["rows"])) for name in names)
    if merge_pixels(read) != [tuple(p[name].tolist()) for name in names[:2]]:
        return None
    q["gradient"], q["source"], q["destination"] = *read, written
    q["rows"], q["tail"] = p["rows"], 0
    return stream.device.constant_buffer(q.tobytes())


def _unfolded(layout: Layout, channels: int, rows: int) -> Layout:
    """``layout`` of rows of several pixels, which are ``rows`` in all, as one of pixels."""
    start, pixel, row, image, _, _, columns, _ = layout
    return layout if columns == channels else (start, pixel // (columns // channels), row, image, rows, 1, channels, 1)


def join_normalization() -> None:
    """Has ``CommandBuffer`` join them."""
    coefficients = "normalization_coefficients"
    statistics, sums = f"batch_statistics{BY_CHANNELS}", f"normalization_gradient_sums{BY_CHANNELS}"
    for suffix in ("", "_of_eights"):
        join_when_adjacent(_statistics_and_coefficients, f"merge_batch_statistics{suffix}", coefficients)
        join_when_adjacent(_sums_and_coefficients, f"merge_normalization_gradient_sums{suffix}", coefficients)
        join_when_adjacent(_normalized_by_channels, statistics, coefficients, f"normalize{suffix}")
        join_when_adjacent(_gradient_by_channels, sums, coefficients, f"normalization_gradient{suffix}")
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
