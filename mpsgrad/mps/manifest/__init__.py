"""The manifest of Apple's declarations: a TOML file for each part of the library, and what reads them.

A table for each class, protocol and enumeration, with ``extends``, ``conforms``, ``since`` (macOS / iOS), and

* ``python``: the class of this package that does its work;
* ``different``, ``construction`` or ``not_planned``: why it is not simply done.

``[NAME.members]`` has a line for each declaration. Nothing more is needed where the names of both worlds follow from
each other (``strideInPixelsX`` and ``stride_in_pixels_x``); else

* ``call``: the Python expression that answers it, on the object (or on ``cls``), with Apple's argument names;
* ``different``, ``construction`` or ``not_planned``: as above; and what Apple says: ``unavailable``, ``deprecated``,
  ``optional``, ``later`` (the versions it came with);
* ``of_forward``: its numbers have to be those of the forward node, whose gradient node it makes.

A declaration that is repeated in a subclass takes over what the line above it says.
"""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import Any

SECTIONS = {
    "core": "Images, states, kernels and archives",
    "kernels": "Base classes, padding and gradient states",
    "convolution": "Convolution",
    "pooling": "Pooling",
    "normalization": "Normalization",
    "activations": "SoftMax, neurons and dropout",
    "resampling": "Upsampling and resizing",
    "arithmetic": "Arithmetic",
    "shapes": "Reshape, pad, slice and reduce",
    "losses": "Losses",
    "optimizers": "Optimizers",
    "graph": "Graph",
    "enumerations": "Enumerations",
}
"""The files of the manifest, in the order of Apple's documentation, and their titles."""


class Status(enum.Enum):
    """What becomes of one of Apple's names here; the values are what COVERAGE.md prints."""

    DONE = "done"
    DIFFERENT = "different"
    UNAVAILABLE = "unavailable in MPS"
    CONSTRUCTION = "under construction"
    NOT_PLANNED = "not planned"

    @property
    def is_callable(self) -> bool:
        """Whether the name can be used."""
        return self in (Status.DONE, Status.DIFFERENT)


_REASONS = {
    "different": Status.DIFFERENT,
    "construction": Status.CONSTRUCTION,
    "not_planned": Status.NOT_PLANNED,
}
_SAYS_WHAT_BECOMES_OF_IT = {"call", *_REASONS}
_PREPOSITION = re.compile(r"^(\w*)(With|For|To|On|At|From)([A-Z]\w*)$")


@dataclass(frozen=True)
class Parameter:
    """One argument of a method. ``is_output`` marks a pointer through which the method gives something back."""

    name: str
    type: str

    @property
    def is_output(self) -> bool:
        return "**" in self.type

    @property
    def is_block(self) -> bool:
        """Whether it is a function that the method calls back."""
        return self.type.rstrip("?").endswith(("Block", "Handler"))


@dataclass(frozen=True)
class Member:
    """One declaration: a property, a method or a constant of an enumeration."""

    declaration: str
    annotations: dict[str, Any] = field(compare=False)

    @cached_property
    def _parts(self) -> tuple[str, str, list[tuple[str, str]], str]:
        """The sign of a method or an empty string, its name, its labels with their types, and the type it gives."""
        if self.is_property:
            kind, name = re.sub(r"^@property (\([^)]*\) )?", "", self.declaration).rsplit(" ", 1)
            return "", name, [], kind
        if self.declaration[0] not in "+-":
            return "", self.declaration, [], ""
        text, result = self.declaration.rsplit(" -> ", 1)
        labels = re.findall(r"(\w*):\(((?:[^()]|\([^()]*\))*)\)", text)
        name = labels[0][0] if labels else text[2:].strip()
        return text[0], name, labels, result

    @property
    def is_property(self) -> bool:
        return self.declaration.startswith("@property")

    @property
    def is_method(self) -> bool:
        return self.declaration[0] in "+-"

    @property
    def is_readonly(self) -> bool:
        return self.is_property and "readonly" in self.declaration.partition(")")[0]

    @property
    def is_optional(self) -> bool:
        """Whether a class that conforms to the protocol may lack it."""
        return "optional" in self.annotations

    @property
    def is_constructor(self) -> bool:
        """Whether it makes an object, and so is called on the class."""
        return self._parts[0] == "+" or self.name.startswith("init")

    @property
    def name(self) -> str:
        """The property's name, or the first part of the selector: the name of the method in Python."""
        return self._parts[1]

    @property
    def kind(self) -> str:
        """The type of the property or of the result, as Objective-C writes it."""
        return self._parts[3]

    @cached_property
    def selector(self) -> str:
        """``-encodeToCommandBuffer:sourceImage:``, or the name of a property."""
        sign, name, labels, _ = self._parts
        return sign + ("".join(f"{label}:" for label, _ in labels) if labels else name)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The first is named after the end of the first part: ``initWithDevice:`` has a ``device``."""
        labels = self._parts[2]
        return tuple(
            Parameter(_first_name(label) if index == 0 else label, kind) for index, (label, kind) in enumerate(labels)
        )

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """What is given in a call in Python: outputs are results there."""
        return tuple(each for each in self.parameters if not each.is_output)

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The names of the arguments that are functions."""
        return tuple(each.name for each in self.parameters if each.is_block)

    @cached_property
    def integers(self) -> tuple[str, ...]:
        """The names of the arguments that are integers."""
        return tuple(each.name for each in self.parameters if each.type in ("NSUInteger", "NSInteger"))

    @cached_property
    def filled(self) -> tuple[str, ...]:
        """The names of the arguments that are lists to which the method appends."""
        return tuple(each.name for each in self.parameters if each.type.startswith("NSMutableArray"))

    @property
    def key(self) -> tuple[int, frozenset[str]]:
        """What tells the methods of one name apart: whether there is a first argument, and the labels of the rest."""
        return len(self.parameters[:1]), frozenset(each.name for each in self.inputs[1:])

    @property
    def status(self) -> Status:
        if "unavailable" in self.annotations:
            return Status.UNAVAILABLE
        return next((status for key, status in _REASONS.items() if key in self.annotations), Status.DONE)

    @property
    def reason(self) -> str:
        """Why it is not simply done."""
        return next((self.annotations[key] for key in _REASONS if key in self.annotations), "")

    def call(self, ours: type | None) -> str:
        """The Python expression that answers it on an object of ``ours``: the manifest's, or what its name says."""
        if "call" in self.annotations:
            return self.annotations["call"]
        if self.is_property:
            return snake_case(self.name)
        inputs = self.inputs
        if self.is_constructor and self.kind.rstrip("?*") in ("instancetype", "id"):
            return f"cls({', '.join(f'{snake_case(each.name)}={each.name}' for each in inputs)})"
        name = self._python_name(ours)
        if not self.parameters:
            is_method = callable(getattr(ours, name, None)) and not isinstance(getattr(ours, name), type)
            return f"{name}()" if is_method else name
        arguments = [inputs[0].name]
        for each in inputs[1:]:
            label = "state_is_temporary" if each.name == "destinationStateIsTemporary" else snake_case(each.name)
            arguments.append(f"{label}={each.name}")
        if any(each.is_output for each in self.parameters):
            arguments.append("return_state=True")
        return f"{name}({', '.join(arguments)})"

    def _python_name(self, ours: type | None) -> str:
        whole = snake_case(self.name)
        if hasattr(ours, whole):
            return whole
        match = _PREPOSITION.match(self.name)
        return snake_case(match[1]) if match and self.parameters else whole

    def python_call(self) -> str:
        """How it is written with Apple's names in Python: ``encodeToCommandBuffer(commandBuffer, sourceImage=…)``."""
        if not self.is_method:
            return self.name
        first, *rest = [each.name for each in self.inputs] or [""]
        return f"{self.name}({', '.join([first] * bool(first) + [f'{label}=…' for label in rest])})"


