"""What a neuron computes: its type and its parameters."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpsgrad.archive import archivable
from mpsgrad.data_type import float_values
from mpsgrad.devices import Buffer, Device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import LARGEST_FLOAT, member, real
from mpsgrad.shader import ParameterStruct

NEURON = ParameterStruct("Neuron", a="float", b="float", c="float")
"""The parameters of a neuron as the shaders' ``lib/neuron_functions.metal.j2`` takes them."""

BASE_E = -1.0
"""The value of ``c`` that stands for base e."""


@archivable
class NeuronType(enum.IntEnum):
    """The function of a neuron; ``NeuronDescriptor`` has the formulas. Source: ``MPSCNNNeuronType``."""

    NONE = 0
    RELU = 1
    LINEAR = 2
    SIGMOID = 3
    HARD_SIGMOID = 4
    TANH = 5
    ABSOLUTE = 6
    SOFT_PLUS = 7
    SOFT_SIGN = 8
    ELU = 9
    PRELU = 10
    RELUN = 11
    POWER = 12
    EXPONENTIAL = 13
    LOGARITHM = 14
    GELU = 15


NEURON_TYPE_NAMES = tuple(kind.name.lower() for kind in NeuronType)

_DEFAULTS: dict[NeuronType, tuple[float, float, float]] = {
    NeuronType.LINEAR: (1.0, 0.0, 0.0),
    NeuronType.HARD_SIGMOID: (0.2, 0.5, 0.0),
    NeuronType.TANH: (1.0, 1.0, 0.0),
    NeuronType.SOFT_PLUS: (1.0, 1.0, 0.0),
    NeuronType.ELU: (1.0, 0.0, 0.0),
    NeuronType.RELUN: (1.0, 6.0, 0.0),
    NeuronType.POWER: (1.0, 0.0, 1.0),
    NeuronType.EXPONENTIAL: (1.0, 0.0, BASE_E),
    NeuronType.LOGARITHM: (1.0, 0.0, BASE_E),
}


