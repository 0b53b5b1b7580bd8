"""Padding policies: how large a result is, and where the first window lies. Source: ``MPSNNPadding``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mpsgrad.checked_attribute import fixed, text_or_none
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import EdgeMode, Offset, integer
from mpsgrad.image import Image, ImageDescriptor

if TYPE_CHECKING:
    from mpsgrad.kernel import Kernel
    from mpsgrad.state import State


class PaddingMethod(enum.IntFlag):
    """The bits of a padding policy: one alignment, one remainder and one size, and markers.

    Source: ``MPSNNPaddingMethod``.
    """

    ALIGN_CENTERED = 0
    ALIGN_TOP_LEFT = 1
    ALIGN_BOTTOM_RIGHT = 2
    ALIGN_MASK = 3
    ADD_REMAINDER_TO_TOP_LEFT = 0
    ADD_REMAINDER_TO_TOP_RIGHT = 1 << 2
    ADD_REMAINDER_TO_BOTTOM_LEFT = 2 << 2
    ADD_REMAINDER_TO_BOTTOM_RIGHT = 3 << 2
    ADD_REMAINDER_TO_MASK = 3 << 2
    SIZE_VALID_ONLY = 0
    SIZE_SAME = 1 << 4
    SIZE_FULL = 2 << 4
    SIZE_MASK = 0x7F0
    CUSTOM_ALLOW_FOR_NODE_FUSION = 1 << 13
    CUSTOM = 1 << 14
    EXCLUDE_EDGES = 1 << 15


_REMAINDER_RIGHT = 1 << 2
_REMAINDER_BOTTOM = 2 << 2
_ALIGNMENTS = (PaddingMethod.ALIGN_CENTERED, PaddingMethod.ALIGN_TOP_LEFT, PaddingMethod.ALIGN_BOTTOM_RIGHT)
_STYLES = {PaddingMethod.SIZE_VALID_ONLY: -1, PaddingMethod.SIZE_SAME: 0, PaddingMethod.SIZE_FULL: 1}
"""How many times a window without its first pixel a result is larger than its source, at a stride of 1."""
_BITS = 0xE7FF
"""All that have a meaning."""


@runtime_checkable
class Padding(Protocol):
    """What a kernel asks of its ``padding``.

    A policy whose method has the ``CUSTOM`` bit also needs ``destination_image_descriptor(source_images,
    source_states, kernel, suggested_descriptor)``, which returns a descriptor and sets the kernel's ``offset``.
    """

    @property
    def padding_method(self) -> PaddingMethod:
        """The bits of the policy."""
        ...


class DefaultPadding:
    """The built-in policies. Source: ``MPSNNDefaultPadding``.

    Along one axis, for ``n`` source pixels, stride ``s`` and a dilated window of ``k`` pixels, with ``style`` -1, 0 or
    1 for valid, same and full::

        size   = (n + style * (k - 1) + s - 1) / s
        extra  = (size - 1) * s + k - n
        left   = (extra + r) / 2       # r is 1 if the remainder goes to the top or left
        offset = k / 2 - left

    with divisions that truncate toward zero. Aligned to the top left all padding lies there (``left = extra``), to the
    bottom right none (``left = 0``).
    """

    label: str | None = fixed("_label", "What messages call the policy, or None.")

    def __init__(self, method: PaddingMethod | int, *, label: str | None = None) -> None:
        self._method = PaddingMethod(integer(type(self).__name__, "method", method, 0))
        self._label = text_or_none(type(self).__name__, "label", label)
        for name, mask, known in (
            ("alignment", PaddingMethod.ALIGN_MASK, _ALIGNMENTS),
            ("size", PaddingMethod.SIZE_MASK, _STYLES),
        ):
            if self._method & mask not in known:
                raise FormatError(f"DefaultPadding: method {int(method):#x} has an unknown {name}")
        if self._method & ~_BITS:
            raise FormatError(
                f"DefaultPadding: method {int(method):#x} has bits {int(self._method) & ~_BITS:#x}, which mean nothing"
            )

    @property
    def padding_method(self) -> PaddingMethod:
        """The bits of the policy."""
        return self._method

    # objc: +paddingWithMethod:
    @classmethod
    def with_method(cls, method: PaddingMethod | int) -> DefaultPadding:
        """The policy with these bits."""
        return cls(method)

    # objc: +paddingForTensorflowAveragePooling
    @classmethod
    def for_tensorflow_average_pooling(cls) -> DefaultPadding:
        """Same size, remainder to the bottom right, and the kernel's edge mode set to clamp."""
        return TensorflowAveragePooling(PaddingMethod.SIZE_SAME)

    # objc: +paddingForTensorflowAveragePoolingValidOnly
    @classmethod
    def for_tensorflow_average_pooling_valid_only(cls) -> DefaultPadding:
        """The same with windows inside the image only."""
        return TensorflowAveragePooling(PaddingMethod.SIZE_VALID_ONLY)

    def inverse(self) -> DefaultPadding:
        """The policy of the filter that undoes one with this policy: valid and full change places.

        It is a built-in policy also where this one is custom.
        """
        size = self._method & PaddingMethod.SIZE_MASK
        opposite = {
            PaddingMethod.SIZE_VALID_ONLY: PaddingMethod.SIZE_FULL,
            PaddingMethod.SIZE_SAME: PaddingMethod.SIZE_SAME,
            PaddingMethod.SIZE_FULL: PaddingMethod.SIZE_VALID_ONLY,
        }[PaddingMethod(size)]
        kept = self._method & ~(PaddingMethod.SIZE_MASK | PaddingMethod.CUSTOM)
        return DefaultPadding(kept | opposite, label=self._label)

    def archive_fields(self) -> dict[str, Any]:
        """What the policy is rebuilt from."""
        return {"method": int(self._method), "label": self._label}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultPadding) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        """What two policies that do the same have in common, by whichever class."""
        return getattr(type(self), "destination_image_descriptor", None), self._method

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._method!r})"


