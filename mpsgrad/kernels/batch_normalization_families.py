"""The kernels of batch normalization and their parameters."""

from __future__ import annotations

from typing import Any

from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.neuron_descriptor import NEURON, NEURON_TYPE_NAMES, NeuronType
from mpsgrad.kernels.pointwise import CHUNKED_ROWS, ELEMENTS_OF_LINE, THREADGROUPS_OF_CLUSTER, THREADS_OF_EIGHTS
from mpsgrad.shader import DEVICE_FAMILIES, ParameterStruct, ShaderFamily
from mpsgrad.tunables import Tunables

PARAMETERS = ParameterStruct(
    "NormalizationParameters",
    **CHUNKED_ROWS,
    channels="int",
    pixels="int",
    previous="int",
    needs_gradients="int",
    exceeds_caches="int",
    epsilon="float",
    neuron=NEURON,
)
"""``pixels`` are those of this encode (for coefficients: of the batch), ``previous`` those of earlier encodes."""
TILES: dict[str, str | ParameterStruct] = {
    "gradient": IMAGE_LAYOUT,
    "source": IMAGE_LAYOUT,
    "destination": IMAGE_LAYOUT,
    "rows": "int",
    "channels": "int",
    "across": "int",
    "row_lanes": "int",
    "tiles": "int",
    "splits": "int",
    "block_rows": "int",
    "blocks": "int",
    "pixels": "int",
    "epsilon": "float",
}
"""Of the kernels for GPUs: the ``rows`` are cut into ``blocks``, the channels into ``tiles`` of ``across`` vectors."""
TILE_PARAMETERS = ParameterStruct("NormalizationTiles", **TILES, joined="int", previous="int", neuron=NEURON)
"""Of ``joined`` pixels that are taken for one, ``channels`` are those of all."""
JOINED_PIXELS = "_of_joined_pixels"
"""How names of kernels of GPUs end that take several pixels for one."""
LONG_CHANNELS = "_of_long_channels"
"""How those end that take single channels of many pixels, ``STATISTICS_ROWS`` at a time."""
COPY_PARAMETERS = ParameterStruct("CopyParameters", count="int")


THREADS = 256
MERGING_THREADS = 128
ROWS_OF_EIGHTS = 4
"""How many rows a thread of a CPU adds up at a time."""
ELEMENTS_IN_ORDER = 1 << 20
"""Of gradients of so many, CPUs with few registers add up each row on its own."""
ROWS_OF_STATISTICS, COLUMNS_OF_STATISTICS = 32, 8192
"""On CPUs: statistics of so many rows are merged at a time, or of fewer longer ones."""
MOST_SUMMED_COLUMNS, MOST_SUMMED_COLUMNS_OF_GRADIENT = 1024, 8192
"""On CPUs: statistics of rows of more columns would not stay in the nearest cache. Sums of gradients neither, but
simdgroups that add up shorter rows take two to five times as long; with few registers statistics, too, up to twice as
long."""
CHANNELS_OF_MERGE = 64
"""On CPUs: so many a thread has that merges chunks by eights."""
STATISTICS_ROWS, STREAM_ROWS, SUMS_ROWS, GRADIENT_ROWS = 8, 4, 4, 4
"""How many rows a thread of a GPU has on the way at a time in each kernel."""
WITHOUT_NEURON = "batch_statistics", "merge_", "normalization_coefficients"
"""How the names of kernels begin that do the same with every fused neuron: only the shader without one has them."""


def most_summed_columns(images: int, has_many_registers: bool) -> int:
    """Of rows that are added up whole, by a kernel that reads so many images."""
    return MOST_SUMMED_COLUMNS if images == 1 and has_many_registers else MOST_SUMMED_COLUMNS_OF_GRADIENT


def _measured(numbers: Tunables) -> dict[str, Any]:
    """On CPUs with few registers only narrow panels of columns have their sums there, and parts of rows are what caches
    are slow to read."""
    return {
        "sums": numbers.normalization_sums_per_lane,
        "by_sixteens": numbers.has_many_registers,
        "sums_by_panels": numbers.has_many_registers,
        "most_summed_columns": most_summed_columns(1, numbers.has_many_registers),
    }


