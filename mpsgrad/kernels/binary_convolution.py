"""Convolutions with weights of one bit: MPS has them for inference only, and this package refuses them by name."""

from __future__ import annotations

from typing import Any, NoReturn

REASON = (
    "what a binarized image has outside its edges, and how its scaling terms are rounded, is not published, so that no "
    "result could be said to be right, and MPS has no gradient for it; {other} with weights of -1 and 1 can be trained"
)


class BinaryConvolution:
    """Not offered: raises ``NotImplementedError``. Source: ``MPSCNNBinaryConvolution``."""

    _other = "Convolution"

    # objc: -initWithDevice:convolutionData:scaleValue:type:flags:
    # objc: -initWithDevice:convolutionData:outputBiasTerms:outputScaleTerms:inputBiasTerms:inputScaleTerms:type:flags:
    def __init__(self, *arguments: Any, **named: Any) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__}: {REASON.format(other=self._other)}")


class BinaryFullyConnected(BinaryConvolution):
    """Not offered: raises ``NotImplementedError``. Source: ``MPSCNNBinaryFullyConnected``."""

    _other = "FullyConnected"