class TensorflowAveragePooling(DefaultPadding):
    """Windows that shrink at the edges as TensorFlow's average pooling does; ``size`` is same or valid only."""

    def __init__(self, size: PaddingMethod | int) -> None:
        super().__init__(
            PaddingMethod.CUSTOM
            | PaddingMethod(integer(type(self).__name__, "size", size, 0))
            | PaddingMethod.ALIGN_CENTERED
            | PaddingMethod.ADD_REMAINDER_TO_BOTTOM_RIGHT
        )

    def archive_fields(self) -> dict[str, Any]:
        return {"size": int(self._method & PaddingMethod.SIZE_MASK)}

    def destination_image_descriptor(
        self,
        source_images: Sequence[Image],
        source_states: Sequence[State],
        kernel: Kernel,
        suggested_descriptor: ImageDescriptor,
    ) -> ImageDescriptor:
        """Sets the kernel's edge mode to clamp, which makes average pooling shrink its windows."""
        kernel.edge_mode = EdgeMode.CLAMP
        return suggested_descriptor


SAME = DefaultPadding(
    PaddingMethod.ALIGN_CENTERED | PaddingMethod.ADD_REMAINDER_TO_TOP_LEFT | PaddingMethod.SIZE_SAME
)
"""The default of every kernel but the fully connected ones."""

VALID_ONLY = DefaultPadding(
    PaddingMethod.ALIGN_CENTERED | PaddingMethod.ADD_REMAINDER_TO_TOP_LEFT | PaddingMethod.SIZE_VALID_ONLY
)
"""The default of fully connected kernels."""


def _truncated_half(value: int) -> int:
    return int(value / 2)


def forward_size_and_offset(
    owner: str, axis: str, method: PaddingMethod, source_size: int, window: int, stride: int
) -> tuple[int, int]:
    """The result's extent along one axis and the kernel's offset, by the rule in ``DefaultPadding``.

    ``window`` is the dilated extent; ``axis`` is ``"x"`` or ``"y"``. Raises ``GeometryError`` if nothing is left.
    """
    style = _STYLES.get(method & PaddingMethod.SIZE_MASK, 1)
    total = source_size + style * (window - 1) + stride - 1
    size = int(total / stride)
    if size <= 0:
        raise GeometryError(
            f"{owner}: a window of {window} pixels along {axis} does not fit a source of {source_size} pixels, so a "
            "valid-only result is empty"
        )
    return size, window // 2 - _near_side(axis, method, (size - 1) * stride + window - source_size)


def _near_side(axis: str, method: PaddingMethod, extra: int) -> int:
    """How many of the ``extra`` pixels that are read outside the source lie at its top or left."""
    align = method & PaddingMethod.ALIGN_MASK
    if align == PaddingMethod.ALIGN_TOP_LEFT:
        return extra
    if align == PaddingMethod.ALIGN_BOTTOM_RIGHT:
        return 0
    far_side = _REMAINDER_RIGHT if axis == "x" else _REMAINDER_BOTTOM
    return _truncated_half(extra + (0 if method & far_side else 1))


