"""Losses of single elements: their dispatches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.image import Image
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.loss_descriptor import LossType
from mpsgrad.kernels.loss_soft_max import add_reduction
from mpsgrad.kernels.loss_terms import NOWHERE, LossTerms
from mpsgrad.kernels.pointwise import ASSUMED_COMPUTE_UNITS, Layout, merge_channels, values_of_vector
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import tunables

THREADS, THREADS_OF_CPU = 256, 128
BRIEF_TYPES = (
    LossType.MEAN_SQUARED_ERROR,
    LossType.MEAN_ABSOLUTE_ERROR,
    LossType.HUBER,
    LossType.HINGE,
    LossType.COSINE_DISTANCE,
    LossType.KULLBACK_LEIBLER_DIVERGENCE,
)
"""They, or their derivatives, take so little that CPUs have loops for each."""
_NAMES = {kind.name.lower(): int(kind) for kind in LossType if kind is not LossType.SOFTMAX_CROSS_ENTROPY}
SIMDGROUPS_PER_UNIT = 64
"""As many as a compute unit of a large GPU runs at a time: more would leave more sums for one threadgroup to add up."""

PARAMETERS = ParameterStruct(
    "LossElementParameters",
    source=IMAGE_LAYOUT,
    labels=IMAGE_LAYOUT,
    weights=IMAGE_LAYOUT,
    elements=IMAGE_LAYOUT,
    loss_gradients=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    loss_type="int",
    chunks="int",
    pixels_per_simdgroup="int",
    shares_per_image="int",
    elements_per_share="int",
    has_weights="int",
    writes_elements="int",
    has_gradient_per_element="int",
    has_scales="int",
    weight="float",
    label_scale="float",
    label_shift="float",
    epsilon="float",
    delta="float",
    scale="float",
)
FAMILY = ShaderFamily(
    "loss_elements",
    (IMAGE_LAYOUT, PARAMETERS),
    {
        "threads": THREADS,
        "types": _NAMES,
        "neuron_types": (),
        "calls_functions": False,
        "by_vectors": True,
        "brief_types": (),
    },
    {
        "cpu": {
            "threads": THREADS_OF_CPU,
            "by_vectors": False,
            "brief_types": tuple(kind.name.lower() for kind in BRIEF_TYPES),
        }
    },
    ahead_of_time=False,
)


class _Shares:
    """The elements of a loss, cut into shares of one simdgroup each.

    ``images`` are what a kernel takes besides the terms, or None; their names are those of ``PARAMETERS``. Axes are
    joined where they follow each other in all images, the images of a batch only if the kernel ``joins_images``.
    """

    def __init__(
        self, command_buffer: CommandBuffer, terms: LossTerms, joins_images: bool, **images: Image | None
    ) -> None:
        self._command_buffer, self._terms = command_buffer, terms
        present = {"source": terms.source, "labels": terms.labels, "weights": terms.weights, **images}
        given = {name: image.layout for name, image in present.items() if image is not None}
        self._layouts = dict(zip(given, _joined(list(given.values()), joins_images), strict=True))
        device = command_buffer.device
        _, _, _, _, width, height, run, self.images = self._layouts["source"]
        values = values_of_vector(terms.source.channel_format.metal_type)
        is_cpu = device.family == "cpu"
        self._shares_of_threadgroup = (THREADS_OF_CPU if is_cpu else THREADS) // 32
        self._variant = ""
        if not is_cpu and width == height == 1:
            self._variant = "_of_vectors" if _are_whole_vectors(self._layouts.values(), values) else "_of_several"
            wanted = SIMDGROUPS_PER_UNIT * (device.compute_units or ASSUMED_COMPUTE_UNITS)
            self._chunk = 32 * values * -(-run * self.images // (wanted * 32 * values))
        else:
            self._chunk = tunables(device.tuning).neuron_elements_per_simdgroup
        self._chunks = -(-run // self._chunk)
        self._pixels = max(1, self._chunk // run)
        self.per_image = self._chunks * -(-(width * height) // self._pixels)

    @property
    def count(self) -> int:
        return self.images * self.per_image

    def add_dispatch(self, name: str, *buffers: Buffer, **values: Any) -> None:
        """One run of ``name`` with ``buffers`` after those of source, labels and weights."""
        terms, device = self._terms, self._command_buffer.device
        label_scale, label_shift = terms.smoothing
        everything: dict[str, Any] = {
            "loss_type": int(terms.descriptor.loss_type),
            "chunks": self._chunks,
            "pixels_per_simdgroup": self._pixels,
            "shares_per_image": self.per_image,
            "elements_per_share": self._chunk,
            "has_weights": int(terms.weights is not None),
            "writes_elements": 0,
            "has_gradient_per_element": 0,
            "has_scales": 0,
            "weight": terms.descriptor.weight,
            "label_scale": label_scale,
            "label_shift": label_shift,
            "epsilon": terms.descriptor.epsilon,
            "delta": terms.descriptor.delta,
            "scale": 1.0,
        }
        for image in ("source", "labels", "weights", "elements", "loss_gradients", "destination"):
            everything[image] = self._layouts.get(image, NOWHERE)
        self._command_buffer.add_dispatch(
            FAMILY.function(device, name + self._variant, terms.source.channel_format.metal_type),
            -(-self.count // self._shares_of_threadgroup),
            terms.source.buffer,
            terms.labels.buffer,
            (terms.weights or terms.labels).buffer,
            *buffers,
            device.constant_buffer(PARAMETERS.pack(**everything | values)),
        )


def _are_whole_vectors(layouts: Iterable[Layout], values: int) -> bool:
    """Whether each image, which is one run, is of vectors of so many ``values``, all of them aligned."""
    return not any(
        number % values for start, _, _, step, *_, channels, _ in layouts for number in (start, step, channels)
    )


def _joined(layouts: Sequence[Layout], joins_images: bool) -> list[Layout]:
    if joins_images:
        return merge_channels(layouts)
    of_one_image = merge_channels([(*layout[:7], 1) for layout in layouts])
    return [(*one[:7], layout[7]) for one, layout in zip(of_one_image, layouts, strict=True)]


def add_loss(
    command_buffer: CommandBuffer,
    terms: LossTerms,
    loss_image: Image,
    destination: Image | None,
    follows_reduction: bool,
) -> None:
    """Writes the reduced loss, or each element's, to ``loss_image``, and the gradient to ``destination`` unless None.

    The gradient is that of the reduced loss if it ``follows_reduction``, else that of the sum.
    """
    counts_first = follows_reduction and terms.counts_weights
    if destination is None or counts_first:
        scales = _add_values(command_buffer, terms, loss_image, counts_first)
        if destination is not None and scales is not None:
            one = command_buffer.device.constant_buffer(np.float32(1).tobytes())
            shares = _Shares(command_buffer, terms, terms.across_batch, destination=destination)
            shares.add_dispatch("loss_elements_gradient_for_source", one, destination.buffer, scales, has_scales=1)
        return
    scale = terms.scale if follows_reduction else 1.0
    _add_values(command_buffer, terms, loss_image, follows_reduction, destination, scale)


def _add_values(
    command_buffer: CommandBuffer,
    terms: LossTerms,
    loss_image: Image | None,
    scales_gradient: bool,
    destination: Image | None = None,
    scale: float = 1.0,
) -> Buffer | None:
    """Writes the losses, and the gradient times ``scale`` to ``destination``; returns the reduction's scales if any."""
    elements = loss_image if terms.unreduced else None
    joins = terms.across_batch or terms.unreduced
    shares = _Shares(command_buffer, terms, joins, elements=elements, destination=destination)
    losses, counts = (command_buffer.scratch(4 * shares.count) for _ in range(2))
    shares.add_dispatch(
        "loss_elements" if destination is None else "loss_elements_and_gradient",
        losses if elements is None else elements.buffer,
        *(() if destination is None else (destination.buffer,)),
        losses,
        counts,
        writes_elements=int(terms.unreduced),
        scale=scale,
    )
    if terms.unreduced:
        return None
    return add_reduction(
        command_buffer,
        terms,
        losses,
        counts,
        shares.count if terms.across_batch else shares.per_image,
        loss_image=loss_image,
        scales_gradient=scales_gradient,
    )


def add_gradient(
    command_buffer: CommandBuffer, terms: LossTerms, loss_gradient: Image, destination: Image, of_labels: bool
) -> None:
    """Writes the gradient for the source, or for the labels, given that for the loss image."""
    scale, scales = terms.scale, None
    if terms.counts_weights:
        scale, scales = 1.0, _add_values(command_buffer, terms, None, True)
    per_element = loss_gradient if terms.unreduced else None
    joins = terms.across_batch or terms.unreduced
    shares = _Shares(command_buffer, terms, joins, loss_gradients=per_element, destination=destination)
    values: dict[str, Any] = {}
    if per_element is None:
        values["loss_gradients"] = terms.layout_of_loss_gradient(loss_gradient)
    shares.add_dispatch(
        f"loss_elements_gradient_for_{'labels' if of_labels else 'source'}",
        loss_gradient.buffer,
        destination.buffer,
        scales or loss_gradient.buffer,
        has_gradient_per_element=int(terms.unreduced),
        has_scales=int(scales is not None),
        scale=scale * (terms.smoothing[0] if of_labels else 1.0),
        **values,
    )