@dataclass(frozen=True)
class Declaration:
    """One class, protocol or enumeration."""

    name: str
    section: str
    table: dict[str, Any] = field(compare=False)

    @property
    def extends(self) -> str | None:
        """The name of the class above it; None below NSObject."""
        return self.table.get("extends")

    @property
    def conforms(self) -> tuple[str, ...]:
        """The protocols of the library that it conforms to."""
        return tuple(self.table.get("conforms", ()))

    @property
    def since(self) -> str:
        """The first versions of macOS and iOS that have it."""
        return self.table.get("since", "")

    @property
    def is_protocol(self) -> bool:
        return "protocol" in self.table

    @property
    def is_enumeration(self) -> bool:
        return "enumeration" in self.table

    @property
    def python(self) -> str | None:
        """The name of the class of this package that does its work."""
        return self.table.get("python")

    @property
    def status(self) -> Status:
        return next((status for key, status in _REASONS.items() if key in self.table), Status.DONE)

    @property
    def reason(self) -> str:
        """Why it is not simply done."""
        return next((self.table[key] for key in _REASONS if key in self.table), "")

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Its declarations; those that repeat one above take over what is said there."""
        above = {member.selector: member for member in self._inherited()}
        made = []
        for declaration, said_here in self.table.get("members", {}).items():
            annotations = said_here
            repeated = above.get(Member(declaration, {}).selector)
            if repeated is not None and not {"unavailable", *_SAYS_WHAT_BECOMES_OF_IT} & annotations.keys():
                said = {k: v for k, v in repeated.annotations.items() if k in _SAYS_WHAT_BECOMES_OF_IT}
                annotations = {**annotations, **said}
            if not self.status.is_callable and "unavailable" not in annotations:
                key = next(key for key in _REASONS if key in self.table)
                annotations = {key: self.reason}
            made.append(Member(declaration, annotations))
        return tuple(made)

    def _inherited(self) -> Iterator[Member]:
        if self.extends in declarations():
            parent = declarations()[self.extends]
            yield from parent._inherited()
            yield from parent.members


@cache
def declarations() -> dict[str, Declaration]:
    """Every class, protocol and enumeration by its name, in the order of the files."""
    found: dict[str, Declaration] = {}
    for section in SECTIONS:
        found |= {name: Declaration(name, section, table) for name, table in _tables(section).items()}
    return found


def own_names() -> dict[str, Any]:
    """The public names of this package that are not Apple's: ``classes`` and ``values`` with the reason of each,

    ``attributes`` by the class that defines them, and those that any class may have, ``everywhere``."""
    return _tables("ours")


@cache
def _tables(file: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(f"{file}.toml").read_text(encoding="utf-8"))


@cache
def snake_case(name: str) -> str:
    """``strideInPixelsX`` as ``stride_in_pixels_x``, ``minIOUForObjectPresence`` as ``min_iou_for_object_presence``."""
    name = name.replace("UInt8", "Uint8")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _first_name(label: str) -> str:
    match = _PREPOSITION.match(label)
    noun = match[3] if match else re.sub("^(set|read|write)", "", label)
    return noun[0].lower() + noun[1:]
