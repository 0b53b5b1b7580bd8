"""What type checkers are told of encodes: an image, an image with its state, or nothing, by the arguments."""

from __future__ import annotations

import inspect
from typing import get_args, get_overloads, get_type_hints

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.binary_kernel import BinaryKernel
from mpsgrad.gradient_kernel import GradientKernel
from mpsgrad.image import ImageBatch
from mpsgrad.kernels.pooling import PoolingGradientState
from mpsgrad.unary_kernel import Kernel

RESULTS = {"encode": mg.Image, "encode_batch": ImageBatch}
KINDS = [
    Kernel, BinaryKernel, GradientKernel, mg.BatchNormalization, mg.BatchNormalizationGradient, mg.ConvolutionTranspose,
    mg.Loss, mg.ForwardLoss, mg.LossGradient,
]  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_form_of_a_call_has_its_result(kind: type, name: str) -> None:
    implementation = getattr(kind, name)
    known = inspect.signature(implementation).parameters
    forms = get_overloads(implementation)
    *exact, general = forms
    for form in forms:
        parameters = inspect.signature(form).parameters
        assert list(parameters) == [each for each in known if each in parameters]
    assert list(inspect.signature(general).parameters) == list(known)
    for form in exact:
        parameters, result = inspect.signature(form).parameters, get_type_hints(form)["return"]
        if any(each.startswith("destination") for each in parameters):
            assert result is type(None)
        elif "return_state" in parameters:
            assert get_args(get_type_hints(form)["return_state"]) == (True,)
            assert get_args(result)[0] is RESULTS[name]
        else:
            assert result is RESULTS[name]


def test_the_results_are_what_the_types_say(device: mg.Device) -> None:
    source = mg.Image.from_array(np.ones((2, 4, 4, 3), np.float32), device)
    pooling = mg.PoolingMax(kernel_width=2, kernel_height=2, device=device)
    gradient = mg.PoolingMaxGradient(kernel_width=2, kernel_height=2, device=device)
    with mg.CommandBuffer(device) as commands:
        image = pooling.encode(commands, source)
        pair = pooling.encode(commands, source, return_state=True)
        nothing = pooling.encode(commands, source, destination_image=image)
        batch = pooling.encode_batch(commands, source.batch_representation())
        of_source = gradient.encode(commands, image, source, pair[1])
    assert type(image) is type(of_source) is mg.Image
    assert [type(each) for each in pair] == [mg.Image, PoolingGradientState]
    assert nothing is None
    assert type(batch) is ImageBatch