@archivable
@dataclass(frozen=True, eq=False)
class NeuronDescriptor:
    """The type and the parameters of a neuron. Source: ``MPSNNNeuronDescriptor``.

    ============  =================================  ==========================================  ====================
    type          f(x)                               f'(x)                                       defaults
    ============  =================================  ==========================================  ====================
    NONE          x                                  1
    RELU          x >= 0 ? x : a x                   x >= 0 ? 1 : a                              a 0
    LINEAR        a x + b                            a                                           a 1, b 0
    SIGMOID       1 / (1 + e^-x)                     f (1 - f)
    HARD_SIGMOID  clamp(a x + b, 0, 1)               0 <= a x + b <= 1 ? a : 0                   a 0.2, b 0.5
    TANH          a tanh(b x)                        a b (1 - tanh(b x)^2)                       a 1, b 1
    ABSOLUTE      ``|x|``                            sign(x), 0 at 0
    SOFT_PLUS     a ln(1 + e^(b x))                  a b / (1 + e^(-b x))                        a 1, b 1
    SOFT_SIGN     x / (1 + ``|x|``)                  1 / (1 + ``|x|``)^2
    ELU           x >= 0 ? x : a (e^x - 1)           x >= 0 ? 1 : a e^x                          a 1
    PRELU         x >= 0 ? x : data[channel] x       x >= 0 ? 1 : data[channel]                  data is needed
    RELUN         min(x >= 0 ? x : a x, b)           0 where f is cut at b, else as RELU         a 1, b 6
    POWER         (a x + b)^c                        a c (a x + b)^(c - 1), 0 for c = 0          a 1, b 0, c 1
    EXPONENTIAL   c^(a x + b), base e for c = -1     a ln(c) f                                   a 1, b 0, c -1
    LOGARITHM     log_c(a x + b), base e for c = -1  a / (ln(c) (a x + b))                       a 1, b 0, c -1
    GELU          x (1 + erf(x / sqrt 2)) / 2        (1 + erf(x / sqrt 2)) / 2 + x e^(-x^2/2) / sqrt(2 pi)
    ============  =================================  ==========================================  ====================

    Apple's headers print another derivative in two places, where ours is the derivative of f: RELUN above b (printed:
    b) and the second term of GELU (printed: twice as large).

    ``neuron_type`` is a ``NeuronType`` or its name. ``a``, ``b`` and ``c`` left out take the defaults.
    ``data``, an array or the bytes of one, has one slope for each feature channel that is processed, for PRELU only; it
    is copied. The descriptor cannot be changed: ``dataclasses.replace`` makes another.

    Raises ``FormatError`` for a wrong type and ``GeometryError`` for parameters that are not finite, a base that is
    neither positive nor -1, and missing, empty or superfluous data.
    """

    neuron_type: NeuronType
    a: float = None  # type: ignore[assignment]
    b: float = None  # type: ignore[assignment]
    c: float = None  # type: ignore[assignment]
    data: np.ndarray | None = None

    # objc: +cnnNeuronDescriptorWithType:
    # objc: +cnnNeuronDescriptorWithType:a:
    # objc: +cnnNeuronDescriptorWithType:a:b:
    # objc: +cnnNeuronDescriptorWithType:a:b:c:
    def __post_init__(self) -> None:
        kind = member("NeuronDescriptor", "neuron_type", NeuronType, self.neuron_type)
        object.__setattr__(self, "neuron_type", kind)
        for name, default in zip("abc", _DEFAULTS.get(kind, (0.0, 0.0, 0.0)), strict=True):
            value = getattr(self, name)
            object.__setattr__(self, name, default if value is None else real("NeuronDescriptor", name, value))
        if kind in (NeuronType.EXPONENTIAL, NeuronType.LOGARITHM):
            one = kind is NeuronType.LOGARITHM and self.c == 1.0
            if self.c != BASE_E and self.c <= 0.0 or one:
                needed = "positive and not 1" if kind is NeuronType.LOGARITHM else "positive"
                raise GeometryError(
                    f"NeuronDescriptor: c, the base of {kind.name}, is {self.c}; it has to be {needed}, or -1 for e"
                )
        if kind is NeuronType.PRELU:
            object.__setattr__(self, "data", _slopes(self.data))
        elif self.data is not None:
            raise GeometryError(f"NeuronDescriptor: data is given but {kind.name} has no slopes; only PRELU has")

    # objc: +cnnNeuronPReLUDescriptorWithData:noCopy:
    @classmethod
    def prelu(cls, data: Any) -> NeuronDescriptor:
        """A PRELU with the slopes ``data``: a sequence of numbers or an array of one dimension."""
        return cls(NeuronType.PRELU, data=data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NeuronDescriptor):
            return NotImplemented
        if (self.neuron_type, self.a, self.b, self.c) != (other.neuron_type, other.a, other.b, other.c):
            return False
        return self.data is None or np.array_equal(self.data, other.data)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash((self.neuron_type, self.a, self.b, self.c))

    @property
    def function_name(self) -> str:
        """The name of the type in shaders."""
        return self.neuron_type.name.lower()

    @property
    def shader_parameters(self) -> tuple[float, float, float]:
        """The fields of ``NEURON``: a, b, and c with the base replaced by its logarithm or that one's inverse.

        For RELU and RELUN c is the least x that the slope is applied to.
        """
        c = self.c
        if self.neuron_type in (NeuronType.RELU, NeuronType.RELUN):
            c = -LARGEST_FLOAT if self.a == 0.0 else -math.inf
        elif self.neuron_type is NeuronType.EXPONENTIAL:
            c = 1.0 if c == BASE_E else math.log(c)
        elif self.neuron_type is NeuronType.LOGARITHM:
            c = 1.0 if c == BASE_E else 1.0 / math.log(c)
        return self.a, self.b, c

    def slope_table(self, device: Device, channels: int) -> Buffer:
        """The first ``channels`` slopes, and then 31 more that repeat them from the start."""
        assert self.data is not None
        return device.constant_buffer(np.resize(self.data[:channels], channels + 31).tobytes())

    def require_channels(self, owner: str, channels: int) -> None:
        """Raises ``GeometryError`` if there are fewer slopes than ``channels``."""
        if self.data is not None and len(self.data) < channels:
            raise GeometryError(
                f"{owner}: data of the neuron has {len(self.data)} slopes but {channels} feature channels are processed"
            )


def require_neuron_descriptor(owner: str, argument: str, value: Any) -> NeuronDescriptor:
    """``value`` if it is a ``NeuronDescriptor``; raises ``FormatError`` otherwise."""
    if not isinstance(value, NeuronDescriptor):
        raise FormatError(f"{owner}: {argument} is {value!r}; it has to be a NeuronDescriptor")
    return value


def _slopes(data: Any) -> np.ndarray:
    if data is None:
        raise GeometryError("NeuronDescriptor: data is None; PRELU needs one slope for each feature channel")
    try:
        with np.errstate(over="ignore"):
            slopes = np.array(float_values("NeuronDescriptor", data), np.float32)
    except (TypeError, ValueError):
        raise FormatError(f"NeuronDescriptor: data is {data!r}; it has to be a sequence of numbers") from None
    if slopes.ndim != 1 or slopes.size == 0:
        raise GeometryError(
            f"NeuronDescriptor: data has shape {slopes.shape}; it has to be a row of at least one slope"
        )
    if not np.isfinite(slopes).all():
        raise GeometryError("NeuronDescriptor: data has slopes that are not finite")
    slopes.flags.writeable = False
    return slopes


NO_NEURON = NeuronDescriptor(NeuronType.NONE)
"""For kernels that apply a neuron to their results only if they are given one."""


def neuron_or_none(owner: str, argument: str, value: Any) -> NeuronDescriptor:
    """``value`` if it is a ``NeuronDescriptor``, ``NO_NEURON`` for None; raises ``FormatError`` otherwise."""
    return NO_NEURON if value is None else require_neuron_descriptor(owner, argument, value)
