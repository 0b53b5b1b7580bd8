"""Softmax cross-entropy: its dispatches, and the one that adds up the parts of any loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.image import Image
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.kernels.loss_descriptor import LossReductionType
from mpsgrad.kernels.loss_soft_max_teams import PARAMETERS, Teams, teams_for
from mpsgrad.kernels.loss_terms import NOWHERE, LossTerms
from mpsgrad.kernels.pointwise import VECTORS, rows_per_thread
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.tunables import Tunables, tunables

THREADS, THREADS_OF_CPU = 256, 64
"""The few rows of a batch of classes are to be work for every core of a CPU."""
LEAST_SPREAD, SPREAD = 256, (1024, 2048, 4096)
"""From so many channels on, up to so many, a pixel is spread over the threads of a GPU's threadgroup."""
LONG_PIXEL_THREADS = 1024
"""Those of a threadgroup for a pixel with more."""
FEW_CHANNELS, FEW_CHANNELS_THREADS = 16, 128
"""Up to so many channels are for a thread alone."""
CHANNELS_OF_EIGHT_PIXELS, CHANNELS_OF_EIGHT_PIXELS_OF_FEW_REGISTERS = 7, 32
"""On CPUs: of images of up to so many channels a thread takes one of eight pixels at a time, of others eight of a
pixel, which then has a maximum, a sum and a logarithm of its own to wait for."""
IMAGES_OF_THREAD, MOST_REDUCING = 4, 64
"""Of a GPU, where one value is for the whole batch: what a thread writes of what images get, in threadgroups that each
add up all parts, of which there are so many at most."""

REDUCTION_PARAMETERS = ParameterStruct(
    "LossReductionParameters",
    partials="int",
    images="int",
    reduction="int",
    across_batch="int",
    scales_gradient="int",
    writes_values="int",
    count="float",
    first_term="float",
    first_value="int",
    value_stride="int",
    images_at_once="int",
)


def _channels_of_eight_pixels(numbers: Tunables) -> int:
    return CHANNELS_OF_EIGHT_PIXELS if numbers.has_many_registers else CHANNELS_OF_EIGHT_PIXELS_OF_FEW_REGISTERS


def _measured(numbers: Tunables) -> dict[str, Any]:
    return {
        "pixels": numbers.loss_pixels_per_simdgroup,
        "halves_by_eights": not numbers.has_many_registers,
        "by_sixteens": numbers.has_many_registers,
        "channels_of_eight_pixels": _channels_of_eight_pixels(numbers),
    }


FAMILY = ShaderFamily(
    "loss",
    (IMAGE_LAYOUT, PARAMETERS, REDUCTION_PARAMETERS),
    {
        "threads": THREADS,
        "few_channels": FEW_CHANNELS,
        "few_threads": FEW_CHANNELS_THREADS,
        "spread": (*((most, THREADS) for most in SPREAD), (0, LONG_PIXEL_THREADS)),
        "by_eights": False,
        "reducing_threads": 1024,
        "mean": int(LossReductionType.MEAN),
        "non_zero": int(LossReductionType.SUM_BY_NON_ZERO_WEIGHTS),
    },
    {
        "cpu": {
            "threads": THREADS_OF_CPU,
            "spread": (),
            "by_eights": True,
            "reducing_threads": THREADS,
        }
    },
    measured=_measured,
)
GRADIENT_PARAMETERS = ParameterStruct(
    "LossSoftMaxGradientParameters",
    source=IMAGE_LAYOUT,
    labels=IMAGE_LAYOUT,
    weights=IMAGE_LAYOUT,
    loss_gradients=IMAGE_LAYOUT,
    destination=IMAGE_LAYOUT,
    has_weights="int",
    has_gradient_per_element="int",
    has_scales="int",
    pixels_per_thread="int",
    weight="float",
    label_scale="float",
    label_shift="float",
    scale="float",
)
GRADIENT_FAMILY = ShaderFamily(
    "loss_soft_max_gradient",
    (IMAGE_LAYOUT, GRADIENT_PARAMETERS),
    {"threads": THREADS, "by_eights": False},
    {"cpu": {"threads": THREADS_OF_CPU, "by_eights": True}},
    measured=_measured,
    ahead_of_time=False,
)


def _variant(device: Device, channels: int) -> str:
    """The end of the names of the kernels for pixels of ``channels``; empty for those of which a simdgroup owns one."""
    if channels <= FEW_CHANNELS:
        return "_of_few_channels"
    if device.family == "cpu" or channels < LEAST_SPREAD:
        return ""
    return next((f"_spread_up_to_{most}" for most in SPREAD if channels <= most), f"_spread_over_{LONG_PIXEL_THREADS}")


def _other_images(terms: LossTerms, loss_image: Image | None, destination: Image | None) -> list[Image]:
    """Those that the kernels read and write besides the source."""
    others = [terms.labels, terms.weights, destination, loss_image if terms.unreduced else None]
    return [image for image in others if image is not None]


