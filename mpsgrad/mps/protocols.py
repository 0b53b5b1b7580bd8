"""Protocols that programs implement by Apple's names: data sources, padding policies and allocators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpsgrad.errors import FormatError
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.mps.conversion import to_apple, to_ours
from mpsgrad.mps.manifest import Declaration, Member, snake_case
from mpsgrad.padding import PaddingMethod


class MPSNNPadding:
    """``MPSNNPadding``: a padding policy of your own; a kernel's ``padding`` takes it.

    Define ``paddingMethod()`` and, if it has the bit ``MPSNNPaddingMethodCustom``,
    ``destinationImageDescriptorForSourceImages(sourceImages, sourceStates=, forKernel=, suggestedDescriptor=)``.
    """

    def paddingMethod(self) -> PaddingMethod | int:
        """The bits of the policy."""
        raise NotImplementedError(f"{type(self).__name__} has to define paddingMethod")

    @property
    def padding_method(self) -> PaddingMethod:
        """``paddingMethod()``, for the kernel."""
        return PaddingMethod(self.paddingMethod())

    def destination_image_descriptor(
        self, source_images: Sequence[Image], source_states: Sequence[Any], kernel: Any, suggested: ImageDescriptor
    ) -> ImageDescriptor:
        """``destinationImageDescriptorForSourceImages``, for the kernel."""
        name = "destinationImageDescriptorForSourceImages"
        if not hasattr(self, name):
            raise FormatError(f"{type(self).__name__}: paddingMethod() has the custom bit, but there is no {name}")
        given = [to_apple(image) for image in source_images], [to_apple(state) for state in source_states]
        return to_ours(
            getattr(self, name)(
                given[0], sourceStates=given[1], forKernel=to_apple(kernel), suggestedDescriptor=to_apple(suggested)
            )
        )


class MPSImageAllocator:
    """``MPSImageAllocator``: makes the results of encodes; a kernel's ``destinationImageAllocator`` takes it.

    Define ``imageForCommandBuffer(commandBuffer, imageDescriptor=, kernel=)``.
    """

    def imageForCommandBuffer(self, commandBuffer: Any, *, imageDescriptor: Any, kernel: Any) -> Any:
        """An image of ``imageDescriptor``."""
        raise NotImplementedError(f"{type(self).__name__} has to define imageForCommandBuffer")

    def image(self, command_buffer: Any, descriptor: ImageDescriptor, kernel: Any) -> Image:
        """``imageForCommandBuffer``, for the kernel."""
        return self.imageForCommandBuffer(
            command_buffer, imageDescriptor=to_apple(descriptor), kernel=to_apple(kernel)
        )


def data_source_protocol(declaration: Declaration, ours: type) -> type:
    """The protocol ``declaration`` as a class to derive from; kernels see its objects as ``ours``."""
    view = _view(declaration, ours)
    required = [member for member in declaration.members if not member.is_optional]
    names = ", ".join(member.python_call() for member in required)
    namespace: dict[str, Any] = {member.name: _required(member) for member in required}
    namespace["to_ours"] = lambda self: _view_of(self, view)
    namespace["__module__"] = "mpsgrad.mps"
    namespace["__doc__"] = f"``{declaration.name}``: derive from it and define {names}. See ``{ours.__name__}``."
    return type(declaration.name, (), namespace)


def _view_of(thing: Any, view: type) -> Any:
    """The one object by which kernels see ``thing``, so that those which share a data source have the same."""
    seen = vars(thing).get("_view")
    if seen is None or seen.apple_object is not thing:
        seen = thing._view = view(thing)
    return seen


def _required(member: Member) -> Any:
    def missing(self: Any, *arguments: Any, **labels: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has to define {member.python_call()}")

    missing.__name__ = member.name
    missing.__doc__ = f"``{member.declaration}``"
    return _RequiredProperty(missing) if member.is_property else missing


class _RequiredProperty:
    """A property that a program has to define: in its class, as a property or a value, or in each object."""

    def __init__(self, missing: Callable[[Any], Any]) -> None:
        self._missing = missing
        self.__doc__ = missing.__doc__

    def __get__(self, thing: Any, owner: type) -> Any:
        return self if thing is None else self._missing(thing)


def _view(declaration: Declaration, ours: type) -> type:
    """A subclass of ``ours`` that asks an object with Apple's names."""

    def __init__(self: Any, apple_object: Any) -> None:
        self.apple_object = apple_object

    namespace: dict[str, Any] = {"__init__": __init__, "apple_object": None}
    for member in declaration.members:
        name = snake_case(member.name)
        if member.status.is_callable and (hasattr(ours, name) or member.is_optional):
            is_method = callable(getattr(ours, name, None)) or bool(member.parameters)
            namespace[name] = _asking(member, name) if is_method else property(_asking(member, name))
    return type(ours.__name__, (ours,), namespace)


def _asking(member: Member, name: str) -> Any:
    labels = [each.name for each in member.parameters[1:]]

    def ask(self: Any, *arguments: Any) -> Any:
        if not hasattr(self.apple_object, member.name):
            inherited = getattr(super(type(self), self), name)
            return inherited(*arguments) if member.parameters else inherited
        asked = getattr(self.apple_object, member.name)
        if not member.parameters:  # Objective-C has methods for both
            return to_ours(asked() if callable(asked) else asked)
        given = [to_apple(argument) for argument in arguments]
        return to_ours(asked(*given[:1], **dict(zip(labels, given[1:], strict=True))))

    return ask
