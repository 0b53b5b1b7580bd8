"""The states of instance and group normalization: statistics of each image, and its gradients for gamma and beta."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Buffer
from mpsgrad.errors import FormatError, StateError
from mpsgrad.kernels.batch_normalization_state import FLOAT_BYTES, NormalizationGammaAndBetaState
from mpsgrad.kernels.convolution_packing import FAMILY as SUMS
from mpsgrad.kernels.convolution_packing import SUM_PARAMETERS, sum_of_splits
from mpsgrad.kernels.values_of_images import ValuesOfImages
from mpsgrad.state import ForwardSnapshot, GradientState, State, StateBatch
from mpsgrad.vector import Vector

if TYPE_CHECKING:
    from mpsgrad.kernel import BaseKernel
    from mpsgrad.kernels.group_normalization import GroupNormalization, InstanceNormalization, _ImageNormalization

MEANS, VARIANCES, GAMMA_GRADIENTS, BETA_GRADIENTS = range(4)


@dataclass(slots=True)  # Not frozen: each encode makes one, and that would take four times as long.
class _Encode:
    """The encode that computed the statistics, or the gradients, of an image."""

    command_buffer: CommandBuffer
    gamma_and_beta: NormalizationGammaAndBetaState
    epsilon: float


@dataclass(slots=True)
class _Contents:
    """Which images' values are there. A state shares it with its parts."""

    statistics: ValuesOfImages[_Encode] = field(default_factory=ValuesOfImages)
    gradients: ValuesOfImages[_Encode] = field(default_factory=ValuesOfImages)


class _ImageNormalizationGradientState(GradientState):
    """What instance and group normalization leave for the gradient, for each image of the source on its own.

    ``resource(0)`` to ``resource(3)`` are mean, variance, gradient for gamma and gradient for beta: float32, a row for
    each image with one value for each feature channel.
    """

    def __init__(
        self, kernel: _ImageNormalization, snapshot: ForwardSnapshot, *, command_buffer: CommandBuffer | None = None
    ) -> None:
        count = kernel.number_of_feature_channels
        size = FLOAT_BYTES * count * snapshot.source.number_of_images
        super().__init__(snapshot, (size,) * 4, kernel.device, command_buffer=command_buffer)
        self._kernel = kernel
        self._count = count
        self._channels_per_group = kernel.channels_per_group
        self._contents = _Contents()

    def _encode_key(self, kernel: BaseKernel) -> Hashable:
        known = self._known_encode()
        epsilon = None if known is None else known.epsilon
        return (self.snapshot, self._index, self._count, self._channels_per_group, epsilon)

    def _encode_buffers(self) -> Mapping[Any, Buffer]:
        known = self._known_encode()
        parameters = {} if known is None else {("gamma", 0): known.gamma_and_beta.resource(0)}
        return {**super()._encode_buffers(), **parameters}

    def _encode_buffer(self, name: Any, command_buffer: CommandBuffer) -> Buffer:
        if type(name) is tuple:
            # That of all images, as the kernel has made sure.
            known = self._known_encode()
            assert known is not None
            return known.gamma_and_beta.resource(0)
        buffer = self._buffers[name]
        return self.resource(name) if buffer is None else buffer

    def _encode_buffers_called(self, names: Iterable[Any], command_buffer: CommandBuffer) -> list[Buffer]:
        # Without a call for each: there are five.
        own, known = self._buffers, self._known_encode()
        gamma_and_beta = None if known is None else known.gamma_and_beta._buffers[0]
        found = [gamma_and_beta if type(name) is tuple else own[name] for name in names]
        if None in found:
            return super()._encode_buffers_called(names, command_buffer)
        return found  # type: ignore[return-value]

    @property
    def _images(self) -> range:
        """The images that the forward kernel processes, among those of the state's buffers."""
        first = self._index + self.snapshot.offset.z
        return range(first, first + self.snapshot.images)

    def _known_encode(self) -> _Encode | None:
        return self._contents.statistics.get(self._index + self.snapshot.offset.z)

    def _forward_encode(self, owner: str, images: range) -> _Encode:
        """The encode that computed the statistics of ``images``; raises ``StateError`` if there is not one for all."""
        found = None
        for encode in self._contents.statistics.values(images):
            if encode is None or not encode.command_buffer._takes_effect:
                image = next(image for image in images if self._lacks_statistics(image))
                raise StateError(
                    f"{owner}: gradient_state holds no statistics of image {image - self._index}; encode "
                    f"{self.snapshot.kernel} into it first"
                )
            if found is not None and (encode.gamma_and_beta, encode.epsilon) != (found.gamma_and_beta, found.epsilon):
                raise StateError(
                    f"{owner}: the images of gradient_state were encoded with different gamma, beta or epsilon; encode "
                    "their gradients one by one"
                )
            found = encode
        assert found is not None
        return found

    def _lacks_statistics(self, image: int) -> bool:
        encode = self._contents.statistics.get(image)
        return encode is None or not encode.command_buffer._takes_effect

    @property
    def gamma(self) -> np.ndarray:
        """The gamma of the forward encode, or before it of the kernel, a copy."""
        return self._gamma_and_beta.gamma

    @property
    def beta(self) -> np.ndarray:
        """The beta of the forward encode, or before it of the kernel, a copy."""
        return self._gamma_and_beta.beta

    @property
    def _gamma_and_beta(self) -> NormalizationGammaAndBetaState:
        known = self._known_encode()
        return self._kernel._gamma_and_beta if known is None else known.gamma_and_beta

    @property
    def mean(self) -> np.ndarray | None:
        """The means, a copy with a row for each image; None before the forward encode of all images."""
        return self._rows(MEANS, self._contents.statistics)

    @property
    def variance(self) -> np.ndarray | None:
        """The biased variances, without epsilon, a copy with a row for each image; None before the forward encode."""
        return self._rows(VARIANCES, self._contents.statistics)

    @property
    def gradient_for_gamma(self) -> np.ndarray | None:
        """``sum g (x - mean) / sqrt(variance + epsilon)``, a copy with a row for each image; None before its encode.

        The gradient of a batch is the sum over its images. Waits for the work that writes it. Raises ``StateError`` for
        a temporary state and before ``commit``.
        """
        return self._rows(GAMMA_GRADIENTS, self._contents.gradients)

    @property
    def gradient_for_beta(self) -> np.ndarray | None:
        """``sum g``, a copy with a row for each image; None before its encode."""
        return self._rows(BETA_GRADIENTS, self._contents.gradients)

    @property
    def gradient_rows(self) -> tuple[Vector, Vector]:
        """The gradients for gamma and beta as vectors, one image's after the other's.

        Raises ``StateError`` before they were encoded.
        """
        encodes = self._contents.gradients.values(self._images)
        if not all(encode is not None and encode.command_buffer._takes_effect for encode in encodes):
            raise StateError(f"{type(self).__name__}: no gradients yet; encode its gradient kernel first")
        if self._images != range(self.number_of_images):
            raise StateError(f"{type(self).__name__}: has gradients of images {self._images} only")
        gamma, beta = (
            Vector.of_buffer(self.resource(index), self._count * self.number_of_images)
            for index in (GAMMA_GRADIENTS, BETA_GRADIENTS)
        )
        return gamma, beta

    def _rows(self, index: int, encodes: ValuesOfImages[_Encode]) -> np.ndarray | None:
        images = self._images
        command_buffers = set()
        for encode in encodes.values(images):
            if encode is None:
                return None
            command_buffers.add(encode.command_buffer)
        if self.is_temporary:
            raise StateError(f"{type(self).__name__}: read on the CPU, but temporary states have no CPU access")
        for command_buffer in command_buffers:
            command_buffer._wait_for(type(self).__name__, "read", needs_result=True)
        row = FLOAT_BYTES * self._count
        values = self.resource(index).read(row * images[0], row * len(images)).view(np.float32)
        return values.reshape(len(images), self._count)


