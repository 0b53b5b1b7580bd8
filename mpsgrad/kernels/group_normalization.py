"""Instance and group normalization, and their gradients."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import EdgeMode
from mpsgrad.image import Image
from mpsgrad.kernel import GradientKernel, Regions
from mpsgrad.kernels.group_normalization_data_source import GAMMA_AND_BETA, checked_groups
from mpsgrad.kernels.group_normalization_dispatch import ImagePasses, passes_of
from mpsgrad.kernels.group_normalization_state import (
    MEANS,
    VARIANCES,
    GroupNormalizationGradientState,
    InstanceNormalizationGradientState,
    _Encode,
    _ImageNormalizationGradientState,
)
from mpsgrad.kernels.normalization_encoder import NumbersOfChannels
from mpsgrad.kernels.normalization_kernel import NormalizationKernel
from mpsgrad.kernels.pointwise import Layout, Operand, require_no_clamped_reads


class _ImageNormalization(NormalizationKernel):
    """What instance and group normalization share: statistics of each image on its own."""

    remembers_encodes = True

    data_source_arrays = GAMMA_AND_BETA
    _state_class: ClassVar[type[_ImageNormalizationGradientState]]

    # objc: -initWithDevice:dataSource:
    def __init__(self, data_source: Any, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)
        self._load(data_source)

    @property
    def channels_per_group(self) -> int:
        """How many feature channels that follow each other have common statistics."""
        raise NotImplementedError

    def _passes(
        self,
        command_buffer: CommandBuffer,
        source: Image,
        layout: Layout,
        numbers_of_channels: NumbersOfChannels,
        epsilon: float,
        first_image: int,
    ) -> ImagePasses:
        """The passes over ``layout`` of ``source``."""
        _, _, _, _, width, height, _, images = layout
        return passes_of(
            command_buffer,
            source.channel_format.metal_type,
            self._count,
            numbers_of_channels,
            epsilon,
            channels_per_group=self.channels_per_group,
            images=images,
            pixels=width * height,
            first_image=first_image,
        )

    def _make_state(
        self, source: Image, destination: Image, command_buffer: CommandBuffer | None
    ) -> _ImageNormalizationGradientState:
        return self._state_class(self, self._shared_snapshot(source, destination), command_buffer=command_buffer)

    def _encode_aspects(self, state: Any) -> Hashable:
        return self._epsilon

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        return {index: self._gamma_and_beta.resource(index) for index in (0, 1)}

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        return self._gamma_and_beta._encode_buffer(name, command_buffer)

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        self._gamma_and_beta._require_available(type(self).__name__, command_buffer)

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if state is not None:
            images, encode = state._images, _Encode(command_buffer, self._gamma_and_beta, self._epsilon)
            state._contents.statistics.set(command_buffer, images, encode)
            state._contents.gradients.set(command_buffer, images, None)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        layout = regions.sources[0]
        if state is None:
            *_, channels, images = layout
            means, variances = (command_buffer.scratch(4 * channels * images) for _ in range(2))
            row = 0
        else:
            means, variances, row = state.resource(MEANS), state.resource(VARIANCES), state._images[0]
        gamma, beta = map(self._gamma_and_beta.resource, (0, 1))
        numbers = (means, variances, gamma, beta)
        passes = self._passes(command_buffer, source, layout, numbers, self._epsilon, row)
        operand = Operand(layout, self.offset.x, self.offset.y, self.edge_mode is EdgeMode.CLAMP)
        passes.normalize(source, operand, destination, regions.destination)


class InstanceNormalization(_ImageNormalization):
    """``y = gamma (x - mean) / sqrt(variance + epsilon) + beta`` for each image and feature channel.

    Mean and biased variance are those of the channel's pixels in that image, all of them, whatever ``clip_rect``; MPS
    does not say whether it divides by their number or by one less.
    Source: ``MPSCNNInstanceNormalization``. Raises ``FormatError``, ``GeometryError`` or ``StateError`` for an unusable
    data source.
    """

    data_source_name = "InstanceNormalizationDataSource"
    _state_class = InstanceNormalizationGradientState

    @property
    def channels_per_group(self) -> int:
        return 1


class GroupNormalization(_ImageNormalization):
    """``y = gamma (x - mean) / sqrt(variance + epsilon) + beta`` for each image and group of feature channels.

    Mean and biased variance are those of all pixels of the group's channels in that image; channel ``c`` of ``C`` is in
    group ``c * number_of_groups / C``. MPS does not say which channels a group has. Gamma and beta have a value for
    each channel. Source: ``MPSCNNGroupNormalization``. Raises what ``InstanceNormalization`` raises, and
    ``GeometryError`` for groups that do not divide the channels.
    """

    data_source_name = "GroupNormalizationDataSource"
    data_source_properties = ("number_of_groups",)
    _state_class = GroupNormalizationGradientState

    def __init__(self, data_source: Any, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(data_source, device=device, label=label)
        self._groups = checked_groups(type(self).__name__, data_source.number_of_groups, self._count)

    @property
    def number_of_groups(self) -> int:
        """How many groups the channels are divided into."""
        return self._groups

    @property
    def channels_per_group(self) -> int:
        return self._count // self._groups


class _ImageNormalizationGradient(GradientKernel):
    """What both gradients share."""

    remembers_encodes = True

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)

    @property
    def is_state_modified(self) -> bool:
        return True

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        owner = type(self).__name__
        channels = self._channels_of(source_image, "secondary")
        if channels != state._count:
            raise GeometryError(
                f"{owner}: {channels} feature channels are read from source_image "
                f"{source_image.descriptor.shape_text} but gradient_state has {state._count}"
            )
        require_no_clamped_reads(owner, state.snapshot)

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        owner = type(self).__name__
        images = state._images
        encode = state._forward_encode(owner, images)
        encode.gamma_and_beta._require_available(owner, command_buffer)
        for each in state._contents.statistics.values(images):
            command_buffer._reads(owner, "gradient_state", each.command_buffer)

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        first = state._index + self.secondary_offset.z
        known = state._contents.statistics.get(first)
        # That of all of these images: `_forward_encode` says so.
        encode = _Encode(command_buffer, known.gamma_and_beta, known.epsilon)
        state._contents.gradients.set(command_buffer, range(first, first + regions.images), encode)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        owner = type(self).__name__
        source = regions.sources[1]
        images = source[7]
        row = state._index + self.secondary_offset.z
        if not {row, row + images - 1} <= {*state._images}:
            raise GeometryError(
                f"{owner}: images {self.secondary_offset.z} to {self.secondary_offset.z + images} of source_image are "
                f"read but gradient_state is of images {state.snapshot.offset.z} to "
                f"{state.snapshot.offset.z + state.snapshot.images}"
            )
        encode = state._forward_encode(owner, range(row, row + images))
        means, variances, for_gamma, for_beta = map(state.resource, range(4))
        gamma = encode.gamma_and_beta.resource(0)
        numbers = (means, variances, gamma, gamma)
        passes = state._kernel._passes(command_buffer, source_image, source, numbers, encode.epsilon, row)
        passes.differentiate(
            (source_gradient, source_image),
            (
                Operand(*self._pointwise_gradient(regions.sources[0], state)),
                Operand(source, self.secondary_offset.x, self.secondary_offset.y),
            ),
            destination,
            regions.destination,
            (for_gamma, for_beta),
        )


class InstanceNormalizationGradient(_ImageNormalizationGradient):
    """The gradients of ``InstanceNormalization`` for source, gamma and beta.

    Source: ``MPSCNNInstanceNormalizationGradient``.

    With ``xhat = (x - mean) / sqrt(variance + epsilon)`` and means over the pixels of an image::

        dx = gamma / sqrt(variance + epsilon) * (g - mean(g) - xhat * mean(g * xhat))

    The state gets ``gradient_for_gamma = sum g * xhat`` and ``gradient_for_beta = sum g`` of each image.
    """

    forward_kernels = ("InstanceNormalization",)


class GroupNormalizationGradient(_ImageNormalizationGradient):
    """The gradients of ``GroupNormalization`` for source, gamma and beta.

    Source: ``MPSCNNGroupNormalizationGradient``.

    With ``xhat = (x - mean) / sqrt(variance + epsilon)``, ``h = gamma * g``, and means over the pixels and the channels
    of the group::

        dx = (h - mean(h) - xhat * mean(h * xhat)) / sqrt(variance + epsilon)

    The state gets ``gradient_for_gamma = sum g * xhat`` and ``gradient_for_beta = sum g`` of each image and channel.
    """

    forward_kernels = ("GroupNormalization",)
