"""What MPS code uses of Metal and Foundation: devices, queues, command buffers, regions and ranges."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from mpsgrad.checked_attribute import fixed
from mpsgrad.command import CommandBuffer, CommandBufferStatus
from mpsgrad.data_type import DataType
from mpsgrad.devices import Buffer, Device, default_device, require_device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import NO_CLIP, ImageCoordinate, Offset, Origin, Region, Size
from mpsgrad.image import Image, ImageBatch
from mpsgrad.mps.conversion import to_apple
from mpsgrad.state import State, StateBatch
from mpsgrad.vector import Vector

MTLDevice = Device
MTLCommandBufferStatus = CommandBufferStatus
MTLOrigin = Origin
MTLRegion = Region
MTLSize = Size
MPSImageBatch = ImageBatch
MPSImageCoordinate = ImageCoordinate
MPSOffset = Offset
MPSRectNoClip = NO_CLIP
MPSStateBatch = StateBatch


NSIntegerMin = -(2**63)


class MTLCPUCacheMode(enum.IntEnum):
    """``MTLCPUCacheMode``: without effect, as MPSImageDescriptor.cpuCacheMode is."""

    DefaultCache = 0
    WriteCombined = 1


class MTLStorageMode(enum.IntEnum):
    """``MTLStorageMode``: without effect, as MPSImageDescriptor.storageMode is."""

    Shared = 0
    Managed = 1
    Private = 2
    Memoryless = 3


class MTLTextureUsage(enum.IntFlag):
    """``MTLTextureUsage``: without effect, as MPSImageDescriptor.usage is."""

    Unknown = 0
    ShaderRead = 1
    ShaderWrite = 2
    RenderTarget = 4
    PixelFormatView = 16


MTLCPUCacheModeDefaultCache = MTLCPUCacheMode.DefaultCache
MTLCPUCacheModeWriteCombined = MTLCPUCacheMode.WriteCombined
MTLStorageModeShared = MTLStorageMode.Shared
MTLStorageModeManaged = MTLStorageMode.Managed
MTLStorageModePrivate = MTLStorageMode.Private
MTLStorageModeMemoryless = MTLStorageMode.Memoryless
MTLTextureUsageUnknown = MTLTextureUsage.Unknown
MTLTextureUsageShaderRead = MTLTextureUsage.ShaderRead
MTLTextureUsageShaderWrite = MTLTextureUsage.ShaderWrite
MTLTextureUsageRenderTarget = MTLTextureUsage.RenderTarget
MTLTextureUsagePixelFormatView = MTLTextureUsage.PixelFormatView


class MPSOrigin(NamedTuple):
    """``MPSOrigin``: a point in fractions of an image."""

    x: float
    y: float
    z: float


class MPSSize(NamedTuple):
    """``MPSSize``: an extent in fractions of an image."""

    width: float
    height: float
    depth: float


class MPSRegion(NamedTuple):
    """``MPSRegion``: a part of an image, in fractions of it, as MPSNNCropAndResizeBilinear takes them."""

    origin: MPSOrigin
    size: MPSSize

    def to_ours(self) -> tuple[float, float, float, float]:
        """(x, y, width, height)."""
        return (*self.origin[:2], *self.size[:2])


class MPSImageReadWriteParams(NamedTuple):
    """``MPSImageReadWriteParams``: the feature channels of an image that are read or written.

    The first is a multiple of 4; so is their number, unless the first is 0.
    """

    featureChannelOffset: int
    numberOfFeatureChannelsToReadWrite: int


@dataclass
class MPSVectorDescriptor:
    """``MPSVectorDescriptor``: one vector of ``length`` values. ``dataType`` has to be MPSDataTypeFloat32."""

    length: int
    dataType: DataType = DataType.FLOAT32

    @classmethod
    def vectorDescriptorWithLength(cls, length: int, *, dataType: DataType) -> MPSVectorDescriptor:
        """A descriptor of ``length`` values."""
        return cls(length, dataType)


class MPSVector(Vector):
    """``MPSVector``: a ``mpsgrad.Vector`` with Apple's names."""

    @classmethod
    def initWithDevice(cls, device: Device | None, *, descriptor: MPSVectorDescriptor) -> MPSVector:
        """``Vector(length, device)``: zero at first."""
        cls._require(descriptor)
        return cls(descriptor.length, device)

    @classmethod
    def initWithBuffer(cls, buffer: Buffer, *, descriptor: MPSVectorDescriptor) -> MPSVector:
        """``Vector.of_buffer``. Raises ``GeometryError`` if the buffer is too small."""
        cls._require(descriptor)
        if buffer.nbytes < 4 * descriptor.length:
            raise GeometryError(
                f"{cls.__name__}: the buffer has {buffer.nbytes} bytes but {descriptor.length} values need "
                f"{4 * descriptor.length}"
            )
        return cls.of_buffer(buffer, descriptor.length)

    @classmethod
    def _require(cls, descriptor: Any) -> None:
        if not isinstance(descriptor, MPSVectorDescriptor):
            raise FormatError(f"{cls.__name__}: descriptor is {descriptor!r}; it has to be an MPSVectorDescriptor")
        if descriptor.dataType != DataType.FLOAT32:
            raise FormatError(f"{cls.__name__}: dataType is {descriptor.dataType!r}; it has to be MPSDataTypeFloat32")

    @property
    def data(self) -> Buffer:
        """The buffer with the values."""
        return self.buffer

    @property
    def dataType(self) -> DataType:
        """MPSDataTypeFloat32."""
        return DataType.FLOAT32

    def resourceSize(self) -> int:
        """Bytes of the values."""
        return 4 * self.length

    def synchronizeOnCommandBuffer(self, commandBuffer: CommandBuffer) -> None:
        """Nothing to do: ``np.asarray`` waits and copies by itself."""


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