def _family(name: str, takes_parts: bool = False) -> ShaderFamily:
    common = name in ("none", "relu")
    kind = "batch_normalization_of_parts" if takes_parts else "batch_normalization"
    return ShaderFamily(
        kind if name == "none" else f"{kind}_{name}",
        (IMAGE_LAYOUT, NEURON, PARAMETERS, TILE_PARAMETERS, COPY_PARAMETERS),
        {
            "by_vectors": True,
            "by_eights": False,
            "threads_of_eights": THREADS_OF_EIGHTS,
            "rows_of_eights": ROWS_OF_EIGHTS,
            "elements_in_order": ELEMENTS_IN_ORDER,
            "rows_of_statistics": ROWS_OF_STATISTICS,
            "columns_of_statistics": COLUMNS_OF_STATISTICS,
            "most_summed_columns_of_gradient": MOST_SUMMED_COLUMNS_OF_GRADIENT,
            "channels_of_merge": CHANNELS_OF_MERGE,
            "threads": THREADS,
            "merging_threads": MERGING_THREADS,
            "statistics_rows": STATISTICS_ROWS,
            "stream_rows": STREAM_ROWS,
            "sums_rows": SUMS_ROWS,
            "gradient_rows": GRADIENT_ROWS,
            "calls_functions": True,
            "neuron": name,
            "neuron_types": (name,),
            "per_image": False,
            "in_one": False,
            "takes_parts": takes_parts,
        },
        {"cpu": {"by_vectors": False, "by_eights": True, "threads": 64, "rows": 64, "calls_functions": False}},
        measured=_measured,
        template="batch_normalization",
        ahead_of_time=common and not takes_parts,
        device_families=("apple", "nvidia") if takes_parts else DEVICE_FAMILIES,
    )


FAMILIES = {kind: _family(name) for kind, name in zip(NeuronType, NEURON_TYPE_NAMES, strict=True)}
"""The shaders with each fused neuron; the rarer ones are compiled at their first use."""
FAMILIES_OF_PARTS = {kind: _family(name, True) for kind, name in zip(NeuronType, NEURON_TYPE_NAMES, strict=True)}
"""Those of GPUs whose threads take half a vector, or two channels."""


def _family_in_one(name: str) -> ShaderFamily:
    return ShaderFamily(
        f"batch_normalization_in_one_{name}",
        (IMAGE_LAYOUT, NEURON, PARAMETERS),
        {
            "rows_of_eights": ROWS_OF_EIGHTS,
            "elements_in_order": ELEMENTS_IN_ORDER,
            "rows_of_statistics": ROWS_OF_STATISTICS,
            "columns_of_statistics": COLUMNS_OF_STATISTICS,
            "most_summed_columns_of_gradient": MOST_SUMMED_COLUMNS_OF_GRADIENT,
            "calls_functions": False,
            "neuron": name,
            "neuron_types": (name,),
            "in_one": True,
        },
        measured=_measured,
        template="batch_normalization_in_one",
        ahead_of_time=False,
        device_families=("cpu",),
    )


FAMILIES_IN_ONE = {kind: _family_in_one(NEURON_TYPE_NAMES[kind]) for kind in (NeuronType.NONE, NeuronType.RELU)}
"""For small images on CPUs, where one kernel does all. Those with other neurons are too rare to be joined."""


BY_CHANNELS = "_by_channels"
"""How names of kernels end of whose threads each makes all passes over some channels."""
COLUMNS_OF_PANEL, ROWS_OF_WIDE_PANELS = {"none": 32, "relu": 16}, 1536
"""On CPUs: so many columns have sums and coefficients that fit 16 registers of eight floats. Of more rows of floats the
nearer caches hold 16 columns only."""


def _family_by_channels(name: str) -> ShaderFamily:
    return ShaderFamily(
        f"batch_normalization_by_channels_{name}",
        (IMAGE_LAYOUT, NEURON, PARAMETERS),
        {
            "rows_of_statistics": ROWS_OF_STATISTICS,
            "columns_of_panel": COLUMNS_OF_PANEL[name],
            "rows_of_wide_panels": ROWS_OF_WIDE_PANELS,
            "elements_of_line": ELEMENTS_OF_LINE,
            "calls_functions": False,
            "neuron": name,
            "neuron_types": (name,),
        },
        template="batch_normalization_by_channels",
        ahead_of_time=False,
        device_families=("cpu",),
    )


FAMILIES_BY_CHANNELS = {kind: _family_by_channels(NEURON_TYPE_NAMES[kind]) for kind in FAMILIES_IN_ONE}
"""For images of few pixels and many channels on CPUs."""


def most_elements_in_one(has_many_registers: bool) -> int:
    """Of an image that one thread of a CPU normalizes sooner than three kernels, for all of which others have to be
    woken; of a gradient and its source together."""
    return 7 << 16 if has_many_registers else 1 << 18


