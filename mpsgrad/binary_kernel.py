"""``BinaryKernel``: the base of kernels with two source images."""

from __future__ import annotations

from mpsgrad.base_kernel import BaseKernel
from mpsgrad.errors import GeometryError
from mpsgrad.geometry import MAXIMUM, EdgeMode, Offset
from mpsgrad.image import Image
from mpsgrad.kernel_property import EdgeModeProperty, IntegerProperty, OffsetProperty


class BinaryKernel(BaseKernel):
    """A kernel with two source images, the primary and the secondary. Source: ``MPSCNNBinaryKernel``."""

    primary_offset = OffsetProperty(
        Offset(), "The primary source's pixel under the centre tap of the first pixel written.", configures=True
    )
    secondary_offset = OffsetProperty(Offset(), "The same for the secondary source.", configures=True)
    primary_edge_mode = EdgeModeProperty(
        EdgeMode.ZERO, "What reads outside the primary source give.", configures=True
    )
    secondary_edge_mode = EdgeModeProperty(
        EdgeMode.ZERO, "What reads outside the secondary source give.", configures=True
    )
    primary_source_feature_channel_offset = IntegerProperty(
        0, "The first channel of the primary source that is read; a multiple of 4.", multiple_of=4, configures=True
    )
    secondary_source_feature_channel_offset = IntegerProperty(
        0, "The same for the secondary source.", multiple_of=4, configures=True
    )
    primary_source_feature_channel_max_count = IntegerProperty(
        MAXIMUM, "The largest number of channels of the primary source that are read.", minimum=1, configures=True
    )
    secondary_source_feature_channel_max_count = IntegerProperty(
        MAXIMUM, "The same for the secondary source.", minimum=1, configures=True
    )
    primary_stride_in_pixels_x = IntegerProperty(1, "Stride along x in the primary source.", minimum=1)
    primary_stride_in_pixels_y = IntegerProperty(1, "Stride along y in the primary source.", minimum=1)
    secondary_stride_in_pixels_x = IntegerProperty(1, "Stride along x in the secondary source.", minimum=1)
    secondary_stride_in_pixels_y = IntegerProperty(1, "Stride along y in the secondary source.", minimum=1)

    @property
    def primary_kernel_width(self) -> int:
        return self._window[0]

    @property
    def primary_kernel_height(self) -> int:
        return self._window[1]

    @property
    def secondary_kernel_width(self) -> int:
        return self._window[0]

    @property
    def secondary_kernel_height(self) -> int:
        return self._window[1]

    @property
    def primary_dilation_rate_x(self) -> int:
        return self._window[4]

    @property
    def primary_dilation_rate_y(self) -> int:
        return self._window[5]

    @property
    def secondary_dilation_rate_x(self) -> int:
        return self._window[4]

    @property
    def secondary_dilation_rate_y(self) -> int:
        return self._window[5]

    def _channels_of(self, image: Image, which: str) -> int:
        first = getattr(self, f"{which}_source_feature_channel_offset")
        available = image.feature_channels - first
        if available <= 0:
            raise GeometryError(
                f"{type(self).__name__}: {which}_source_feature_channel_offset is {first} but that image has "
                f"{image.feature_channels} feature channels"
            )
        return min(available, getattr(self, f"{which}_source_feature_channel_max_count"))
