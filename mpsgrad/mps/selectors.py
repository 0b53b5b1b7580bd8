"""Methods and properties by Apple's names, made from the manifest."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from numbers import Real
from typing import Any

import numpy as np

from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import integer
from mpsgrad.mps.conversion import block_to_ours, to_apple, to_ours
from mpsgrad.mps.manifest import Member, Status, snake_case


def method(members: Iterable[Member], ours: type | None) -> Any:
    """One Python method for the ``members``, Apple's methods of one class whose selectors begin alike.

    The first argument is given by position, all others by their labels; the labels say which method is meant.
    """
    overloads = {member.key: member for member in members}
    expressions: dict[Any, ast.expr] = {}
    first = next(iter(overloads.values()))

    def send(receiver: Any, /, *arguments: Any, **labels: Any) -> Any:
        scope = receiver if isinstance(receiver, type) else type(receiver)
        key = len(arguments), frozenset(labels)
        member = overloads.get(key)
        if member is None:
            raise FormatError(_no_such_method(scope.__name__, first.name, *key, overloads.values()))
        if not member.status.is_callable:
            raise NotImplementedError(f"{scope.__name__}: {member.selector} is {described(member)}")
        values = {label: to_ours(value) for label, value in labels.items()}
        if arguments:
            values[member.parameters[0].name] = to_ours(arguments[0])
        for name in member.integers:
            values[name] = integer(scope.__name__, name, values[name])
        for name in member.blocks:
            values[name] = block_to_ours(values[name])
        expression = expressions.get((key, scope))
        if expression is None:
            expression = _parsed(member.call(scope))
            if not _fits(expression, scope):
                raise NotImplementedError(_of_no_use(scope, member, overloads.values()))
            expressions[key, scope] = expression
        result = to_apple(_evaluate(expression, receiver, {**values, "cls": scope}))
        if "of_forward" in member.annotations:
            _require_those_of_forward(result, values)
        for name in member.filled:
            if values[name] is not None:
                values[name][:] = to_apple(values[name])
        return result

    send.__name__ = send.__qualname__ = first.name
    send.__doc__ = "\n".join(_documentation(member, ours) for member in overloads.values())
    return classmethod(send) if first.is_constructor else send


def apple_property(member: Member) -> property:
    """The property of that name; it can be set unless it is read-only in MPS."""
    name = member.call(None)

    def read(self: Any) -> Any:
        if not member.status.is_callable:
            raise NotImplementedError(f"{type(self).__name__}: {member.name} is {described(member)}")
        return to_apple(_evaluate(_parsed(name), self, {}))

    def write(self: Any, value: Any) -> None:
        if not member.status.is_callable:
            raise NotImplementedError(f"{type(self).__name__}: {member.name} is {described(member)}")
        setattr(self, name, to_ours(value))

    is_fixed = member.is_readonly or "fixed" in member.annotations
    return property(read, None if is_fixed else write, doc=_documentation(member, None))


def kept_property(member: Member) -> property:
    """A property that keeps what is set and has no effect."""

    def read(self: Any) -> Any:
        return vars(self).get(member.name)

    def write(self: Any, value: Any) -> None:
        vars(self)[member.name] = value

    return property(read, write, doc=_documentation(member, None))


def _require_those_of_forward(gradient: Any, values: dict[str, Any]) -> None:
    """Raises ``GeometryError`` if a gradient node was given numbers that are not those of its forward node."""
    forward = gradient.inference_node
    for label, value in values.items():
        of_forward = getattr(forward, snake_case(label), None)
        if isinstance(value, Real) and isinstance(of_forward, Real) and np.float32(value) != np.float32(of_forward):
            raise GeometryError(
                f"{type(gradient).__name__}: {label} is {value} but {of_forward} in {forward!r}, whose gradient it is"
            )


def described(member: Member) -> str:
    """The status of a declaration and its reason, for messages."""
    reason = f": {member.reason}" if member.reason else ""
    return f"{member.status.value}{reason}"


def _documentation(member: Member, ours: type | None) -> str:
    text = f"``{member.declaration}``"
    if member.status.is_callable:
        call = member.call(ours)
        owner = "" if ours is None else f"``{ours.__name__}``: "
        text += f" does {owner}``{call}``."
    if member.status is not Status.DONE:
        text += f" {described(member).capitalize()}."
    return text + "\n"


def _no_such_method(owner: str, name: str, count: int, labels: frozenset[str], known: Iterable[Member]) -> str:
    usable = [member for member in known if member.status.is_callable]
    called = ", ".join(["…"] * count + [f"{label}=…" for label in sorted(labels)])
    text = f"{owner}: there is no {name}({called})"
    if not usable:
        return f"{text}; in MPS it is {described(next(iter(known)))}"
    unknown = [label for label in sorted(labels) if all(label not in member.key[1] for member in usable)]
    if unknown:
        text += f": {', '.join(unknown)} is no label of {name}"
    return f"{text}; there is {' and '.join(member.python_call() for member in usable)}"


def _of_no_use(scope: type, member: Member, known: Iterable[Member]) -> str:
    text = f"{scope.__name__}: {member.selector} is inherited in MPS, but of no use to this class"
    if member.reason:
        text += f": {member.reason}"
    usable = usable_calls(known, scope)
    return f"{text}; there is {' and '.join(usable)}" if usable else text


def usable_calls(members: Iterable[Member], scope: type) -> list[str]:
    """The calls in Python of those of ``members`` that ``scope`` can answer."""
    usable = [each for each in members if each.status.is_callable and _fits(_parsed(each.call(scope)), scope)]
    return [each.python_call() for each in usable]


def _fits(expression: ast.expr, scope: type) -> bool:
    """Whether ``scope`` has what a call of the manifest calls, for as many arguments, and with these names."""
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Name):
        return True
    name = expression.func.id
    called = scope if name == "cls" else getattr(scope, name, None)
    if called is None:
        return False
    receiver = [None] if inspect.isfunction(inspect.getattr_static(scope, name, None)) else []
    try:
        inspect.signature(called).bind(*receiver, *expression.args, **{str(e.arg): None for e in expression.keywords})
    except TypeError:
        return False
    return True


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _evaluate(node: ast.expr, receiver: Any, arguments: dict[str, Any]) -> Any:
    """The value of an expression of the manifest; names that are no arguments are attributes of ``receiver``."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return arguments[node.id] if node.id in arguments else getattr(receiver, node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_evaluate(node.value, receiver, arguments), node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.upper is not None:
        values, count = _evaluate(node.value, receiver, arguments), _evaluate(node.slice.upper, receiver, arguments)
        if count > len(values):
            what, number = ast.unparse(node.value), ast.unparse(node.slice.upper)
            raise GeometryError(f"{receiver.__name__}: {number} is {count} but there are {len(values)} {what}")
        return values[:count]
    if isinstance(node, ast.Subscript):
        return _evaluate(node.value, receiver, arguments)[_evaluate(node.slice, receiver, arguments)]
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(part, receiver, arguments) for part in node.elts)
    if isinstance(node, ast.BoolOp):
        first, second = node.values
        return _evaluate(first, receiver, arguments) or _evaluate(second, receiver, arguments)
    if isinstance(node, ast.Call):
        function: Callable[..., Any] = _evaluate(node.func, receiver, arguments)
        given = [_evaluate(part, receiver, arguments) for part in node.args]
        named = {str(part.arg): _evaluate(part.value, receiver, arguments) for part in node.keywords}
        return function(*given, **named)
    raise ValueError(f"the manifest's expressions have no {type(node).__name__}")
