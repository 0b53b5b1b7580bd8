"""Apple's names: every class of Metal Performance Shaders that this package covers, called as in Objective-C.

``MPSCNNPoolingMax`` is a subclass of ``mpsgrad.PoolingMax`` with Apple's selectors and properties in addition::

    from mpsgrad.mps import MTLCommandQueue, MPSCNNPoolingMax, MPSImage

    pool = MPSCNNPoolingMax.initWithDevice(device, kernelWidth=3, kernelHeight=3, strideInPixelsX=2, strideInPixelsY=2)
    y = pool.encodeToCommandBuffer(commandBuffer, sourceImage=x)

The name of a method is the first part of its selector; the first argument is given by position and all others by
their labels. Methods that make an object are called on the class, without ``alloc``. What a method gives back through a
pointer it returns after its result: ``image, state = kernel.encodeToCommandBuffer(commandBuffer, sourceImage=x,
destinationStateIsTemporary=False)``. Everything is made from the manifest in ``mpsgrad/mps/manifest``, COVERAGE.md and
docs/porting.md too. Names that cannot be used raise ``NotImplementedError`` and say why.
"""

from typing import Any

from mpsgrad.known_attributes import NoSuchAttributeError, nearest
from mpsgrad.mps.classes import make_classes, metal_names
from mpsgrad.mps.manifest import declarations

_NAMES = {**metal_names(), **make_classes()}
globals().update(_NAMES)
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    declaration = declarations().get(name)
    if declaration is None:
        raise NoSuchAttributeError(
            lambda: f"mpsgrad.mps has no {name}{nearest(name, __all__)}; COVERAGE.md lists what there is", name
        )
    raise NotImplementedError(f"{name} is {declaration.status.value}: {declaration.reason}")
