"""The base of gradient kernels for one of the two images that a forward kernel read."""

from __future__ import annotations

from typing import Any, ClassVar

from mpsgrad.devices import Device
from mpsgrad.geometry import MAXIMUM, Offset, Origin, Region, Size, flag
from mpsgrad.image import ImageDescriptor
from mpsgrad.kernel import GradientKernel
from mpsgrad.state import ForwardSnapshot


class _GradientOfOneImage(GradientKernel):
    """The gradient with respect to the primary or the secondary image of a forward kernel with two.

    ``is_secondary_source_filter`` says which.
    """

    takes_binary_states = True
    takes_the_other_image: ClassVar[bool] = False
    """Whether ``source_image`` is the forward image that is not differentiated."""

    # objc: -initWithDevice:isSecondarySourceFilter:
    def __init__(
        self, *, is_secondary_source_filter: bool = False, device: Device | None = None, label: str | None = None
    ) -> None:
        super().__init__(device=device, label=label)
        self._is_secondary = flag(type(self).__name__, "is_secondary_source_filter", is_secondary_source_filter)

    @property
    def is_secondary_source_filter(self) -> bool:
        """Whether the gradient is that of the forward kernel's secondary image."""
        return self._is_secondary

    def _snapshot_of(self, state: Any) -> ForwardSnapshot:
        return state.secondary if self._is_secondary else state.primary

    def _other_snapshot(self, state: Any) -> ForwardSnapshot:
        return state.primary if self._is_secondary else state.secondary

    def _source_snapshot(self, state: Any) -> ForwardSnapshot:
        return self._other_snapshot(state) if self.takes_the_other_image else self._snapshot_of(state)

    def _expected_source(self, state: Any) -> ImageDescriptor:
        return self._source_snapshot(state).source

    def _configure_from(self, state: Any) -> None:
        super()._configure_from(state)
        source = self._source_snapshot(state)
        if source.source.number_of_images - source.offset.z != source.images:
            # The forward kernel did not read all images of the one that is not differentiated.
            first = self._snapshot_of(state).offset.z
            self._configure(clip_rect=Region(Origin(0, 0, first), Size(MAXIMUM, MAXIMUM, source.images)))
        self._configure(
            secondary_offset=Offset(0, 0, source.offset.z),
            secondary_edge_mode=source.edge_mode,
            secondary_source_feature_channel_offset=source.source_feature_channel_offset,
            secondary_source_feature_channel_max_count=source.source_feature_channel_max_count,
        )
