"""Misspelt properties are refused: they would have no effect."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import mpsgrad as mg
from mpsgrad import known_attributes, mps


@pytest.mark.parametrize(
    ("thing", "misspelt", "meant"),
    [
        (lambda: mg.PoolingMax(kernel_width=2, kernel_height=2), "offest", "offset"),
        (mg.Add, "primary_stride_in_pixel_x", "primary_stride_in_pixels_x"),
        (mg.SoftMaxGradient, "lable", "label"),
        (lambda: mg.ConvolutionDescriptor(3, 3, 4, 8), "stride_in_pixel_x", "stride_in_pixels_x"),
        (lambda: copy.copy(mg.ConvolutionDescriptor(3, 3, 4, 8)), "group", "groups"),
        (mg.ImageNode, "stop_gradients", "stop_gradient"),
        (mg.LabelsNode, "export_from_grph", "export_from_graph"),
        (lambda: mg.NeuronReLUNode(mg.ImageNode()), "source_image", "source_images"),
        (lambda: mg.PoolingMaxNode(mg.ImageNode(), kernel_width=2, kernel_height=2), "padding_polcy", "padding_policy"),
        (lambda: mg.Graph(mg.NeuronReLUNode(mg.ImageNode())), "formt", "format"),
        (mg.LossScale, "growth_intervall", "growth_interval"),
    ],
)
def test_setting_a_misspelt_property_names_the_nearest_ones(thing: Any, misspelt: str, meant: str) -> None:
    made = thing()
    value = getattr(made, meant)
    setattr(made, meant, value)
    with pytest.raises(AttributeError, match=rf"^{type(made).__name__} has no {misspelt}; close to it are .*{meant}"):
        setattr(made, misspelt, value)
    assert not hasattr(made, misspelt) and getattr(made, meant) == value
    with pytest.raises(AttributeError, match=f"^{type(made).__name__} has no zzz$"):
        made.zzz = 1


@pytest.mark.parametrize("thing", [mg.Add, lambda: mg.Graph(mg.SoftMaxNode(mg.ImageNode()))])
def test_kernels_and_graphs_stay_on_their_device(thing: Any) -> None:
    made = thing()
    device = made.device
    with pytest.raises(AttributeError, match=rf"^{type(made).__name__}: device cannot be set$"):
        made.device = device


@pytest.mark.parametrize(
    "descriptor",
    [mg.ImageDescriptor(), mg.NeuronDescriptor(mg.NeuronType.RELU), mg.LossDescriptor("mean_squared_error", "mean")],
)
def test_descriptors_that_do_not_change_refuse_every_name(descriptor: Any) -> None:
    with pytest.raises(FrozenInstanceError, match="widht"):
        descriptor.widht = 2


def test_classes_of_users_have_what_their_constructors_make() -> None:
    class Scaled(mg.NeuronLinear):
        unit = "m"

        def __init__(self, factor: float) -> None:
            self.before = factor
            super().__init__(a=factor)
            self.factor = factor

    kernel = Scaled(2)
    kernel.factor, kernel.before, kernel.unit, kernel._kept = 3, 1, "s", 4  # type: ignore[attr-defined]
    assert (kernel.factor, kernel.before, kernel.unit) == (3, 1, "s")
    with pytest.raises(AttributeError, match="^Scaled has no factro; close to it are factor"):
        kernel.factro = 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (mg, "PoolingMx", "^mpsgrad has no PoolingMx; close to it are PoolingMax"),
        (mg, "MPSCNNPoolingMax", "^mpsgrad has no MPSCNNPoolingMax; mpsgrad.mps has Apple's names$"),
        (mg, "Conv2d", "^mpsgrad has no Conv2d; docs/pytorch.md has PyTorch's names beside those here$"),
        (mg, "__wrapped__", "^mpsgrad has no __wrapped__$"),
        (mg.functional, "softmax", "^mpsgrad.functional has no softmax; close to it are soft_max"),
        (mg.functional, "relu", "^mpsgrad.functional has no relu; docs/pytorch.md has"),
    ],
)
def test_names_that_modules_do_not_have_are_answered_with_others(module: Any, name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(module, name)
    assert not hasattr(module, name)


@pytest.mark.parametrize("thing", [mg, mg.functional, mps, mps.MPSImage], ids=["mg", "functional", "mps", "class"])
def test_who_only_asks_does_not_wait_for_the_nearest_names(thing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: Any) -> str:
        raise AssertionError("searched for the nearest names")

    for module in (known_attributes, mps):
        monkeypatch.setattr(module, "nearest", searched)
    assert not hasattr(thing, "PoolingMx")


def test_the_error_can_be_sent_to_another_process() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = mg.PoolingMx  # type: ignore[attr-defined]
    sent = pickle.loads(pickle.dumps(caught.value))
    assert str(sent) == str(caught.value)
    assert repr(caught.value) == f"NoSuchAttributeError({str(sent)!r})"


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (lambda: mg.Image(mg.ImageDescriptor()), ("device", "parent", "command_buffer", "descriptor", "width")),
        (lambda: mg.TemporaryImage(mg.CommandBuffer(), mg.ImageDescriptor()), ("device", "parent", "command_buffer")),
        (lambda: mg.State((4,)), ("device", "command_buffer", "resource_count")),
        (lambda: mg.Vector(4), ("device", "length", "buffer")),
        (mg.CommandBuffer, ("device",)),
    ],
)
def test_what_memory_belongs_to_cannot_be_set(thing: Any, names: tuple[str, ...]) -> None:
    made = thing()
    for name in names:
        kept = getattr(made, name)
        with pytest.raises(AttributeError, match=f"'{name}' of '{type(made).__name__}' object has no setter"):
            setattr(made, name, kept)
        assert getattr(made, name) is kept or getattr(made, name) == kept


def test_calls_that_a_constructor_does_not_take_name_the_class_and_what_it_takes() -> None:
    pooling: Any = mg.PoolingMax
    upsampling: Any = mg.UpsamplingBilinearNode
    maximum: Any = mg.PoolingMaxNode
    for call, words in (
        (
            lambda: upsampling(mg.ImageNode(), 2, 2, align_corners=True),
            r"^UpsamplingBilinearNode: too many positional arguments; there is UpsamplingBilinearNode\(source, "
            r"padding_policy, label, scale_factor_x, scale_factor_y, align_corners\)$",
        ),
        (
            lambda: maximum(mg.ImageNode(), 2, 2, 2, label="top", kernelWidth=3),
            r"^PoolingMaxNode: kernelWidth is no argument; there is PoolingMaxNode\(source, filter_size, stride, "
            r"padding_policy, label, kernel_width, kernel_height, .*, record_maxima\)$",
        ),
        (lambda: pooling(kernelWidth=3), r"^PoolingMax: kernelWidth is no argument; there is PoolingMax\(kernel_wi"),
        (
            lambda: pooling(kernel_width=3, kernel_height=3, edge_mode="clamp", clip_rect=None),
            r"^PoolingMax: edge_mode, clip_rect are no arguments but can be set later; there is ",
        ),
        (lambda: pooling(offset=1, is_backwards=True), r"^PoolingMax: offset, is_backwards are no arguments; there is"),
        (lambda: pooling(kernel_width=3), r"^PoolingMax: missing a required argument: 'kernel_height'; there is "),
        (lambda: pooling(3, 3, 1, 1, 1, 1, 1, 1), "^PoolingMax: too many positional arguments; there is "),
    ):
        with pytest.raises(mg.FormatError, match=words):
            call()

    class Broken(mg.NeuronReLU):
        def __init__(self) -> None:
            len(5)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        Broken()
