"""Sums of two images that enter a neuron, and sums of gradients that enter its gradient: one dispatch on CPUs."""

from __future__ import annotations

from mpsgrad.devices import Dispatch
from mpsgrad.kernels import arithmetic_family, neuron_dispatch
from mpsgrad.kernels.neuron_descriptor import NEURON, NEURON_TYPE_NAMES, NeuronType
from mpsgrad.kernels.pointwise import THREADS_OF_EIGHTS
from mpsgrad.kernels.strides import STRUCTS
from mpsgrad.neighbouring_dispatches import join_when_adjacent
from mpsgrad.shader import IMAGE_LAYOUT, ShaderFamily

NEURON_NAME = NEURON_TYPE_NAMES[NeuronType.RELU]
FAMILY = ShaderFamily(
    "addition_and_neuron",
    (IMAGE_LAYOUT, NEURON, *STRUCTS, arithmetic_family.PARAMETERS, neuron_dispatch.PARAMETERS),
    {"threads_of_eights": THREADS_OF_EIGHTS, "neuron_types": (NEURON_NAME,), "calls_functions": False},
    dtypes=("float",),
    ahead_of_time=False,
    device_families=("cpu",),
)


def _join(addition: Dispatch, following: Dispatch) -> Dispatch | None:
    """Both at once, or None for a neuron of something else than the sum, and for images that overlap."""
    device = addition.buffers[0].device
    families = (arithmetic_family.FAMILY, addition), (neuron_dispatch.FAMILIES[NeuronType.RELU], following)
    if any(family.dtype_of(dispatch.function, device) != "float" for family, dispatch in families):
        return None
    *terms, total, numbers = addition.buffers
    entering, *sources, destination, numbers_of_neuron = following.buffers
    if entering is not total:
        return None
    p, q = arithmetic_family.PARAMETERS.values_in(numbers), neuron_dispatch.PARAMETERS.values_in(numbers_of_neuron)
    operands = p["primary"], p["secondary"], p["destination"]
    extents, count = p["extents"], int(q["destination"]["channels"])
    if (
        (extents["x"], extents["y"], extents["z"], extents["run"]) != (1, 1, 1, count)
        or any(operand["step"] != 1 for operand in operands)
        # Others might be rounded otherwise by another kernel.
        or (p["primary_scale"], p["secondary_scale"]) != (1, 1)
        or q["gradient" if sources else "source"]["offset"] != p["destination"]["offset"]
    ):
        return None
    first, second, made = (
        buffer.address + 4 * int(operand["offset"]) for buffer, operand in zip((*terms, total), operands, strict=True)
    )
    read = [source.address + 4 * int(q["source"]["offset"]) for source in sources]
    written = destination.address + 4 * int(q["destination"]["offset"])
    nbytes = 4 * count
    in_place = all(
        one == other or abs(one - other) >= nbytes
        for one, other in ((made, first), (made, second), *((written, place) for place in (made, first, second, *read)))
    )
    if not in_place or any(abs(made - place) < nbytes for place in read):
        return None
    name = f"add_and_{following.function.name.removesuffix('_of_eights')}"
    buffers = *terms, total, *sources, destination, numbers, numbers_of_neuron
    return Dispatch(FAMILY.function(device, name, "float"), following.threadgroups, buffers)


def join_neurons() -> None:
    """Has ``CommandBuffer`` join a sum with the neuron behind it."""
    for kernel in (f"neuron_{NEURON_NAME}", f"neuron_{NEURON_NAME}_gradient"):
        join_when_adjacent(_join, "add_by_eights", f"{kernel}_of_eights")
