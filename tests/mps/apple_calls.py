"""One call, written in Objective-C, in Swift, and in Python by Apple's names and by this package's."""

from __future__ import annotations

import ast
import re

import mpsgrad
from mpsgrad.mps.classes import ours_of
from mpsgrad.mps.manifest import Declaration, Member, Parameter

SHORT = {
    "biases": "biases", "commandBuffer": "cb", "destinationGradient": "dx", "destinationGradients": "dxs",
    "destinationImage": "y", "destinationImages": "ys", "destinationState": "state", "destinationStates": "states",
    "gradientState": "state", "gradientStates": "states", "imageDescriptor": "descriptor", "primaryImage": "a",
    "primaryImages": "as_", "secondaryImage": "b", "secondaryImages": "bs", "sourceGradient": "g",
    "sourceGradients": "gs", "sourceImage": "x", "sourceImages": "xs", "sourceState": "state",
}  # fmt: skip
"""Names of variables in the examples, where the argument's own name is long."""
NUMBERS = {
    "kernelWidth": "3", "kernelHeight": "3", "kernelSize": "5", "strideInPixelsX": "2", "strideInPixelsY": "2",
    "dilationRateX": "2", "dilationRateY": "2", "integerScaleFactorX": "2", "integerScaleFactorY": "2", "width": "32",
    "height": "32", "featureChannels": "64", "numberOfImages": "8", "inputFeatureChannels": "64",
    "outputFeatureChannels": "128", "alpha": "0.5", "a": "0.1", "b": "1", "c": "1", "keepProbability": "0.5",
    "seed": "1", "learningRate": "0.01", "resizeWidth": "64", "resizeHeight": "64", "index": "0", "imageIndex": "0",
    "momentumScale": "0.9", "decay": "0.9", "epsilon": "1e-8", "beta1": "0.9", "beta2": "0.999", "timeStep": "0",
    "reshapedWidth": "1", "reshapedHeight": "1", "reshapedFeatureChannels": "1024", "numberOfFeatureChannels": "64",
}  # fmt: skip
_PYTHON = {"YES": "True", "NO": "False", "nil": "None"}
_SWIFT = {"YES": "true", "NO": "false"}


def objective_c(declaration: Declaration, member: Member) -> str:
    """``[kernel encodeToCommandBuffer:cb sourceImage:x]``."""
    name = declaration.name
    receiver = _variable(declaration)
    if member.declaration[0] == "+":
        receiver = name
    elif member.is_constructor:
        receiver = f"[{name} alloc]"
    labels = member.selector[1:].rstrip(":").split(":")
    if not member.parameters:
        return f"[{receiver} {labels[0]}]"
    parts = zip(labels, member.parameters, strict=True)
    return f"[{receiver} {' '.join(f'{label}:{_value(each)}' for label, each in parts)}]"


def swift(declaration: Declaration, member: Member) -> str:
    """``kernel.encode(commandBuffer: cb, sourceImage: x)``."""
    first, *rest = [f"{each.name}: {_SWIFT.get(_value(each), _value(each))}" for each in member.parameters] or [""]
    split = re.fullmatch(r"(\w*?)(To|For|With|On|At)([A-Z]\w*)", member.name)
    if member.name.startswith("init") or member.kind == "instancetype":
        label = re.sub(r"^.*(?:With|From)", "", member.name)
        first = f"{label[0].lower()}{label[1:]}{first[first.index(':'):]}" if member.parameters else first
        return f"{declaration.name}({', '.join(filter(None, (first, *rest)))})"
    receiver = declaration.name if member.declaration[0] == "+" else _variable(declaration)
    if not member.parameters:
        return f"{receiver}.{member.name}()"
    value = first.split(": ")[1]
    if split is None:
        return f"{receiver}.{member.name}({', '.join((value, *rest))})"
    verb, preposition, _ = split.groups()
    is_named = preposition in ("To", "For")
    label = first if is_named else f"{preposition.lower()}: {value}"
    return f"{receiver}.{verb}({', '.join((label, *rest))})"


def ours_by_apple_names(declaration: Declaration, member: Member) -> str:
    """``kernel.encodeToCommandBuffer(cb, sourceImage=x)``."""
    receiver = declaration.name if member.is_constructor else _variable(declaration)
    inputs = [_python_value(each) for each in member.inputs]
    labels = [each.name for each in member.inputs]
    given = inputs[:1] + [f"{label}={value}" for label, value in zip(labels[1:], inputs[1:], strict=True)]
    return f"{_results(member)}{receiver}.{member.name}({', '.join(given)})"


def ours(declaration: Declaration, member: Member) -> str:
    """``kernel.encode(cb, source_image=x)``."""
    cls = ours_of(declaration)
    assert cls is not None
    values = {each.name: _python_value(each) for each in member.inputs}
    name = f"{'mg' if hasattr(mpsgrad, cls.__name__) else cls.__module__}.{cls.__name__}"
    receiver = name if member.is_constructor else _variable(declaration)
    text = ast.unparse(_Spelled(values, receiver, name).visit(ast.parse(member.call(cls), mode="eval")))
    return f"{_results(member)}{text}"


class _Spelled(ast.NodeTransformer):
    """Puts the example's values for the arguments, and the receiver before what it has."""

    def __init__(self, values: dict[str, str], receiver: str, cls: str) -> None:
        self.values, self.receiver, self.cls = values, receiver, cls

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.values:
            return ast.parse(self.values[node.id], mode="eval").body
        return ast.Name(self.cls if node.id == "cls" else f"{self.receiver}.{node.id}")


def _variable(declaration: Declaration) -> str:
    name = declaration.name
    if "Optimizer" in name and not name.endswith("Descriptor"):
        return "optimizer"
    if name == "MPSCommandBuffer":
        return "cb"
    ends = {
        "State": "state", "Descriptor": "descriptor", "Image": "image", "Labels": "labels", "Padding": "padding",
        "Gradient": "gradient", "List": "list",
    }  # fmt: skip
    return next((word for end, word in ends.items() if name.endswith(end)), "kernel")


def _results(member: Member) -> str:
    """The left side of an assignment where a method gives more than one thing back."""
    outputs = ["states" if "Batch" in each.type else "state" for each in member.parameters if each.is_output]
    if not outputs:
        return ""
    return f"{', '.join([('ys' if 'Batch' in member.kind else 'y'), *outputs])} = "


def _value(parameter: Parameter) -> str:
    if parameter.is_output:
        return "&states" if "Batch" in parameter.type else "&state"
    if parameter.type == "BOOL":
        return "NO"
    return NUMBERS.get(parameter.name) or SHORT.get(parameter.name, parameter.name)


def _python_value(parameter: Parameter) -> str:
    value = _value(parameter)
    return _PYTHON.get(value, value)
