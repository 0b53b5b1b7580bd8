"""``LossScale``: keeps gradients in float16 away from zero, and leaves out steps in which they overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer, Device, require_device
from mpsgrad.errors import FormatError, GeometryError, StateError
from mpsgrad.geometry import integer, real
from mpsgrad.image import FeatureChannelFormat, Image
from mpsgrad.known_attributes import KnownAttributes
from mpsgrad.shader import ParameterStruct, ShaderFamily
from mpsgrad.vector import Vector

THREADS, ELEMENTS = 256, 2048
LARGEST_SCALE, SMALLEST_SCALE = 2.0**24, 2.0**-24

FIND_PARAMETERS = ParameterStruct("FindParameters", count="int", first="int")
UPDATE_PARAMETERS = ParameterStruct(
    "UpdateParameters",
    count="int",
    growth_interval="float",
    growth="float",
    backoff="float",
    largest_scale="float",
    smallest_scale="float",
)
FILL_PARAMETERS = ParameterStruct("FillWeightsParameters", count="int", factor="float")
FAMILY = ShaderFamily(
    "loss_scale",
    (FIND_PARAMETERS, UPDATE_PARAMETERS, FILL_PARAMETERS),
    {"threads": THREADS, "elements": ELEMENTS},
    dtypes=("float",),
    ahead_of_time=False,
)


class LossScale(KnownAttributes):
    """A scale for losses that adapts itself to what their gradients bear, on the device.

    Gradients of a loss times ``scale`` are ``scale`` times as large, so that small ones are not lost in float16. Where
    one becomes infinite or NaN the step is left out and the scale multiplied by ``backoff_factor``; after
    ``growth_interval`` steps without that it is multiplied by ``growth_factor``. It stays between 2^-24 and 2^24.
    Source: Micikevicius et al., "Mixed Precision Training", 2018.

    Each step encodes, in this order: ``encode_weights`` and the loss, the gradients, ``encode_check``, and optimizers
    whose ``loss_scale`` this is. A ``Graph`` that is made with it encodes the check between gradients and updates. The
    host waits for nothing, and replays of a recorded step go on from each other.
    """

    def __init__(
        self,
        initial_scale: float = 2.0**16,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        device: Device | None = None,
    ) -> None:
        self.device = require_device("LossScale", device)
        self.growth_factor = real("LossScale", "growth_factor", growth_factor, 1.0)
        self.backoff_factor = real("LossScale", "backoff_factor", backoff_factor, 0.0, 1.0)
        self.growth_interval = integer("LossScale", "growth_interval", growth_interval, 1)
        scale = real("LossScale", "initial_scale", initial_scale, SMALLEST_SCALE, LARGEST_SCALE)
        self._state = Vector.from_array(np.array([1.0 / scale, 1.0, scale, 0.0, 0.0], np.float32), self.device)

    @property
    def buffer(self) -> Buffer:
        """Float32 values that kernels read: 1 / scale of the last step, and 1 or, if it was left out, 0."""
        return self._state.buffer

    @property
    def scale(self) -> float:
        """The scale of the next step. Waits for the work that changes it, as all below."""
        return float(np.asarray(self._state)[2])

    @property
    def last_step(self) -> tuple[float, bool]:
        """1 / the scale of the last step, and whether its gradients were finite, so that parameters were updated."""
        inverse_scale, is_finite = np.asarray(self._state)[:2]
        return float(inverse_scale), bool(is_finite)

    @property
    def skipped_steps(self) -> int:
        """How many steps were left out."""
        return int(np.asarray(self._state)[4])

    @property
    def state(self) -> np.ndarray:
        """All that the scale knows, for checkpoints; set it to go on from there.

        Raises ``FormatError`` when set to something that no ``state`` was.
        """
        return np.asarray(self._state)

    @state.setter
    def state(self, values: np.ndarray) -> None:
        array = np.asarray(values)
        is_state = array.dtype == np.float32 and array.shape == (5,) and np.isfinite(array).all()
        if not is_state or not SMALLEST_SCALE <= array[2] <= LARGEST_SCALE:
            raise FormatError(f"LossScale: state is {values!r}; it has to be one that was read from a LossScale")
        np.asarray(self._state)
        self._state.buffer.write(np.ascontiguousarray(array))

    def encode_weights(self, command_buffer: CommandBuffer, weights_image: Image, factor: float = 1.0) -> None:
        """Fills ``weights_image``, the weights of ``LossLabels``, with ``factor`` times the scale.

        Raises ``FormatError`` for an image that is not FLOAT32 and ``GeometryError`` for a part of another.
        """
        self._require_open(command_buffer, "encode_weights")
        if not isinstance(weights_image, Image) or weights_image.channel_format is not FeatureChannelFormat.FLOAT32:
            raise FormatError(f"LossScale: weights_image is {weights_image!r}; it has to be a FLOAT32 image")
        if weights_image._root is not weights_image:
            raise GeometryError("LossScale: weights_image is a part of another image; it has to be a whole one")
        count = weights_image.descriptor.element_count
        parameters = FILL_PARAMETERS.pack(count=count, factor=real("LossScale", "factor", factor))
        command_buffer.add_dispatch(
            FAMILY.function(self.device, "fill_weights", "float"),
            -(-count // THREADS),
            weights_image.buffer,
            self.buffer,
            self.device.constant_buffer(parameters),
        )
        weights_image._written_by(command_buffer)

    def encode_check(self, command_buffer: CommandBuffer, gradients: Sequence[Vector]) -> None:
        """Looks for infinity and NaN in ``gradients``, which are all of a step, and adapts the scale.

        Raises ``FormatError`` unless they are vectors, and ``StateError`` for one of another device.
        """
        self._require_open(command_buffer, "encode_check")
        for index, gradient in enumerate(gradients):
            if not isinstance(gradient, Vector):
                raise FormatError(f"LossScale: gradients[{index}] is {type(gradient).__name__}; it has to be a Vector")
            if gradient.device is not self.device:
                raise StateError(
                    f"LossScale: gradients[{index}] is on {gradient.device.identifier} but the scale on "
                    f"{self.device.identifier}"
                )
        counts = [math.ceil(gradient.length / ELEMENTS) for gradient in gradients]
        largest = command_buffer.scratch(4 * max(1, sum(counts)))
        function = FAMILY.function(self.device, "find_largest", "float")
        first = 0
        for gradient, count in zip(gradients, counts, strict=True):
            parameters = FIND_PARAMETERS.pack(count=gradient.length, first=first)
            command_buffer.add_dispatch(
                function,
                -(-count // (THREADS // 32)),
                gradient.buffer,
                largest,
                self.device.constant_buffer(parameters),
            )
            first += count
        parameters = UPDATE_PARAMETERS.pack(
            count=first,
            growth_interval=float(self.growth_interval),
            growth=self.growth_factor,
            backoff=self.backoff_factor,
            largest_scale=LARGEST_SCALE,
            smallest_scale=SMALLEST_SCALE,
        )
        command_buffer.add_dispatch(
            FAMILY.function(self.device, "update_scale", "float"),
            1,
            largest,
            self.buffer,
            self.device.constant_buffer(parameters),
        )
        command_buffer._writes(self._state)

    def _require_open(self, command_buffer: CommandBuffer, what: str) -> None:
        if not isinstance(command_buffer, CommandBuffer):
            raise FormatError(f"LossScale: command_buffer is {command_buffer!r}; it has to be a CommandBuffer")
        command_buffer._require_open(f"LossScale.{what}")
        if command_buffer.device is not self.device:
            raise StateError(
                f"LossScale: command_buffer is for {command_buffer.device.identifier} but the scale on "
                f"{self.device.identifier}"
            )

    def __repr__(self) -> str:
        return f"<LossScale on {self.device.identifier}>"