def transposed_size_and_offset(
    owner: str, axis: str, method: PaddingMethod, source_size: int, window: int, stride: int, pixels: int | None = None
) -> tuple[int, int]:
    """The result's extent along one axis and the kernel's offset, for a window over a source with zeros inserted.

    The source has ``(source_size - 1) * stride + 1`` pixels then; the rule is that of ``DefaultPadding``, or, with
    ``pixels``, that of PyTorch for so much padding. Raises ``GeometryError`` if nothing is left.
    """
    style = _STYLES.get(method & PaddingMethod.SIZE_MASK, 1)
    between = (source_size - 1) * stride + 1
    size = between + style * (window - 1) if pixels is None else between + window - 1 - 2 * pixels
    if size <= 0:
        raise GeometryError(
            f"{owner}: a window of {window} pixels along {axis} over {source_size} pixels at a stride of {stride} "
            f"leaves {size} pixels"
        )
    near = _near_side(axis, method, size - 1 + window - between) if pixels is None else window - 1 - pixels
    return size, window // 2 - near


def apply_padding(
    kernel: Kernel, source: Image, feature_channels: int, number_of_images: int
) -> tuple[ImageDescriptor, Offset]:
    """The descriptor that ``kernel.padding`` gives for ``source``, and the offset that belongs to it."""
    owner = type(kernel).__name__
    method = kernel.padding.padding_method
    window_x = (kernel.kernel_width - 1) * kernel.dilation_rate_x + 1
    window_y = (kernel.kernel_height - 1) * kernel.dilation_rate_y + 1
    width, x = forward_size_and_offset(owner, "x", method, source.width, window_x, kernel.stride_in_pixels_x)
    height, y = forward_size_and_offset(owner, "y", method, source.height, window_y, kernel.stride_in_pixels_y)
    descriptor = ImageDescriptor(source.channel_format, width, height, feature_channels, number_of_images)
    return descriptor, Offset(x, y, kernel.offset.z)


def require_padding(owner: str, value: Any) -> Padding:
    """``value`` if it is a padding policy; raises ``FormatError`` otherwise."""
    if not isinstance(value, Padding):
        raise FormatError(f"{owner}: padding is {value!r}; it has to be a padding policy such as DefaultPadding")
    if value.padding_method & PaddingMethod.CUSTOM and not hasattr(value, "destination_image_descriptor"):
        raise FormatError(f"{owner}: padding has the CUSTOM bit but no destination_image_descriptor method")
    return value


class ExplicitPadding:
    """As many pixels of padding on the left and right (``x``) and on the top and bottom (``y``) as given; not in MPS.

    Along one axis the result has ``floor((n + 2 * padding - k) / s) + 1`` pixels and the first window starts at pixel
    ``-padding``: the rule of PyTorch.
    """

    def __init__(self, x: int = 0, y: int = 0) -> None:
        self.x = integer("ExplicitPadding", "x", x, 0)
        self.y = integer("ExplicitPadding", "y", y, 0)

    @property
    def padding_method(self) -> PaddingMethod:
        """CUSTOM: the policy sets size and offset itself."""
        return PaddingMethod.CUSTOM | PaddingMethod.SIZE_SAME

    def archive_fields(self) -> dict[str, Any]:
        """What the policy is rebuilt from."""
        return {"x": self.x, "y": self.y}

    def destination_image_descriptor(
        self,
        source_images: Sequence[Image],
        source_states: Sequence[State],
        kernel: Kernel,
        suggested_descriptor: ImageDescriptor,
    ) -> ImageDescriptor:
        """Sets the kernel's offset.

        Raises ``GeometryError`` if the padded source is smaller than the window, and ``NotImplementedError`` for a
        kernel of two source images.
        """
        if not hasattr(kernel, "kernel_width"):
            raise NotImplementedError(f"{type(kernel).__name__}: padding is {self!r}, which is for one source image")
        source = source_images[0]
        sizes, offsets = [], []
        for axis, size, padding, taps, dilation, stride in (
            ("x", source.width, self.x, kernel.kernel_width, kernel.dilation_rate_x, kernel.stride_in_pixels_x),
            ("y", source.height, self.y, kernel.kernel_height, kernel.dilation_rate_y, kernel.stride_in_pixels_y),
        ):
            window = (taps - 1) * dilation + 1
            if size + 2 * padding < window:
                raise GeometryError(
                    f"{type(kernel).__name__}: a window of {window} pixels along {axis} does not fit {size} pixels "
                    f"with {padding} pixels of padding on each side"
                )
            sizes.append((size + 2 * padding - window) // stride + 1)
            offsets.append(window // 2 - padding)
        kernel.offset = Offset(offsets[0], offsets[1], kernel.offset.z)
        # Each window of a sub-pixel convolution becomes a block of pixels.
        width, height = (getattr(kernel, "sub_pixel_scale_factor", 1) * size for size in sizes)
        return replace(suggested_descriptor, width=width, height=height)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExplicitPadding) and (other.x, other.y) == (self.x, self.y)

    def __hash__(self) -> int:
        return hash((self.x, self.y))

    def __repr__(self) -> str:
        return f"ExplicitPadding(x={self.x}, y={self.y})"
