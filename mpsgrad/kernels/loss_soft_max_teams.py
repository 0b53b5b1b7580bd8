"""Softmax cross-entropy with its gradient on GPUs: which lanes own a pixel, and how many of its channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpsgrad.devices import Device, Function
from mpsgrad.image import Image
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.pointwise import ASSUMED_COMPUTE_UNITS, merge_pixels
from mpsgrad.shader import ParameterStruct, ShaderFamily

THREADS = 256
LARGEST_TEAM = 32
"""As many lanes as a simdgroup has."""
CHANNELS_OF_LANE, CHANNELS_OF_FEW = 8, 4
"""So many a lane keeps of its pixel, of floats the second number where pixels have no more than the first; more only
where a team has no more lanes."""
VECTORS_OF_LANE = {1: (1, 2, 4, 8, 16), 4: (1, 2, 4)}
"""By the channels of a vector: four where all pixels begin at one. Longer pixels are spread over threadgroups."""
LEAST_SPREAD, FEWEST_PIXELS_PER_UNIT = 256, 16
"""Fewer pixels of so many channels are spread over threadgroups, which keeps more threads busy."""

PARAMETERS = ParameterStruct(
    "LossParameters",
    source=IMAGE_LAYOUT,
    labels=IMAGE_LAYOUT,
    weights=IMAGE_LAYOUT,
    elements=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    has_weights="int",
    writes_elements="int",
    joins_pixels="int",
    pixels_per_thread="int",
    team="int",
    weight="float",
    label_scale="float",
    label_shift="float",
    scale="float",
)
FAMILIES = {
    width: ShaderFamily(
        f"loss_soft_max_of_teams_by_{width}",
        (IMAGE_LAYOUT, PARAMETERS),
        {"threads": THREADS, "width": width, "vectors_of_lane": vectors},
        template="loss_soft_max_of_teams",
        ahead_of_time=False,
        device_families=("gpu",),
    )
    for width, vectors in VECTORS_OF_LANE.items()
}
"""By the channels of a vector."""


class Teams(NamedTuple):
    """``lanes`` of a simdgroup own a pixel, and each of them up to ``vectors`` of ``width`` of its channels."""

    lanes: int
    vectors: int
    width: int

    @property
    def pixels_of_threadgroup(self) -> int:
        return THREADS // self.lanes

    def function(self, device: Device, metal_type: str) -> Function:
        name = f"loss_soft_max_cross_entropy_and_gradient_of_teams_{self.vectors}"
        return FAMILIES[self.width].function(device, name, metal_type)


def teams_for(source: Image, others: Sequence[Image]) -> Teams | None:
    """How lanes share the pixels of ``source``, and those of ``others``; None where they do not."""
    device, channels = source.device, source.feature_channels
    pixels = source.width * source.height * source.number_of_images
    layouts = [image.layout for image in (source, *others)]
    _, _, _, _, _, lines, _, images = merge_pixels(layouts)[0]
    if device.family == "cpu" or lines > 1 or images > 1:
        return None
    units = device.compute_units or ASSUMED_COMPUTE_UNITS
    if channels >= LEAST_SPREAD and pixels < FEWEST_PIXELS_PER_UNIT * units:
        return None
    width = 4 if all(number % 4 == 0 for start, pixel, *_ in layouts for number in (start, pixel, channels)) else 1
    count = channels // width
    are_few_floats = channels <= CHANNELS_OF_LANE and source.channel_format.metal_type == "float"
    wanted = -(-channels // (CHANNELS_OF_FEW if are_few_floats else CHANNELS_OF_LANE))
    lanes = min(LARGEST_TEAM, 1 << (wanted - 1).bit_length())
    vectors = next((most for most in VECTORS_OF_LANE[width] if count <= most * lanes), None)
    return None if vectors is None else Teams(lanes, vectors, width)