AT_ONCE, VECTORS, FOURS, PAIRS = "_at_once_by_", "_of_vectors", "_of_fours", "_of_pairs"
"""How names of kernels go on that own all pixels of their channels, before the number of their threads, and end that
take vectors of channels, or half of one, or two channels."""
FEW_THREADS, MANY_THREADS = 128, 256
"""Of a threadgroup that owns all pixels."""
THREADS_OF_CLUSTER, THREADS_OF_LARGE_CLUSTER = 1024, 4096
"""Of all threadgroups of a cluster that shares them. Where there are no clusters it would be one threadgroup, and the
large one has too many threads for that."""
ROWS_AT_ONCE = 8
"""How many rows each of these threads has in its registers."""
IN_MEMORY, IN_LARGE_MEMORY = "_in_memory", "_in_large_memory"
"""How the number of threads goes on in names of kernels of large clusters that have the rows in threadgroup memory."""
KEPT_BYTES = {IN_MEMORY: 104 << 10, IN_LARGE_MEMORY: 208 << 10}
"""So many each threadgroup has of it: a compute unit has two threadgroups, or one."""
MOST_CHANNELS_AT_ONCE, MOST_CHANNELS_IN_MEMORY = 16, 32
"""That lie side by side, of such a threadgroup or cluster: a power of two of vectors, parts of these or channels."""


def _family_at_once(name: str, threads: int, in_memory: str = "") -> ShaderFamily:
    is_cluster = threads >= THREADS_OF_CLUSTER
    return ShaderFamily(
        f"batch_normalization_at_once_by_{threads}{in_memory}_{name}",
        (IMAGE_LAYOUT, NEURON, TILE_PARAMETERS),
        {
            "threads": threads,
            "parts": THREADGROUPS_OF_CLUSTER if threads == THREADS_OF_LARGE_CLUSTER else 1,
            "has_narrow_vectors": is_cluster,
            "rows_of_thread": ROWS_AT_ONCE,
            "in_memory": in_memory,
            "kept_bytes": KEPT_BYTES.get(in_memory, 0),
            "most_channels": MOST_CHANNELS_IN_MEMORY if in_memory else MOST_CHANNELS_AT_ONCE,
            "calls_functions": True,
            "neuron": name,
            "neuron_types": (name,),
        },
        {"nvidia": {"parts": THREADGROUPS_OF_CLUSTER}} if is_cluster else {},
        template="batch_normalization_at_once",
        ahead_of_time=False,
        device_families=("nvidia",) if is_cluster else ("apple", "nvidia"),
    )


NEURONS_AT_ONCE = NeuronType.NONE, NeuronType.RELU
"""Images with other neurons are too rare to be normalized at once."""
FAMILIES_AT_ONCE = {
    f"{threads}{in_memory}": {
        kind: _family_at_once(NEURON_TYPE_NAMES[kind], threads, in_memory) for kind in NEURONS_AT_ONCE
    }
    for threads, in_memory in (
        *((threads, "") for threads in (FEW_THREADS, MANY_THREADS, THREADS_OF_CLUSTER, THREADS_OF_LARGE_CLUSTER)),
        *((THREADS_OF_LARGE_CLUSTER, in_memory) for in_memory in KEPT_BYTES),
    )
}
"""For images of few pixels on GPUs. Where there are no clusters, their threads are one threadgroup, for tests."""


def families_of(function_name: str) -> dict[NeuronType, ShaderFamily]:
    """Those that have the kernel, as the end of its name says."""
    _, is_at_once, rest = function_name.partition(AT_ONCE)
    if is_at_once:
        return FAMILIES_AT_ONCE[rest.partition("_of_")[0]]
    if function_name.endswith(BY_CHANNELS):
        return FAMILIES_BY_CHANNELS
    return FAMILIES_OF_PARTS if function_name.endswith((FOURS, PAIRS)) else FAMILIES


def width_of(function_name: str, vector: int) -> int:
    """How many channels such a kernel takes at a time, where vectors have ``vector``."""
    return next((width for end, width in ((VECTORS, vector), (FOURS, 4), (PAIRS, 2)) if function_name.endswith(end)), 1)


def ending_of(width: int, vector: int) -> str:
    """How names of kernels end that take ``width`` channels at a time."""
    return VECTORS if width == vector else {1: "", 2: PAIRS, 4: FOURS}[width]