def _joined_pixels(terms: LossTerms, teams: Teams | None) -> int:
    """Of how many pixels a GPU adds up losses at once: those of a threadgroup, or of a simdgroup's lanes; 1 if none."""
    if not terms.across_batch or terms.source.device.family == "cpu":
        return 1
    if teams is not None:
        return teams.pixels_of_threadgroup
    return 32 if terms.source.feature_channels <= FEW_CHANNELS else 1


def _variant_of_eights(source: Image, others: Sequence[Image]) -> str | None:
    """The same for kernels of CPUs whose threads own some pixels: of these they take eight channels at a time, or
    sixteen, or of fewer channels eight pixels, where those of ``source`` and of ``others`` follow each other. None if
    there is none.
    """
    numbers = tunables(source.device.tuning)
    has_eights = source.channel_format.metal_type == "float" or not numbers.has_many_registers
    if source.device.family != "cpu" or not has_eights:
        return None
    of_channels = f"_of_{VECTORS[numbers.floats_of_register if source.feature_channels >= 16 else 8]}"
    if source.feature_channels > _channels_of_eight_pixels(numbers):
        return of_channels
    for image in (source, *others):
        _, pixel, row, step, width, height, _, images = image.layout
        if (height > 1 and row != width * pixel) or (images > 1 and step != height * width * pixel):
            return of_channels if source.feature_channels >= 8 else None
    return "_of_eight_pixels"


def _pixels_per_thread(source: Image) -> int:
    pixels = source.width * source.height * source.number_of_images
    device = source.device
    return rows_per_thread(pixels, source.feature_channels, device.compute_units, tunables(device.tuning))


