"""The manifest of Apple's names, the pages that are made from it, and this package's public names."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import own_names
import pytest
from apple_pages import PAGES, ROOT

import mpsgrad as mg
from mpsgrad import functional, mps
from mpsgrad.mps import manifest
from mpsgrad.mps.classes import ours_of
from mpsgrad.mps.manifest import Member, Status, declarations

# The classes of the five pages of Apple's documentation that the package began with, and those they mention.
SEEDS = """
MPSKernel MPSCNNKernel MPSCNNBinaryKernel MPSCNNGradientKernel MPSNNGradientState MPSNNBinaryGradientState MPSState
MPSImage MPSImageDescriptor MPSImageSizeEncodingState MPSCNNLoss MPSCNNArithmeticGradient MPSCNNBatchNormalization
MPSCNNBatchNormalizationGradient MPSCNNBatchNormalizationStatisticsGradient MPSCNNBatchNormalizationState
MPSCNNConvolution MPSCNNConvolutionGradient MPSCNNConvolutionGradientState MPSCNNConvolutionTranspose
MPSCNNFullyConnectedGradient MPSCNNCrossChannelNormalizationGradient MPSCNNDropoutGradient
MPSCNNInstanceNormalizationGradient MPSCNNLocalContrastNormalizationGradient MPSCNNLogSoftMaxGradient
MPSCNNNeuronGradient MPSCNNPooling MPSCNNPoolingMax MPSCNNPoolingGradient MPSCNNPoolingAverageGradient
MPSCNNPoolingMaxGradient MPSCNNPoolingL2NormGradient MPSCNNDilatedPoolingMaxGradient MPSCNNSoftMaxGradient
MPSCNNSpatialNormalizationGradient MPSCNNUpsamplingGradient
""".split()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_made_from_the_manifest_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), f"{path.relative_to(ROOT)} is stale: run make docs"


@pytest.mark.parametrize("name", SEEDS)
def test_what_the_first_pages_name_is_done(name: str) -> None:
    declaration = declarations()[name]
    assert declaration.status.is_callable
    assert not [member.selector for member in declaration.members if member.status is Status.CONSTRUCTION]


def test_every_public_class_and_value_is_apples_or_marked_as_ours() -> None:
    marked = manifest.own_names()
    public = set(own_names.public_classes())
    assert not public - own_names.reached_classes() - set(marked["classes"]), "neither Apple's nor in ours.toml"
    assert set(marked["classes"]) <= public - own_names.reached_classes(), "in ours.toml, but gone or Apple's"
    assert own_names.public_values() == set(marked["values"])


def test_every_public_attribute_is_apples_or_marked_as_ours() -> None:
    anywhere = manifest.own_names()["everywhere"]["attributes"]
    public, reached, own = own_names.public_attributes(), own_names.reached_attributes(), own_names.own_attributes()
    unknown = {name for name in public - reached - own if name[1] not in anywhere}
    assert not unknown, "neither in the manifest nor marked as ours in ours.toml"
    assert own <= public - reached, "marked as ours in ours.toml, but they are gone or Apple's"


def test_what_is_not_done_has_a_reason() -> None:
    for declaration in declarations().values():
        for each in (declaration, *declaration.members):
            assert bool(each.reason) == (each.status not in (Status.DONE, Status.UNAVAILABLE)), each


def _calls() -> list[tuple[str, Member]]:
    return [
        (declaration.name, member)
        for declaration in declarations().values()
        if declaration.status.is_callable and not declaration.is_enumeration and not declaration.is_protocol
        for member in declaration.members
        if member.status.is_callable and "kept" not in member.annotations
    ]


def test_every_call_of_the_manifest_fits_what_it_calls() -> None:
    for name, member in _calls():
        cls = getattr(mps, name)
        node: Any = ast.parse(member.call(cls), mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != "__setattr__":
            is_class = node.func.id == "cls"
            called = cls if is_class else inspect.getattr_static(cls, node.func.id, None)
            if called is None:
                assert issubclass(cls, mps.MPSState) and "gradient states have it" in member.reason
                continue
            receiver = [None] if inspect.isfunction(called) else []
            function = cls if is_class else getattr(cls, node.func.id)
            inspect.signature(function).bind(*receiver, *node.args, **{each.arg: None for each in node.keywords})


def test_every_constant_has_apples_value() -> None:
    for declaration in declarations().values():
        for member in declaration.members if declaration.is_enumeration and declaration.status.is_callable else ():
            if member.status.is_callable:
                value = getattr(mps, member.name)
                assert value == member.annotations["value"] and isinstance(value, getattr(mps, declaration.name))


def test_names_say_which_of_our_classes_they_stand_for() -> None:
    for declaration in declarations().values():
        if declaration.python and declaration.status.is_callable and not declaration.is_enumeration:
            cls, ours = getattr(mps, declaration.name), ours_of(declaration)
            assert ours is not None and f"{ours.__name__}``" in cls.__doc__
            assert declaration.is_protocol or issubclass(cls, ours)


@pytest.mark.parametrize(
    ("name", "snake_case"),
    [
        ("strideInPixelsX", "stride_in_pixels_x"),
        ("minIOUForObjectPresence", "min_iou_for_object_presence"),
        ("rangesForUInt8Kernel", "ranges_for_uint8_kernel"),
        ("beta1", "beta1"),
        ("XYLossDescriptor", "xy_loss_descriptor"),
    ],
)
def test_snake_case(name: str, snake_case: str) -> None:
    assert manifest.snake_case(name) == snake_case


OPEN_QUESTIONS = """
BatchNormalizationState BatchNormalizationStatistics Compare ConvolutionGradient
ConvolutionGradientState ConvolutionTranspose Dropout GradientKernel GroupNormalization InstanceNormalization
LocalContrastNormalization Loss OptimizerDescriptor PoolingL2NormGradient PoolingMax Reshape SoftMaxGradientNode
SpatialNormalization UpsamplingBilinearGradient
""".split()


def test_every_public_name_is_documented() -> None:
    """With its own words or, for what a class overrides, those of the class above."""
    bare = [name for name in functional.__all__ if not getattr(functional, name).__doc__]
    for name in mg.__all__:
        thing = getattr(mg, name)
        if not inspect.isclass(thing):
            continue
        bare += [] if vars(thing).get("__doc__") else [name]
        for attribute in filter(lambda each: not each.startswith("_"), dir(thing)):
            inherited = [vars(each)[attribute] for each in thing.__mro__ if attribute in vars(each)]
            function = getattr(inherited[0], "fget", None) or getattr(inherited[0], "__func__", inherited[0])
            if inspect.isfunction(function) and function.__module__.startswith("mpsgrad"):
                bare += [] if any(each.__doc__ for each in inherited) else [f"{name}.{attribute}"]
    assert not bare


@pytest.mark.parametrize("name", OPEN_QUESTIONS)
def test_what_apple_leaves_open_is_said_to_be_our_choice(name: str) -> None:
    words = " ".join(getattr(mg, name).__doc__.split())
    assert re.search(r"MPS does not say|does not say|\bours?\b", words)
