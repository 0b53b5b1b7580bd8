"""Binary convolutions, which are refused with the reason and what to use instead."""

from __future__ import annotations

import pytest

import mpsgrad as mg


@pytest.mark.parametrize(
    ("kernel", "instead"), [(mg.BinaryConvolution, "Convolution"), (mg.BinaryFullyConnected, "FullyConnected")]
)
def test_binary_convolutions_are_refused_with_the_reason(kernel, instead):
    words = f"^{kernel.__name__}: .* not published.* {instead} with weights of"
    for arguments in ((), (object(), 1.0)):
        with pytest.raises(NotImplementedError, match=words):
            kernel(*arguments, scale_value=1.0)