def _threads_of_eights(source: Image) -> int:
    pixels = source.width * source.height * source.number_of_images
    return -(-pixels // _pixels_per_thread(source))


def add_reduction(
    command_buffer: CommandBuffer,
    terms: LossTerms,
    losses: Buffer,
    counts: Buffer,
    partials: int,
    *,
    loss_image: Image | None,
    scales_gradient: bool,
) -> Buffer:
    """Adds up ``partials`` sums of ``losses`` and numbers of weights for each image, or for the batch.

    The reduced losses are written to ``loss_image`` if there is one. Returns a buffer with the factor that the gradient
    of each image gets: 1 unless ``scales_gradient``.
    """
    device, images = command_buffer.device, terms.source.number_of_images
    scales = command_buffer.scratch(4 * images)
    function = FAMILY.function(device, "loss_reduce", terms.source.channel_format.metal_type)
    threads, threadgroups = function.threadgroup_size, images
    if terms.across_batch:
        threadgroups = 1 if device.family == "cpu" else min(-(-images // (IMAGES_OF_THREAD * threads)), MOST_REDUCING)
    layout = loss_image.layout if loss_image is not None else NOWHERE
    parameters = REDUCTION_PARAMETERS.pack(
        partials=partials,
        images=images,
        reduction=int(terms.descriptor.reduction_type),
        across_batch=int(terms.across_batch),
        scales_gradient=int(scales_gradient),
        writes_values=int(loss_image is not None),
        count=terms.count,
        first_term=terms.summand * (images if terms.across_batch else 1),
        first_value=layout[0],
        value_stride=layout[3],
        images_at_once=threadgroups * threads if terms.across_batch else images,
    )
    command_buffer.add_dispatch(
        function,
        threadgroups,
        losses,
        counts,
        loss_image.buffer if loss_image is not None else command_buffer.scratch(4),
        scales,
        device.constant_buffer(parameters),
    )
    return scales


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
    is_mean = terms.descriptor.reduction_type is LossReductionType.MEAN
    by_weights = terms.descriptor.reduction_type is LossReductionType.SUM_BY_NON_ZERO_WEIGHTS
    scale = terms.scale if is_mean and follows_reduction else 1.0
    if destination is not None and not (by_weights and follows_reduction):
        teams = teams_for(terms.source, _other_images(terms, loss_image, destination))
        parameters = _parameters(command_buffer, terms, loss_image, destination, scale, teams)
        _add_values(command_buffer, terms, loss_image, parameters, follows_reduction, destination, teams)
        return
    parameters = _parameters(command_buffer, terms, loss_image, destination, scale)
    scales, firsts = _add_values(command_buffer, terms, loss_image, parameters, follows_reduction)
    if destination is not None:
        command_buffer.add_dispatch(
            FAMILY.function(
                command_buffer.device, "loss_soft_max_cross_entropy_gradient", terms.source.channel_format.metal_type
            ),
            _threadgroups(terms),
            *_sources(terms),
            *firsts,
            scales,
            destination.buffer,
            parameters,
        )


def _sources(terms: LossTerms) -> tuple[Buffer, ...]:
    return terms.source.buffer, terms.labels.buffer, (terms.weights or terms.labels).buffer


def _threadgroups(terms: LossTerms) -> int:
    source = terms.source
    pixels = source.width * source.height * source.number_of_images
    threads = THREADS_OF_CPU if source.device.family == "cpu" else THREADS
    return -(-pixels // (tunables(source.device.tuning).loss_pixels_per_simdgroup * (threads // 32)))


def _parameters(
    command_buffer: CommandBuffer,
    terms: LossTerms,
    loss_image: Image | None,
    destination: Image | None,
    scale: float,
    teams: Teams | None = None,
) -> Buffer:
    label_scale, label_shift = terms.smoothing
    return command_buffer.device.constant_buffer(
        PARAMETERS.pack(
            source=terms.source.layout,
            labels=terms.labels.layout,
            weights=terms.weights.layout if terms.weights is not None else NOWHERE,
            elements=loss_image.layout if loss_image is not None else NOWHERE,
            destination=destination.layout if destination is not None else NOWHERE,
            has_weights=int(terms.weights is not None),
            writes_elements=int(terms.unreduced),
            joins_pixels=int(_joined_pixels(terms, teams) > 1),
            pixels_per_thread=_pixels_per_thread(terms.source),
            team=1 if teams is None else teams.lanes,
            weight=terms.descriptor.weight,
            label_scale=label_scale,
            label_shift=label_shift,
            scale=scale,
        )
    )


def _add_values(
    command_buffer: CommandBuffer,
    terms: LossTerms,
    loss_image: Image | None,
    parameters: Buffer,
    scales_gradient: bool,
    destination: Image | None = None,
    teams: Teams | None = None,
) -> tuple[Buffer, tuple[Buffer, ...]]:
    """Writes the losses, and the gradient to ``destination`` if there is one, by ``teams`` if there are any.

    Returns the scales of the reduction and, without ``destination``, the largest channels and the sums of powers.
    """
    source = terms.source
    pixels, images = source.width * source.height, source.number_of_images
    losses, counts = (command_buffer.scratch(4 * pixels * images) for _ in range(2))
    firsts: tuple[Buffer, ...] = ()
    if destination is None:
        firsts = command_buffer.scratch(4 * pixels * images), command_buffer.scratch(4 * pixels * images)
    name = "loss_soft_max_cross_entropy" + ("_and_gradient" if destination is not None else "")
    device, metal_type = command_buffer.device, source.channel_format.metal_type
    if teams is not None:
        function = teams.function(device, metal_type)
        threadgroups = -(-pixels * images // teams.pixels_of_threadgroup)
    else:
        variant = _variant(device, source.feature_channels)
        threadgroups = pixels * images if "spread" in variant else _threadgroups(terms)
        if "few" in variant:
            threadgroups = -(-pixels * images // FEW_CHANNELS_THREADS)
        of_eights = _variant_of_eights(source, _other_images(terms, loss_image, destination))
        if of_eights is not None:
            variant, threadgroups = of_eights, _threads_of_eights(source)
        function = FAMILY.function(device, name + variant, metal_type)
    command_buffer.add_dispatch(
        function,
        threadgroups,
        *_sources(terms),
        losses,
        counts,
        loss_image.buffer if loss_image is not None else losses,
        *(firsts if destination is None else (destination.buffer,)),
        parameters,
    )
    parts = pixels * images if terms.across_batch else pixels
    scales = add_reduction(
        command_buffer,
        terms,
        losses,
        counts,
        -(-parts // _joined_pixels(terms, teams)),
        loss_image=None if terms.unreduced else loss_image,
        scales_gradient=scales_gradient,
    )
    return scales, firsts


def add_gradient(
    command_buffer: CommandBuffer, terms: LossTerms, loss_gradient: Image, destination: Image, of_labels: bool
) -> None:
    """Writes the gradient for the source, or for the labels, given that for the loss image."""
    scale, scales = terms.scale, None
    if terms.counts_weights:
        parameters = _parameters(command_buffer, terms, None, None, 1.0)
        scale, scales = 1.0, _add_values(command_buffer, terms, None, parameters, True)[0]
    label_scale, label_shift = terms.smoothing
    values = GRADIENT_PARAMETERS.pack(
        source=terms.source.layout,
        labels=terms.labels.layout,
        weights=terms.weights.layout if terms.weights is not None else NOWHERE,
        loss_gradients=terms.layout_of_loss_gradient(loss_gradient),
        destination=destination.layout,
        has_weights=int(terms.weights is not None),
        has_gradient_per_element=int(terms.unreduced),
        has_scales=int(scales is not None),
        pixels_per_thread=_pixels_per_thread(terms.source),
        weight=terms.descriptor.weight,
        label_scale=label_scale,
        label_shift=label_shift,
        scale=scale,
    )
    name, threadgroups = f"loss_soft_max_gradient_for_{'labels' if of_labels else 'source'}", _threadgroups(terms)
    others = [terms.labels, terms.weights, loss_gradient if terms.unreduced else None, destination]
    of_eights = _variant_of_eights(terms.source, [image for image in others if image is not None])
    if not of_labels and of_eights is not None:
        name, threadgroups = f"{name}{of_eights}", _threads_of_eights(terms.source)
    command_buffer.add_dispatch(
        GRADIENT_FAMILY.function(command_buffer.device, name, terms.source.channel_format.metal_type),
        threadgroups,
        *_sources(terms),
        loss_gradient.buffer,
        destination.buffer,
        scales or loss_gradient.buffer,
        command_buffer.device.constant_buffer(values),
    )
