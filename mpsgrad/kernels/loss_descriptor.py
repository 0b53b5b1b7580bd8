"""What losses compute: types, reductions and their parameters."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, cast

from mpsgrad.archive import archivable
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import flag, integer, member, real


@archivable
class LossType(enum.IntEnum):
    """Source: ``MPSCNNLossType``."""

    MEAN_ABSOLUTE_ERROR = 0
    MEAN_SQUARED_ERROR = 1
    SOFTMAX_CROSS_ENTROPY = 2
    SIGMOID_CROSS_ENTROPY = 3
    CATEGORICAL_CROSS_ENTROPY = 4
    HINGE = 5
    HUBER = 6
    COSINE_DISTANCE = 7
    LOG = 8
    KULLBACK_LEIBLER_DIVERGENCE = 9


@archivable
class LossReductionType(enum.IntEnum):
    """Source: ``MPSCNNReductionType``."""

    NONE = 0
    SUM = 1
    MEAN = 2
    SUM_BY_NON_ZERO_WEIGHTS = 3


_LIMITS: dict[str, tuple[float | None, float | None]] = {
    "weight": (None, None),
    "label_smoothing": (0.0, 1.0),
    "epsilon": (0.0, None),
    "delta": (0.0, None),
}
"""The smallest and the largest value of each number of a descriptor."""


@archivable
@dataclass(frozen=True)
class LossDescriptor:
    """What a loss computes. Source: ``MPSCNNLossDescriptor``.

    ``loss_type`` and ``reduction_type`` are enum members or their names. ``weight`` multiplies every element where no
    weights image is given; ``label_smoothing`` in [0, 1] moves the labels of softmax cross-entropy toward ``1 /
    number_of_classes`` and those of sigmoid cross-entropy toward 1/2. ``epsilon`` is added to what ``log`` takes
    logarithms of, and ``delta`` is where ``huber`` turns into a straight line. Raises ``FormatError`` for an unknown
    type and ``GeometryError`` for a value out of range, or if the reduction of ``cosine_distance`` is not ``sum``.
    """

    loss_type: LossType | str
    reduction_type: LossReductionType | str = LossReductionType.SUM
    weight: float = 1.0
    label_smoothing: float = 0.0
    number_of_classes: int = 1
    epsilon: float = 1e-7
    delta: float = 1.0
    reduce_across_batch: bool = False

    def __post_init__(self) -> None:
        owner = type(self).__name__
        object.__setattr__(self, "loss_type", member(owner, "loss_type", LossType, self.loss_type))
        object.__setattr__(
            self, "reduction_type", member(owner, "reduction_type", LossReductionType, self.reduction_type)
        )
        for name, limits in _LIMITS.items():
            object.__setattr__(self, name, real(owner, name, getattr(self, name), *limits))
        is_cosine = self.loss_type is LossType.COSINE_DISTANCE
        if is_cosine and self.reduction_type is not LossReductionType.SUM:
            raise GeometryError(
                f"{owner}: reduction_type is {self.reduction_type!r} but loss_type COSINE_DISTANCE; it has to be SUM"
            )
        object.__setattr__(self, "number_of_classes", integer(owner, "number_of_classes", self.number_of_classes, 1))
        object.__setattr__(self, "reduce_across_batch", flag(owner, "reduce_across_batch", self.reduce_across_batch))


class LossProperties:
    """The parts of the descriptor of a loss, as properties of its kernels."""

    _loss_descriptor: LossDescriptor

    def _set_loss_descriptor(self, loss_descriptor: Any) -> None:
        if not isinstance(loss_descriptor, LossDescriptor):
            raise FormatError(
                f"{type(self).__name__}: loss_descriptor is {loss_descriptor!r}; it has to be a LossDescriptor"
            )
        self._loss_descriptor = loss_descriptor

    @property
    def loss_descriptor(self) -> LossDescriptor:
        """The descriptor that the kernel computes."""
        return self._loss_descriptor

    @property
    def loss_type(self) -> LossType:
        """Which function of prediction and label the loss is."""
        return cast(LossType, self._loss_descriptor.loss_type)

    @property
    def reduction_type(self) -> LossReductionType:
        """How the losses of the elements become one."""
        return cast(LossReductionType, self._loss_descriptor.reduction_type)

    @property
    def weight(self) -> float:
        """What every element is multiplied by where no weights image is given."""
        return self._loss_descriptor.weight

    @property
    def label_smoothing(self) -> float:
        """How far, from 0 to 1, labels are moved toward a share for every class."""
        return self._loss_descriptor.label_smoothing

    @property
    def number_of_classes(self) -> int:
        """The classes that label smoothing divides among."""
        return self._loss_descriptor.number_of_classes

    @property
    def epsilon(self) -> float:
        """What is added to the argument of a logarithm."""
        return self._loss_descriptor.epsilon

    @property
    def delta(self) -> float:
        """The difference from which on ``huber`` is a straight line."""
        return self._loss_descriptor.delta

    @property
    def reduce_across_batch(self) -> bool:
        """Whether the losses of all images become one."""
        return self._loss_descriptor.reduce_across_batch


class SettableLossProperties(LossProperties):
    """The same, with weight, label smoothing, epsilon and delta that may be set between encodes."""

    def _change(self, name: str, value: Any) -> None:
        number: Any = real(type(self).__name__, name, value, *_LIMITS[name])
        self._loss_descriptor = replace(self._loss_descriptor, **{name: number})

    @property
    def weight(self) -> float:
        """What every element is multiplied by where no weights image is given."""
        return self._loss_descriptor.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._change("weight", weight)

    @property
    def label_smoothing(self) -> float:
        """How far, from 0 to 1, labels are moved toward a share for every class."""
        return self._loss_descriptor.label_smoothing

    @label_smoothing.setter
    def label_smoothing(self, label_smoothing: float) -> None:
        self._change("label_smoothing", label_smoothing)

    @property
    def epsilon(self) -> float:
        """What is added to the argument of a logarithm."""
        return self._loss_descriptor.epsilon

    @epsilon.setter
    def epsilon(self, epsilon: float) -> None:
        self._change("epsilon", epsilon)

    @property
    def delta(self) -> float:
        """The difference from which on ``huber`` is a straight line."""
        return self._loss_descriptor.delta

    @delta.setter
    def delta(self, delta: float) -> None:
        self._change("delta", delta)
