"""The gradients of addition, subtraction, multiplication and division of two images."""

from __future__ import annotations

from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import LARGEST_FLOAT, EdgeMode, Offset
from mpsgrad.image import Image
from mpsgrad.kernel import IntegerProperty, RealProperty, Regions
from mpsgrad.kernels.arithmetic import Arithmetic
from mpsgrad.kernels.arithmetic_gradient_work import Factor, GradientWork
from mpsgrad.kernels.gradient_of_one_image import _GradientOfOneImage
from mpsgrad.kernels.pointwise import Layout, require_no_clamped_reads
from mpsgrad.state import ForwardSnapshot


class ArithmeticGradient(_GradientOfOneImage):
    """The base of the gradients of ``Arithmetic`` kernels with respect to one of the two images.

    ``is_secondary_source_filter`` says which: the primary image (False) or the secondary. ``g`` being the incoming
    gradient, and ``other`` the forward image that is not differentiated, it is::

        AddGradient, SubtractGradient   primary_scale g
        MultiplyGradient                (primary_scale g) (secondary_scale other)
        DivideGradient                  (primary_scale g) / (secondary_scale y), or for the secondary image
                                        -(primary_scale g) x / (secondary_scale y^2)

    and is summed along each axis over which the forward kernel spread the image (strides of 0), in float32 and in a
    fixed order; never over the batch. ``source_image`` of ``encode`` is the forward image that is differentiated for
    the first two (of which only the size matters), and the other one for the last two.

    As in MPS the scales are this kernel's own, not those of the forward kernel; ``of`` makes a kernel with those that
    give the gradient of a forward kernel. ``bias`` and the limits have no effect. Source: ``MPSCNNArithmeticGradient``.
    """

    remembers_encodes = True
    strides_of_forward_kernel = ("primary",)

    primary_scale = RealProperty(1.0, "The factor of the incoming gradient.")
    secondary_scale = RealProperty(1.0, "The factor of the other image.")
    bias = RealProperty(0.0, "Has no effect.")
    minimum_value = RealProperty(-LARGEST_FLOAT, "Has no effect.")
    maximum_value = RealProperty(LARGEST_FLOAT, "Has no effect.")
    secondary_stride_in_pixels_x = IntegerProperty(1, "The state's; a 0 is compared with it.", maximum=1)
    secondary_stride_in_pixels_y = IntegerProperty(1, "The same along y.", maximum=1)
    secondary_stride_in_feature_channels = IntegerProperty(1, "The same for the channels.", maximum=1)

    @classmethod
    def of(cls, forward: Arithmetic, *, is_secondary_source_filter: bool = False) -> Any:
        """A kernel with the scales that make it the derivative of ``forward``; not in MPS.

        Raises ``StateError`` if ``forward`` is of another kind.
        """
        kernel = cls(is_secondary_source_filter=is_secondary_source_filter, device=forward.device)
        if forward.kernel_name not in cls.forward_kernels:
            raise StateError(
                f"{cls.__name__}: forward is {type(forward).__name__}; it has to be {' or '.join(cls.forward_kernels)}"
            )
        kernel._take_scales(forward.primary_scale, forward.secondary_scale)
        return kernel

    def _take_scales(self, primary: float, secondary: float) -> None:
        self.primary_scale = secondary if self._is_secondary else primary

    def _strides(self, state: Any, snapshot: ForwardSnapshot) -> tuple[int, int, int]:
        """The forward kernel's strides in the image of ``snapshot``: along the channels, x and y."""
        channel_stride = state.channel_strides[snapshot is state.secondary]
        return channel_stride, snapshot.stride_in_pixels_x, snapshot.stride_in_pixels_y

    def _channel_counts(self, source_image: Image, state: Any) -> tuple[int, int, int]:
        own = self._strides(state, self._snapshot_of(state))[0]
        return self._channels_of(source_image, "secondary"), state.channels, state.channels if own else 1

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        owner, snapshot = type(self).__name__, self._snapshot_of(state)
        strides = self._strides(state, self._source_snapshot(state))
        names = ("feature_channels", "pixels_x", "pixels_y")
        for name, stride in zip(names, strides, strict=True):
            if getattr(self, f"secondary_stride_in_{name}") == 0 and stride:
                raise StateError(
                    f"{owner}: secondary_stride_in_{name} is 0 but gradient_state was made when that of the image was "
                    f"{stride}"
                )
        _, x, y = self._strides(state, snapshot)
        require_no_clamped_reads(owner, snapshot, ("x",) * x + ("y",) * y)

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        if not state._is_recorded:
            return
        owner, snapshot = type(self).__name__, self._snapshot_of(state)
        writers = state._recorded.writers(state._images(snapshot.clip_rect.origin.z, snapshot.images))
        if writers is None:
            raise StateError(
                f"{owner}: gradient_state holds records of {len(state._recorded)} images but its forward kernel has "
                f"{snapshot.images}; encode the forward kernel with the state first"
            )
        command_buffer._reads_from(owner, "gradient_state", writers)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        snapshot = self._snapshot_of(state)
        layout, dx, dy = self._pointwise_gradient(regions.sources[0], state)
        record = state._record_layout(self.primary_offset.z) if state._is_recorded else None
        work = GradientWork(command_buffer, source_gradient, layout, self._scale)
        if record is not None and state.records_clamp:
            work.mask(state.resource(0), record)
        work.name, work.factor = self._factor(source_image, regions.sources[1], state, record)
        strides = self._strides(state, snapshot)
        if 0 in strides:
            clamps = snapshot.edge_mode is EdgeMode.CLAMP
            work.add_sums(destination, regions.destination, strides, snapshot.offset, dx, dy, clamps)
        else:
            work.add_elements(destination, regions.destination, dx, dy)

    @property
    def _scale(self) -> float:
        return self.primary_scale

    def _factor(
        self, source_image: Image, layout: Layout, state: Any, record: Layout | None
    ) -> tuple[str, Factor | None]:
        """The end of the kernels' names, and what the incoming gradient is multiplied or divided by."""
        return "", None

    def _other_image(self, source_image: Image, layout: Layout, state: Any) -> Factor:
        snapshot = self._other_snapshot(state)
        clamps = snapshot.edge_mode is EdgeMode.CLAMP
        return Factor(source_image.buffer, layout, snapshot.offset, self._strides(state, snapshot), clamps)


