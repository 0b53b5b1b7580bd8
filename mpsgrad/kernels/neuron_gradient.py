"""The gradients of neurons."""

from __future__ import annotations

from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import GeometryError, StateError
from mpsgrad.geometry import EdgeMode, flag
from mpsgrad.image import Image
from mpsgrad.kernel import (
    GradientKernel,
    Regions,
    fill_buffer_with_zeros,
)
from mpsgrad.kernels.neuron import NEURON_CLASSES, NeuronGradientState
from mpsgrad.kernels.neuron_descriptor import (
    NeuronDescriptor,
    NeuronType,
    require_neuron_descriptor,
)
from mpsgrad.kernels.neuron_dispatch import FAMILIES, SLOPE_SUM_PARAMETERS, THREADS, NeuronProperties, add_neuron
from mpsgrad.kernels.pointwise import (
    Operand,
    chunked_rows,
    pieces,
    require_no_clamped_reads,
    summing_pixels_per_row,
)
from mpsgrad.tunables import tunables


class NeuronGradient(NeuronProperties, GradientKernel):
    """``dx = g f'(x)`` for every element, ``x`` being the forward source. Source: ``MPSCNNNeuronGradient``.

    ``neuron_descriptor`` has to equal the forward kernel's. A forward result that was read from beyond the edge of its
    source with ``EdgeMode.CLAMP`` has no gradient here: ``encode`` raises ``NotImplementedError``.

    MPS has no gradient for the slopes of a PRELU. With ``computes_gradient_for_slopes`` this kernel adds it to the
    state's ``gradient_for_slopes``, in float32 and in a fixed order.
    """

    remembers_encodes = True

    forward_kernels = tuple(cls.__name__ for cls in NEURON_CLASSES)
    reads_secondary_edge_mode = True

    # objc: -initWithDevice:neuronDescriptor:
    def __init__(
        self,
        neuron_descriptor: NeuronDescriptor,
        *,
        computes_gradient_for_slopes: bool = False,
        device: Device | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(device=device, label=label)
        owner = type(self).__name__
        self._neuron_descriptor = require_neuron_descriptor(owner, "neuron_descriptor", neuron_descriptor)
        self._computes_gradient_for_slopes = flag(
            owner, "computes_gradient_for_slopes", computes_gradient_for_slopes
        )
        if self._computes_gradient_for_slopes and self.neuron_type is not NeuronType.PRELU:
            raise GeometryError(
                f"{owner}: computes_gradient_for_slopes is True but {self.neuron_type.name} has no slopes; only PRELU "
                "has"
            )

    @property
    def computes_gradient_for_slopes(self) -> bool:
        """Whether encodes also add to the state's ``gradient_for_slopes``."""
        return self._computes_gradient_for_slopes

    @property
    def is_state_modified(self) -> bool:
        return self._computes_gradient_for_slopes

    def _validate(self, source_gradient: Image, source_image: Image, state: Any) -> None:
        owner = type(self).__name__
        if state.neuron_descriptor != self.neuron_descriptor:
            raise StateError(
                f"{owner}: neuron_descriptor is {self.neuron_descriptor} but gradient_state was made with "
                f"{state.neuron_descriptor}"
            )
        channels = self._channels_of(source_image, "secondary")
        self.neuron_descriptor.require_channels(owner, channels)
        require_no_clamped_reads(owner, state.snapshot)
        if self._computes_gradient_for_slopes and channels != state.snapshot.source_channels:
            raise GeometryError(
                f"{owner}: {channels} feature channels are read from source_image but gradient_state has slopes for "
                f"{state.snapshot.source_channels}"
            )

    def _begin_encode(self, command_buffer: CommandBuffer, state: Any) -> None:
        if self._computes_gradient_for_slopes:
            state._slope_sums.require_ordered(type(self).__name__, command_buffer)

    def _note_encode(self, command_buffer: CommandBuffer, state: Any, regions: Regions) -> None:
        if self._computes_gradient_for_slopes:
            _, _, _, _, width, height, _, images = regions.sources[1]
            state._slope_sums.add(command_buffer, width * height * images)

    def _dispatch(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        destination: Image,
        regions: Regions,
        state: Any,
    ) -> None:
        gradient = Operand(*self._pointwise_gradient(regions.sources[0], state))
        clamps = self.secondary_edge_mode is EdgeMode.CLAMP
        source = Operand(regions.sources[1], self.secondary_offset.x, self.secondary_offset.y, clamps)
        if self._computes_gradient_for_slopes:
            self._add_slope_sums(command_buffer, source_gradient, source_image, regions.sources[1], gradient, state)
        add_neuron(
            self,
            command_buffer,
            f"neuron_{self.neuron_descriptor.function_name}_gradient",
            destination,
            regions.destination,
            [(source_gradient, gradient), (source_image, source)],
        )

    def _add_slope_sums(
        self,
        command_buffer: CommandBuffer,
        source_gradient: Image,
        source_image: Image,
        layout: tuple[int, ...],
        gradient: Operand,
        state: NeuronGradientState,
    ) -> None:
        """Adds the sums over the source, whose layout is ``layout``, to the state."""
        accumulates = state._slope_sums.pixels > 0
        channels, metal_type = layout[6], source_image.channel_format.metal_type
        for piece in pieces(layout, (gradient,)):
            part = piece.operands[0]
            if part is None:
                continue
            layouts = part, piece.destination
            numbers = tunables(self.device.tuning)
            work = chunked_rows(("gradient", "source"), layouts, summing_pixels_per_row(channels), numbers)
            sums = command_buffer.scratch(4 * work.chunks * work.columns)
            parameters = self.device.constant_buffer(
                SLOPE_SUM_PARAMETERS.pack(**work.parameters, channels=channels, accumulates=int(accumulates))
            )
            command_buffer.add_dispatch(
                FAMILIES[NeuronType.PRELU].function(self.device, "prelu_slope_sums", metal_type),
                -(-work.threads // THREADS),
                source_gradient.buffer,
                source_image.buffer,
                sums,
                parameters,
            )
            command_buffer.add_dispatch(
                FAMILIES[NeuronType.PRELU].function(self.device, "merge_prelu_slope_sums", metal_type),
                -(-channels // 32),
                sums,
                state.resource(0),
                parameters,
            )
            accumulates = True
        if not accumulates:
            fill_buffer_with_zeros(command_buffer, state.resource(0), channels)
