"""What MPS code uses of Metal and Foundation: devices, queues, command buffers, regions and ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpsgrad.command import CommandBuffer, CommandBufferStatus
from mpsgrad.devices import Device, default_device, require_device
from mpsgrad.geometry import NO_CLIP, Offset, Origin, Region, Size
from mpsgrad.image import Image, ImageBatch
from mpsgrad.mps.conversion import to_apple
from mpsgrad.state import StateBatch
from mpsgrad.vector import Vector

MTLDevice = Device
MTLCommandBufferStatus = CommandBufferStatus
MTLOrigin = Origin
MTLRegion = Region
MTLSize = Size
MPSImageBatch = ImageBatch
MPSOffset = Offset
MPSRectNoClip = NO_CLIP
MPSStateBatch = StateBatch
MPSVector = Vector


_SMALLEST_INTEGER = -(2**63)


class NSRange(NamedTuple):
    """``length`` things from ``location`` on."""

    location: int
    length: int


def NSMakeRange(location: int, length: int) -> NSRange:
    """The range of ``length`` things from ``location`` on."""
    return NSRange(location, length)


def MTLOriginMake(x: int, y: int, z: int) -> Origin:
    """The pixel ``(x, y)`` of image ``z``."""
    return Origin(x, y, z)


def MTLSizeMake(width: int, height: int, depth: int) -> Size:
    """An extent of ``width`` x ``height`` pixels and ``depth`` images."""
    return Size(width, height, depth)


def MTLRegionMake2D(x: int, y: int, width: int, height: int) -> Region:
    """A region of the first image."""
    return Region(Origin(x, y, 0), Size(width, height, 1))


def MTLRegionMake3D(x: int, y: int, z: int, width: int, height: int, depth: int) -> Region:
    """A region of ``depth`` images from image ``z`` on."""
    return Region(Origin(x, y, z), Size(width, height, depth))


def MTLCreateSystemDefaultDevice() -> Device:
    """The default device: ``mpsgrad.default_device``."""
    return default_device()


class MTLCommandBuffer(CommandBuffer):
    """``MTLCommandBuffer``: a ``mpsgrad.CommandBuffer`` with Apple's names."""

    def waitUntilCompleted(self) -> None:
        """``wait_until_completed``."""
        self.wait_until_completed()

    def addCompletedHandler(self, handler: Callable[[CommandBuffer], Any]) -> None:
        """``add_completed_handler``: the handler runs in ``waitUntilCompleted``."""
        self.add_completed_handler(handler)


class MTLCommandQueue:
    """``MTLCommandQueue``: makes command buffers, whose work runs in the order in which they are committed."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = require_device("MTLCommandQueue", device)

    def commandBuffer(self) -> MTLCommandBuffer:
        """A new command buffer."""
        return MTLCommandBuffer(self.device)


def MPSImageBatchIncrementReadCount(batch: ImageBatch, amount: int) -> int:
    """``ImageBatch.increment_read_count``."""
    return batch.increment_read_count(amount)


def MPSImageBatchIterate(batch: ImageBatch, iteratorBlock: Callable[[Image, int], int | None]) -> int:
    """Calls ``iteratorBlock`` with each different image and the index at which it stands first; gives its last result.

    A result above the smallest NSInteger ends the iteration; None is the smallest, ``-2**63``.
    """
    result, seen = _SMALLEST_INTEGER, set()
    for index, image in enumerate(batch):
        if id(image) not in seen and result == _SMALLEST_INTEGER:
            seen.add(id(image))
            given = iteratorBlock(to_apple(image), index)
            result = _SMALLEST_INTEGER if given is None else given
    return result


def MPSImageBatchSynchronize(batch: ImageBatch, commandBuffer: CommandBuffer) -> None:
    """Nothing to do: ``np.asarray`` waits and copies by itself."""


def MPSImageBatchResourceSize(batch: ImageBatch) -> int:
    """``ImageBatch.resource_size``."""
    return batch.resource_size()


def MPSStateBatchIncrementReadCount(batch: StateBatch, amount: int) -> int:
    """``StateBatch.increment_read_count``."""
    return batch.increment_read_count(amount)


def MPSStateBatchSynchronize(batch: StateBatch, commandBuffer: CommandBuffer) -> None:
    """``StateBatch.synchronize``."""
    batch.synchronize(commandBuffer)


def MPSStateBatchResourceSize(batch: StateBatch) -> int:
    """``StateBatch.resource_size``."""
    return batch.resource_size()