class AddGradient(ArithmeticGradient):
    """``primary_scale g``, summed over the axes along which the image was spread. Source: ``MPSCNNAddGradient``."""

    forward_kernels = ("Add",)


class SubtractGradient(ArithmeticGradient):
    """``primary_scale g``, summed over the axes along which the image was spread. Source: ``MPSCNNSubtractGradient``.

    As in MPS, ``primary_scale`` has to be negative for the secondary image; ``of`` sets it so.
    """

    forward_kernels = ("Subtract",)

    def _take_scales(self, primary: float, secondary: float) -> None:
        self.primary_scale = -secondary if self._is_secondary else primary


class MultiplyGradient(ArithmeticGradient):
    """``(primary_scale g) (secondary_scale other)``, summed over the axes along which the image was spread.

    ``source_image`` is the forward image that is **not** differentiated. Source: ``MPSCNNMultiplyGradient``.
    """

    forward_kernels = ("Multiply",)
    takes_the_other_image = True

    def _take_scales(self, primary: float, secondary: float) -> None:
        self.primary_scale, self.secondary_scale = primary, secondary

    @property
    def _scale(self) -> float:
        return self.primary_scale * self.secondary_scale

    def _factor(
        self, source_image: Image, layout: Layout, state: Any, record: Layout | None
    ) -> tuple[str, Factor | None]:
        return "_product", self._other_image(source_image, layout, state)


class DivideGradient(ArithmeticGradient):
    """``(primary_scale g) / (secondary_scale y)``, or ``-(primary_scale g) x / (secondary_scale y^2)``; not in MPS.

    The second is that for the secondary image; the state of the forward kernel has it but for ``g``, and of
    ``source_image``, the primary image, only the size matters. Summed as the others are.
    """

    forward_kernels = ("Divide",)
    takes_the_other_image = True

    def _take_scales(self, primary: float, secondary: float) -> None:
        self.primary_scale, self.secondary_scale = primary, secondary

    @property
    def _scale(self) -> float:
        return self.primary_scale / self.secondary_scale

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        super()._validate(source_gradient, source_image, state)
        if self.secondary_scale == 0:
            raise GeometryError(f"{type(self).__name__}: secondary_scale is {self.secondary_scale}; it divides")

    def _factor(
        self, source_image: Image, layout: Layout, state: Any, record: Layout | None
    ) -> tuple[str, Factor | None]:
        if not self._is_secondary:
            return "_quotient", self._other_image(source_image, layout, state)
        assert record is not None
        return "_product_recorded", Factor(state.resource(1), record, Offset(), (1, 1, 1), False)