class NormalizationGradientSum(State):
    """The gradients for gamma and beta of all images together, for optimizers; made by ``of``."""

    def __init__(self, gradient_for_gamma: Vector, gradient_for_beta: Vector) -> None:
        super().__init__((), gradient_for_gamma.device)
        self._vectors = gradient_for_gamma, gradient_for_beta

    @property
    def gradient_vectors(self) -> tuple[Vector, Vector]:
        """The gradients for gamma and beta."""
        return self._vectors

    @classmethod
    def of(cls, command_buffer: CommandBuffer, states: Sequence[State]) -> NormalizationGradientSum:
        """Adds up the gradients of ``states``: what instance or group normalization left of all images of a batch.

        That is what the data source of a graph is given, or the ``batch_representation`` of a state. The sum is in the
        order of the images. Raises ``FormatError`` for other states, and ``StateError`` before the gradients are
        encoded.
        """
        owner = cls.__name__
        whole = StateBatch(states).whole
        if not isinstance(whole, _ImageNormalizationGradientState):
            raise FormatError(
                f"{owner}: states are no batch that a state of instance or group normalization was divided into"
            )
        command_buffer._require_open(f"{owner}.of")
        rows = whole.gradient_rows
        device, images, count = whole.device, len(whole._images), whole._count
        name, threadgroups = sum_of_splits(count, images, device.tuning, has_many_threads=device.family != "cpu")
        parameters = SUM_PARAMETERS.pack(weights=count, splits=images, split_stride=count, accumulates=0)
        sums = []
        for row in rows:
            sums.append(Vector.of_buffer(device.allocate(FLOAT_BYTES * count), count))
            command_buffer.add_dispatch(
                SUMS.function(device, name, "float"),
                threadgroups,
                row.buffer,
                sums[-1].buffer,
                sums[-1].buffer,
                device.constant_buffer(parameters),
            )
            command_buffer._writes(sums[-1])
        return cls(*sums)


class InstanceNormalizationGradientState(_ImageNormalizationGradientState):
    """The state of ``InstanceNormalization``. Source: ``MPSCNNInstanceNormalizationGradientState``.

    MPS makes one for each image. One that was made for N images has N rows, and its ``batch_representation`` are states
    of one image each.
    """

    @property
    def instance_normalization(self) -> InstanceNormalization:
        """The kernel that made the state."""
        return self._kernel  # type: ignore[return-value]


class GroupNormalizationGradientState(_ImageNormalizationGradientState):
    """The state of ``GroupNormalization``. Source: ``MPSCNNGroupNormalizationGradientState``.

    As ``InstanceNormalizationGradientState``; the mean and the variance of a group stand in each of its channels.
    """

    @property
    def group_normalization(self) -> GroupNormalization:
        """The kernel that made the state."""
        return self._kernel  # type: ignore[return-value]