def MPSSupportsMTLDevice(device: Device | None) -> bool:
    """Whether ``device`` runs the kernels: every one that there is does."""
    return isinstance(device, Device)


class MTLCommandBuffer(CommandBuffer):
    """``MTLCommandBuffer``: a ``mpsgrad.CommandBuffer`` with Apple's names."""

    __slots__ = ()

    def waitUntilCompleted(self) -> None:
        """``wait_until_completed``."""
        self.wait_until_completed()

    def addCompletedHandler(self, handler: Callable[[CommandBuffer], Any]) -> None:
        """``add_completed_handler``: the handler runs in ``waitUntilCompleted``."""
        self.add_completed_handler(handler)


class MPSCommandBuffer(MTLCommandBuffer):
    """``MPSCommandBuffer``: a command buffer that programs go on encoding into after ``commitAndContinue``.

    All of its work runs when it is committed in the end, to the same results; temporary images keep what they hold.
    """

    __slots__ = ()

    @classmethod
    def commandBufferFromCommandQueue(cls, commandQueue: MTLCommandQueue) -> MPSCommandBuffer:
        """A new command buffer for the device of the queue. Raises ``FormatError`` for anything else."""
        if not isinstance(commandQueue, MTLCommandQueue):
            raise FormatError(
                f"{cls.__name__}: commandQueue is {type(commandQueue).__name__}; it has to be an MTLCommandQueue"
            )
        return cls(commandQueue.device)

    @classmethod
    def commandBufferWithCommandBuffer(cls, commandBuffer: CommandBuffer) -> MPSCommandBuffer:
        """The same command buffer as one of this class. Raises ``FormatError`` for anything else."""
        if not isinstance(commandBuffer, MTLCommandBuffer):
            raise FormatError(
                f"{cls.__name__}: commandBuffer is {type(commandBuffer).__name__}; it has to be an MTLCommandBuffer"
            )
        commandBuffer.__class__ = cls
        return cast(MPSCommandBuffer, commandBuffer)

    initWithCommandBuffer = commandBufferWithCommandBuffer

    @property
    def commandBuffer(self) -> MPSCommandBuffer:
        """The command buffer itself: there is no other below."""
        return self

    @property
    def rootCommandBuffer(self) -> MPSCommandBuffer:
        """The command buffer itself."""
        return self

    def commitAndContinue(self) -> None:
        """Nothing to do: the work so far runs with what follows. Raises ``StateError`` after ``commit``."""
        self._require_open("commitAndContinue")

    def prefetchHeapForWorkloadSize(self, size: int) -> None:
        """Nothing to do: devices keep the memory of earlier images in a pool."""


class MTLCommandQueue:
    """``MTLCommandQueue``: makes command buffers, whose work runs in the order in which they are committed."""

    device: Device = fixed("_device", "The device whose command buffers it makes.")

    def __init__(self, device: Device | None = None) -> None:
        self._device = require_device("MTLCommandQueue", device)

    def commandBuffer(self) -> MTLCommandBuffer:
        """A new command buffer."""
        return MTLCommandBuffer(self.device)


def MPSHintTemporaryMemoryHighWaterMark(cmdBuf: CommandBuffer, bytes: int) -> None:
    """Nothing to do: devices keep the memory of earlier images in a pool."""


def MPSSetHeapCacheDuration(cmdBuf: CommandBuffer, seconds: float) -> None:
    """Nothing to do: devices keep the memory of earlier images in a pool."""


def MPSImageBatchIncrementReadCount(batch: Iterable[Image], amount: int) -> int:
    """``ImageBatch.increment_read_count``, of a list of images too."""
    return _images(batch).increment_read_count(amount)


def MPSImageBatchIterate(batch: Iterable[Image], iteratorBlock: Callable[[Image, int], int | None]) -> int:
    """Calls ``iteratorBlock`` with each different image and the index at which it stands first; gives its last result.

    A result above the smallest NSInteger ends the iteration; None is the smallest, ``NSIntegerMin``.
    """
    result, seen = NSIntegerMin, set()
    for index, image in enumerate(_images(batch)):
        if id(image) not in seen and result == NSIntegerMin:
            seen.add(id(image))
            given = iteratorBlock(to_apple(image), index)
            result = NSIntegerMin if given is None else given
    return result


def MPSImageBatchSynchronize(batch: Iterable[Image], commandBuffer: CommandBuffer) -> None:
    """Nothing to do: ``np.asarray`` waits and copies by itself."""
    _images(batch)


def MPSImageBatchResourceSize(batch: Iterable[Image]) -> int:
    """``ImageBatch.resource_size``, of a list of images too."""
    return _images(batch).resource_size()


def MPSStateBatchIncrementReadCount(batch: Iterable[State], amount: int) -> int:
    """``StateBatch.increment_read_count``, of a list of states too."""
    return _states(batch).increment_read_count(amount)


def MPSStateBatchSynchronize(batch: Iterable[State], commandBuffer: CommandBuffer) -> None:
    """``StateBatch.synchronize``, of a list of states too."""
    _states(batch).synchronize(commandBuffer)


def MPSStateBatchResourceSize(batch: Iterable[State]) -> int:
    """``StateBatch.resource_size``, of a list of states too."""
    return _states(batch).resource_size()


def _images(batch: Iterable[Image]) -> ImageBatch:
    return batch if isinstance(batch, ImageBatch) else ImageBatch(batch)


def _states(batch: Iterable[State]) -> StateBatch:
    return batch if isinstance(batch, StateBatch) else StateBatch(batch)
