"""Bad input to the core classes: the exception, and words that name the argument and both values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice
from window_kernels import WindowDifference, WindowSum

import mpsgrad as mg
from mpsgrad import archive
from mpsgrad.padding import forward_size_and_offset
from mpsgrad.state import StateBatch

DEVICE, OTHER = FakeDevice(), FakeDevice()
COMMANDS: list[mg.CommandBuffer] = []
"""The command buffers of the case that runs."""
ENCODED_BEFORE: dict[int, int] = {}
"""For some of them, by ``id``, how many dispatches they hold when the bad input comes."""
Shape = tuple[int, ...]


def commands() -> mg.CommandBuffer:
    COMMANDS.append(mg.CommandBuffer(DEVICE))
    return COMMANDS[-1]


def image(*shape: int, dtype: Any = np.float32, device: FakeDevice = DEVICE) -> mg.Image:
    return mg.Image.from_array(np.zeros(shape or (1, 4, 5, 8), dtype), device)


class Unreadable:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("needs detach")


def like(source: mg.Image, **changes: Any) -> mg.Image:
    return mg.Image(replace(source.descriptor, **changes), source.device)


def kernel(**properties: Any) -> mg.SoftMax:
    made = mg.SoftMax(device=DEVICE)
    for name, value in properties.items():
        setattr(made, name, value)
    return made


def window(size: int = 3, **properties: Any) -> WindowSum:
    made = WindowSum(kernel_width=size, kernel_height=size, device=DEVICE)
    for name, value in properties.items():
        setattr(made, name, value)
    return made


def encode(made: Any, *arguments: Any, **keywords: Any) -> Any:
    return made.encode(commands(), *arguments, **keywords)


def forward(source: mg.Image, **properties: Any) -> tuple[mg.CommandBuffer, mg.Image, Any]:
    buffer = commands()
    y, state = kernel(**properties).encode(buffer, source, return_state=True)
    ENCODED_BEFORE[id(buffer)] = len(buffer._dispatches)
    return buffer, y, state


def gradient(g: Any = None, x: Any = None, state: Any = None, *, shape: Shape = (1, 4, 5, 8), **keywords: Any) -> Any:
    buffer, y, made = forward(image(*shape))
    return mg.SoftMaxGradient(device=DEVICE).encode(
        buffer, y if g is None else g, y if x is None else x, made if state is None else state, **keywords
    )


def temporary(buffer: mg.CommandBuffer, **extents: int) -> mg.TemporaryImage:
    return mg.TemporaryImage(buffer, mg.ImageDescriptor(**extents))


def spent(buffer: mg.CommandBuffer, **extents: int) -> mg.TemporaryImage:
    made = temporary(buffer, **extents)
    made.read_count = 0
    return made


def state_of(source: mg.Image, destination: mg.Image | None = None, **properties: Any) -> Any:
    return kernel(**properties).result_state(source, destination_image=destination or like(source))


def open_read(make: Callable[[mg.CommandBuffer], Any]) -> np.ndarray:
    return np.asarray(make(commands()))


def overlapping() -> tuple[mg.Image, mg.Image]:
    parent = image(3, 4, 5, 12)
    return parent.sub_image(0, 8), parent.sub_image(4, 8)


def optimizer(**keywords: Any) -> mg.OptimizerStochasticGradientDescent:
    return mg.OptimizerStochasticGradientDescent(mg.OptimizerDescriptor(**keywords), device=DEVICE)


def vector(length: int = 4, device: FakeDevice = DEVICE) -> mg.Vector:
    return mg.Vector(length, device)


def step(g: Any, v: Any, r: Any, m: Any = None, buffer: Any = None) -> None:
    optimizer().encode(
        commands() if buffer is None else buffer,
        input_gradient_vector=g,
        input_values_vector=v,
        result_values_vector=r,
        input_momentum_vector=m,
    )


def shared_momentum() -> None:
    values = vector()
    step(vector(), values, vector(), values)


def labels(*shape: int, **keywords: Any) -> mg.LossLabels:
    return mg.LossLabels.from_array(np.zeros(shape or (1, 4, 5, 8), np.float32), device=DEVICE, **keywords)


def loss(reduction: str = "sum", **keywords: Any) -> mg.Loss:
    return mg.Loss(mg.LossDescriptor("softmax_cross_entropy", reduction, **keywords), device=DEVICE)


def configured_loss(**properties: Any) -> mg.Loss:
    made = loss()
    for name, value in properties.items():
        setattr(made, name, value)
    return made


def committed() -> mg.CommandBuffer:
    buffer = commands()
    buffer.commit()
    COMMANDS.remove(buffer)
    return buffer


def custom_without_method() -> Any:
    return type("Policy", (), {"padding_method": mg.PaddingMethod.CUSTOM})()


def wrong_answer() -> Any:
    def method(self: Any, *arguments: Any) -> Any:
        return (4, 5)

    policy = type("Policy", (), {"padding_method": mg.PaddingMethod.CUSTOM, "destination_image_descriptor": method})
    return window(padding=policy())


Geometry, Format, State = mg.GeometryError, mg.FormatError, mg.StateError
FLOAT16 = mg.FeatureChannelFormat.FLOAT16

BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # descriptors
    "zero width": (lambda: mg.ImageDescriptor(width=0), Geometry, "ImageDescriptor: width is 0; .* at least 1"),
    "negative height": (lambda: mg.ImageDescriptor(height=-3), Geometry, "ImageDescriptor: height is -3"),
    "fractional channels": (
        lambda: mg.ImageDescriptor(feature_channels=2.5), Format, "feature_channels is 2.5; it has to be an integer"),
    "a width that is true": (lambda: mg.ImageDescriptor(width=True), Format, "width is True; .* an integer"),
    "no images": (lambda: mg.ImageDescriptor(number_of_images=0), Geometry, "number_of_images is 0"),
    "too many elements": (
        lambda: mg.ImageDescriptor(width=2**16, height=2**15), Geometry,
        "1x32768x65536x1 has 2147483648 elements; the largest image has 2147483647"),
    "a vector of no values": (lambda: mg.Vector(0), Geometry, "Vector: length is 0; .* at least 1"),
    "too many values": (
        lambda: mg.Vector(2**31), Geometry, "Vector: length is 2147483648; the largest vector has 2147483647"),
    "an unknown format": (
        lambda: mg.ImageDescriptor("float64"), Format, "channel_format is 'float64'; .* FeatureChannelFormat"),
    "a format out of range": (lambda: mg.ImageDescriptor(9), Format, "channel_format is 9"),
    "a format that images do not have": (
        lambda: mg.ImageDescriptor(mg.FeatureChannelFormat.UNORM8), NotImplementedError, "UNORM8.*FLOAT16 or FLOAT32"),
    # images
    "no descriptor": (lambda: mg.Image((1, 2, 3, 4)), Format, r"descriptor is \(1, 2, 3, 4\); .* ImageDescriptor"),
    "a device by its name": (
        lambda: mg.Image(mg.ImageDescriptor(), "opencl:0"), Format, "Image: device is 'opencl:0'; .* a Device"),
    "float64": (lambda: image(2, 3, 4, dtype=np.float64), Format,
        r"Image.from_array: images hold float16 or float32 .*not dtype\('float64'\)"),
    "integers": (lambda: image(2, 3, 4, dtype=np.int32), Format, r"not dtype\('int32'\)"),
    "bytes of the other order": (
        lambda: image(2, 3, 4, dtype=np.dtype(np.float32).newbyteorder()), Format,
        r"native byte order, not dtype\('>f4'\)"),
    "two dimensions": (lambda: image(3, 4), Geometry, r"shape \(3, 4\); .* \(images, height, width, channels\)"),
    "five dimensions": (lambda: image(1, 1, 1, 3, 4), Geometry, r"shape \(1, 1, 1, 3, 4\)"),
    "an empty array": (lambda: image(2, 0, 3, 4), Geometry, r"shape \(2, 0, 3, 4\) is empty"),
    "another memory order": (
        lambda: mg.Image.from_array(np.zeros((4, 3, 2), np.float32).T), Format, r"strides \(4, 8, 24\); .* C-contig"),
    "every other column": (
        lambda: mg.Image.from_array(np.zeros((1, 4, 8, 2), np.float32)[:, :, ::2]), Format, "C-contiguous"),
    "a list": (lambda: mg.Image.from_array([[1.0]]), Format, "list is not an array"),
    "an array of another library that gives none": (
        lambda: mg.Image.from_array(Unreadable()), Format,
        "Image.from_array: Unreadable cannot be read as a NumPy array: needs detach"),
    "masked elements": (
        lambda: mg.Image.from_array(np.ma.masked_equal(np.arange(6, dtype=np.float32).reshape(1, 2, 3), 4)),
        Format, "Image.from_array: 1 of the array's 6 elements are masked"),
    "objects": (lambda: mg.Image.from_array(np.array([[[None]]])), Format, "ndarray is not an array of numbers"),
    "write another shape": (
        lambda: image(1, 2, 3, 4).write(np.zeros((1, 3, 2, 4), np.float32)), Geometry,
        r"shape \(1, 3, 2, 4\) but the image \(1, 2, 3, 4\)"),
    "write another dtype": (
        lambda: image(1, 2, 3, 4).write(np.zeros((1, 2, 3, 4))), Format,
        r"dtype\('float64'\) but the image dtype\('float32'\)"),
    "a view from channel 2": (
        lambda: image(1, 2, 3, 8).sub_image(2, 4), Geometry, "first_feature_channel is 2; .* multiple of 4"),
    "a view of 3 channels": (lambda: image(1, 2, 3, 8).sub_image(0, 3), Geometry, "feature_channels is 3"),
    "a view behind the last channel": (
        lambda: image(1, 2, 3, 8).sub_image(8, 4), Geometry, "from 8 of an image with 8 leave none"),
    "a view of no channels": (lambda: image(1, 2, 3, 8).sub_image(4, 0), Geometry, "leave none"),
    "a view before the first channel": (lambda: image().sub_image(-4, 4), Geometry, "first_feature_channel is -4"),
    "more images than there are": (
        lambda: image(3, 2, 2, 4).batch_representation(2, 2), Geometry, "images 2 to 4 of an image with 3"),
    "images behind the last": (
        lambda: image(3, 2, 2, 4).batch_representation(3), Geometry, "images 3 to 4 of an image with 3"),
    "a start that is no integer": (lambda: image().batch_representation("0"), Format, "start is '0'"),
    "an image read before commit": (
        lambda: open_read(lambda buffer: kernel().encode(buffer, image())), State, "Image: read before its comm"),
    # temporary images
    "a temporary image of no command buffer": (
        lambda: mg.TemporaryImage(DEVICE, mg.ImageDescriptor()), Format, "TemporaryImage: command_buffer is .*Fake"),
    "a temporary image from an array": (
        lambda: mg.TemporaryImage.from_array(np.zeros((1, 1, 1))), State, "no CPU access; make an Image"),
    "a temporary image read": (
        lambda: open_read(temporary), State, "read on the CPU, but temporary images have no CPU access"),
    "a temporary image written": (
        lambda: temporary(commands()).write(np.zeros((1, 1, 1, 1), np.float32)), State, "TemporaryImage: written"),
    "a negative read count": (
        lambda: setattr(temporary(commands()), "read_count", -1), Geometry, "read_count is -1; .* at least 0"),
    "a read count after the last read": (
        lambda: setattr(spent(commands()), "read_count", 2), State, "read_count is 0, so the memory is gone"),
    "a view of a spent temporary image": (
        lambda: spent(commands(), feature_channels=8).sub_image(0, 4), State, "read_count is 0"),
    "a spent temporary source": (
        lambda: (lambda b: kernel().encode(b, spent(b)))(commands()), State,
        "SoftMax: source_image is a temporary image with read_count 0"),
    "a spent temporary destination": (
        lambda: (lambda b: kernel().encode(b, image(1, 1, 1, 1), destination_image=spent(b)))(commands()), State,
        "SoftMax: destination_image is a temporary image with read_count 0"),
    "a temporary image elsewhere": (
        lambda: encode(kernel(), temporary(commands())), State, "source_image is temporary and belongs to <CommandBuf"),
    # batches
    "an empty batch": (lambda: mg.ImageBatch([]), Geometry, "ImageBatch: an empty batch"),
    "a batch of arrays": (lambda: mg.ImageBatch([np.zeros(3)]), Format, "element 0 is array.*; it has to be an Image"),
    "a batch that is an image": (lambda: mg.ImageBatch(image()), Format, "images is Image; .* list of images"),
    "a batch of containers": (
        lambda: mg.ImageBatch([image(), image(3, 2, 2, 4)]), Geometry, "element 1 holds 3 images; each .* hold 1"),
    "an image where a batch belongs": (
        lambda: kernel().encode_batch(commands(), image()), Format, "source_images is Image; .* ImageBatch or a list"),
    "a batch where an image belongs": (
        lambda: encode(kernel(), mg.ImageBatch([image()])), Format, "source_image is an ImageBatch; encode_batch"),
    "batches of several lengths": (
        lambda: kernel().encode_batch(commands(), [image()] * 3, destination_images=[image()] * 2), Geometry,
        "destination_images has 2 images but the batch has 3"),
    "states of another number": (
        lambda: kernel().encode_batch(
            commands(), [image()] * 2, destination_images=[image(), image()], destination_states=[state_of(image())]),
        Geometry, "destination_states has 1 states but the batch has 2 images"),
    "states of a batch without destinations": (
        lambda: kernel().encode_batch(commands(), [image()], destination_states=[state_of(image())]), Format,
        "destination_states without destination_images; use return_state=True"),
    "returned states of a batch with destinations": (
        lambda: kernel().encode_batch(commands(), [image()], destination_images=[image()], return_state=True), Format,
        r"return_state with destination_images; pass result_state_batch\(\) as destination_states"),
    "images of several sizes": (
        lambda: kernel().encode_batch(commands(), [image(1, 4, 5, 8), image(1, 4, 6, 8)]), Geometry,
        r"source_images\[1\] is 1x4x6x8 but source_images\[0\] is 1x4x5x8"),
    "a batch onto itself, one further": (
        lambda: (lambda b: kernel().encode_batch(commands(), b[:2], destination_images=b[1:]))(
            image(3, 2, 2, 4).batch_representation()),
        Geometry, r"destination_images\[0\] shares memory with a source image"),
    # states
    "a state without memory": (lambda: mg.State([0], DEVICE), Geometry, "State: buffer size is 0; .* at least 1"),
    "a state of no command buffer": (
        lambda: mg.State([4], command_buffer=DEVICE), Format, "command_buffer is .*; it has to be a CommandBuffer"),
    "the read count of a regular state": (
        lambda: setattr(mg.State([4], DEVICE), "read_count", 1), State, "read_count is 1, but only temporary states"),
    "a temporary state read": (
        lambda: mg.State([4], command_buffer=commands())._read(0, 1), State, "temporary states have no CPU access"),
    "an empty batch of states": (lambda: StateBatch([]), Geometry, "StateBatch: an empty batch"),
    "a batch of no states": (lambda: StateBatch([image()]), Format, "element 0 is <Image .*; it has to be a State"),
    "a batch that is a state": (lambda: StateBatch(mg.State([4], DEVICE)), Format, "states is State; .* of states"),
    "a result state of an array": (
        lambda: kernel().result_state(np.zeros(3), destination_image=image()), Format, "source_image is ndarray"),
    "a destination state that is none": (
        lambda: encode(kernel(), image(), destination_image=image(), destination_state=mg.State([4], DEVICE)), Format,
        "SoftMax: destination_state is State; it has to be made by result_state"),
    "the state of another kernel": (
        lambda: encode(
            mg.LogSoftMax(device=DEVICE), image(), destination_image=image(), destination_state=state_of(image())),
        State, "LogSoftMax: destination_state was made by SoftMax"),
    "the state of another source": (
        lambda: encode(kernel(), image(), destination_image=image(), destination_state=state_of(
            image(1, 4, 6, 8), image())),
        State, "made for a source of 1x4x6x8 but source_image is 1x4x5x8"),
    "the state of another result": (
        lambda: encode(kernel(), image(), destination_image=image(), destination_state=state_of(
            image(), image(1, 3, 5, 8))),
        State, "made for a result of 1x3x5x8 but destination_image is 1x4x5x8"),
    "a state made before the last property": (
        lambda: encode(
            kernel(offset=mg.Offset(1, 0)), image(), destination_image=image(), destination_state=state_of(image())),
        State, r"offset is Offset\(x=1, y=0, z=0\) but .* made when it was Offset\(x=0, y=0, z=0\)"),
    "a state without a destination": (
        lambda: encode(kernel(), image(), destination_state=state_of(image())), Format,
        "destination_state without destination_image; use return_state=True"),
    "a returned state with a destination": (
        lambda: encode(kernel(), image(), destination_image=image(), return_state=True), Format,
        "return_state with destination_image; pass result_state"),
    "a temporary state elsewhere": (
        lambda: encode(
            kernel(), image(), destination_image=image(),
            destination_state=kernel().temporary_result_state(commands(), image(), destination_image=image())),
        State, "destination_state is temporary and belongs to"),
    # kernels
    "an offset of two numbers": (lambda: kernel(offset=(1, 2)), Format, r"offset is \(1, 2\); it has to be 3 integers"),
    "a fractional offset": (lambda: kernel(offset=(0.5, 0, 0)), Format, "offset is 0.5"),
    "a negative first image": (
        lambda: kernel(offset=(0, 0, -1)), Geometry, "offset.z is -1; the first image has to be at least 0"),
    "an offset beyond 32 bits": (
        lambda: kernel(offset=(0, 2**31, 0)), Geometry, r"offset is \(0, 2147483648, 0\); .* 1073741824"),
    "windows beyond 32 bits": (
        lambda: encode(
            WindowSum(kernel_width=1, kernel_height=1, stride_in_pixels_x=2**15, device=DEVICE), image(1, 1, 1, 1),
            destination_image=mg.Image(mg.ImageDescriptor(width=2**16), DEVICE)),
        Geometry, "along x have their centres at pixels 0 to 2147450880; .* -1073741824 and 1073741824"),
    "a clip rectangle of one number": (lambda: kernel(clip_rect=3), Format, "clip_rect is 3; it has to be a Region"),
    "a clip rectangle before the image": (
        lambda: kernel(clip_rect=((-1, 0, 0), (1, 1, 1))), Geometry, "clip_rect.origin is -1; .* at least 0"),
    "an edge mode that is none": (lambda: kernel(edge_mode=17), Format, "edge_mode is 17; it has to be an EdgeMode"),
    "an edge mode that is not supported": (
        lambda: encode(window(edge_mode=mg.EdgeMode.MIRROR), image()), NotImplementedError,
        "WindowSum: edge_mode is MIRROR; it supports ZERO and CLAMP"),
    "a channel offset of 2": (
        lambda: kernel(source_feature_channel_offset=2), Geometry, "channel_offset is 2; it has to be a multiple of 4"),
    "a negative channel offset": (
        lambda: kernel(destination_feature_channel_offset=-4), Geometry, "channel_offset is -4; .* at least 0"),
    "a channel count of 0": (
        lambda: kernel(source_feature_channel_max_count=0), Geometry, "max_count is 0; it has to be at least 1"),
    "a padding policy that is none": (lambda: kernel(padding="same"), Format, "padding is 'same'; .* padding policy"),
    "a custom policy without a method": (
        lambda: kernel(padding=custom_without_method()), Format, "CUSTOM bit but no destination_image_descriptor"),
    "a custom policy with a wrong answer": (
        lambda: encode(wrong_answer(), image()), Format, r"gave \(4, 5\); it has to give an ImageDescriptor"),
    "padding bits that are none": (lambda: mg.DefaultPadding("same"), Format, "DefaultPadding: method is 'same'"),
    "padding of a bit without meaning": (
        lambda: mg.DefaultPadding(1 << 30), Format, "method 0x40000000 has bits 0x40000000, which mean nothing"),
    "a buffer that a state has not": (
        lambda: mg.State((4, 8)).resource(2), Geometry, "State: index is 2 but there are 2 buffers"),
    "the size of a buffer before the first": (
        lambda: mg.State((4, 8)).buffer_size(-1), Geometry, "State: index is -1 but there are 2 buffers"),
    "padding of both alignments": (lambda: mg.DefaultPadding(3), Format, "method 0x3 has an unknown alignment"),
    "negative padding": (lambda: mg.ExplicitPadding(x=-1), Geometry, "ExplicitPadding: x is -1; .* at least 0"),
    "an allocator that is none": (
        lambda: kernel(destination_image_allocator=3), Format, "destination_image_allocator is 3; .* image"),
    "a zero stride": (
        lambda: WindowSum(kernel_width=1, kernel_height=1, stride_in_pixels_x=0, device=DEVICE), Geometry,
        "WindowSum: stride_in_pixels_x is 0; it has to be at least 1"),
    "a negative stride": (
        lambda: mg.PoolingMax(kernel_width=1, kernel_height=1, stride_in_pixels_y=-2, device=DEVICE), Geometry,
        "PoolingMax: stride_in_pixels_y is -2; it has to be at least 1"),
    "a negative stride of a second source": (
        lambda: setattr(WindowDifference(device=DEVICE), "secondary_stride_in_pixels_x", -1), Geometry,
        "WindowDifference: secondary_stride_in_pixels_x is -1; it has to be at least 0"),
    "a huge window": (lambda: window(2**15 + 1), Geometry, "kernel_width is 32769; it has to be at most 32768"),
    "a window larger than a valid-only source": (
        lambda: encode(window(6, padding=mg.VALID_ONLY), image()), Geometry,
        "a window of 6 pixels along x does not fit a source of 5 pixels"),
    "an empty valid-only size": (
        lambda: forward_size_and_offset("Kernel", "y", mg.PaddingMethod.SIZE_VALID_ONLY, 2, 7, 3), Geometry,
        "Kernel: a window of 7 pixels along y does not fit a source of 2 pixels"),
    # encodes
    "no command buffer": (lambda: kernel().encode(None, image()), Format, "command_buffer is None; .* CommandBuffer"),
    "a list of images in place of a command buffer": (
        lambda: mg.Concatenation(device=DEVICE).encode([image()], [image()]), Format, "command_buffer is .<Image"),
    "an image in place of a command buffer, Loss": (
        lambda: mg.Loss(mg.LossDescriptor("huber"), device=DEVICE).encode(image(), 0, 0), Format,
        "Loss: command_buffer is <Image"),
    "an image in place of a command buffer, ForwardLoss": (
        lambda: mg.ForwardLoss(mg.LossDescriptor("huber"), device=DEVICE).encode(image(), commands(), image()), Format,
        "ForwardLoss: command_buffer is <Image"),
    "an image in place of a command buffer, LossGradient": (
        lambda: mg.LossGradient(mg.LossDescriptor("huber"), device=DEVICE).encode(image(), *[image()] * 3), Format,
        "LossGradient: command_buffer is <Image"),
    "a committed command buffer": (
        lambda: kernel().encode(committed(), image()), State, "SoftMax.encode is not possible .* has been committed"),
    "a command buffer of another device": (
        lambda: mg.SoftMax().encode(commands(), image()), State, "command_buffer is for fake:0 but the kernel for"),
    "an image of another device": (
        lambda: encode(kernel(), image(1, 2, 2, 4, device=OTHER)), State, "source_image is on fake:0 but the kernel"),
    "an array": (lambda: encode(kernel(), np.zeros((1, 2, 2, 4))), Format, "source_image is ndarray; .* an Image"),
    "a destination of another format": (
        lambda: encode(kernel(), image(), destination_image=like(image(), channel_format=FLOAT16)), Format,
        "destination_image is FLOAT16 but source_image is FLOAT32"),
    "a destination with too few channels": (
        lambda: encode(kernel(), image(), destination_image=image(1, 4, 5, 7)), Geometry,
        "the destination has 7 feature channels but 8 are written from channel 0 on"),
    "channels behind the destination's": (
        lambda: encode(kernel(destination_feature_channel_offset=4), image(), destination_image=image()), Geometry,
        "has 8 feature channels but 8 are written from channel 4 on"),
    "channels behind the source's": (
        lambda: encode(kernel(source_feature_channel_offset=8), image()), Geometry,
        "source_feature_channel_offset is 8 but that image has 8 feature channels"),
    "images behind the source's": (
        lambda: encode(kernel(offset=(0, 0, 3)), image(3, 2, 2, 4), destination_image=image(3, 2, 2, 4)), Geometry,
        "offset.z is 3 but the source has 3 images"),
    "more images than the destination has": (
        lambda: encode(kernel(), image(3, 2, 2, 4), destination_image=image(2, 2, 2, 4)), Geometry,
        "the source has 3 images but the destination has room for 2"),
    "fewer images than are written": (
        lambda: encode(kernel(), image(2, 2, 2, 4), destination_image=image(3, 2, 2, 4)), Geometry,
        "3 images are to be written but the source has 2"),
    "the source as destination": (
        lambda: (lambda x: encode(kernel(), x, destination_image=x))(image()), Geometry,
        "the destination shares memory with source_image"),
    "a view of the source as destination": (
        lambda: (lambda x: encode(
            kernel(source_feature_channel_max_count=4), x, destination_image=x.sub_image(4, 4)))(image()),
        Geometry, "the destination may not alias a source"),
    "overlapping views": (
        lambda: (lambda views: encode(kernel(), views[0], destination_image=views[1]))(overlapping()), Geometry,
        "the destination may not alias a source"),
    "one destination for two images of a batch": (
        lambda: (lambda y: kernel().encode_batch(commands(), [image(), image()], destination_images=[y, y]))(image()),
        Geometry, "SoftMax: destination_images has an image twice"),
    "a secondary source as destination": (
        lambda: (lambda x: encode(WindowDifference(device=DEVICE), image(), x, destination_image=x))(image()), Geometry,
        "shares memory with secondary_image"),
    "sources of different formats": (
        lambda: encode(WindowDifference(device=DEVICE), image(), image(1, 4, 5, 8, dtype=np.float16)), Format,
        "secondary_image is FLOAT16 but primary_image is FLOAT32"),
    "sources of different numbers of images": (
        lambda: encode(WindowDifference(device=DEVICE), image(3, 2, 2, 4), image(2, 2, 2, 4)), Geometry,
        "primary_image has 3 images from its first one on but secondary_image 2"),
    "one source for a kernel of two": (
        lambda: WindowDifference(device=DEVICE).destination_image_descriptor([image()]), Format,
        "it has to be a list of primary_image and secondary_image"),
    "two sources for a kernel of one": (
        lambda: kernel().destination_image_descriptor([image(), image()]), Format, "has to be a list of source_image"),
    "an image for a list of sources": (
        lambda: kernel().destination_image_descriptor(image()), Format, "source_images is Image; .* list of 1 images"),
    # gradients
    "a gradient of another size": (
        lambda: gradient(image(1, 4, 6, 8)), Geometry,
        "source_gradient is 1x4x6x8 but SoftMax of a 1x4x5x8 source gives 1x4x5x8"),
    "a gradient of another size, manual": (
        lambda: gradient(image(1, 4, 6, 8), destination_gradient=image()), Geometry, "source_gradient is 1x4x6x8 but"),
    "a source of another size": (
        lambda: gradient(x=image(1, 3, 5, 8)), Geometry, "source_image is 1x3x5x8 but .* made for 1x4x5x8"),
    "a gradient of other images": (
        lambda: gradient(image(2, 4, 5, 8), shape=(3, 4, 5, 8)), Geometry, "source_image has 3 images .* 2;"),
    "a gradient of another format": (
        lambda: gradient(image(1, 4, 5, 8, dtype=np.float16)), Format, "source_image is FLOAT32 but .* is FLOAT16"),
    "a gradient onto the gradient": (
        lambda: (lambda g: gradient(g, destination_gradient=g))(image()), Geometry,
        "the destination shares memory with source_gradient"),
    "no gradient state": (lambda: gradient(state=3), Format, "gradient_state is int; .* GradientState"),
    "a batch of gradient states": (
        lambda: gradient(state=StateBatch([state_of(image())])), Format, "gradient_state is a StateBatch; encode"),
    "the gradient state of another kernel": (
        lambda: gradient(state=mg.LogSoftMax(device=DEVICE).result_state(image(), destination_image=image())), State,
        "SoftMaxGradient: gradient_state was made by LogSoftMax; it has to be made by SoftMax"),
    "a gradient state of another device": (
        lambda: gradient(state=mg.SoftMax(device=OTHER).result_state(
            image(1, 4, 5, 8, device=OTHER), destination_image=image(1, 4, 5, 8, device=OTHER))),
        State, "gradient_state is on fake:0 but the kernel on fake:0"),
    "a temporary gradient state elsewhere": (
        lambda: gradient(state=kernel().temporary_result_state(commands(), image(), destination_image=image())), State,
        "gradient_state is temporary and belongs to"),
    "a kernel offset beyond 32 bits": (
        lambda: setattr(mg.SoftMaxGradient(device=DEVICE), "kernel_offset_x", 2**40), Geometry,
        "kernel_offset_x is 1099511627776; it has to be at most 1073741824"),
    # vectors, optimizers
    "an empty vector": (lambda: mg.Vector(0, DEVICE), Geometry, "Vector: length is 0; it has to be at least 1"),
    "a vector of float64": (
        lambda: mg.Vector.from_array(np.zeros(3), DEVICE), Format, r"the array is dtype\('float64'\); .* float32"),
    "a vector of the other byte order": (
        lambda: mg.Vector.from_array(np.zeros(3, ">f4"), DEVICE), Format, r"the array is dtype\('>f4'\)"),
    "vectors of two lengths": (
        lambda: step(vector(4), vector(5), vector(4)), Geometry,
        "input_values_vector has 5 values but input_gradient_vector has 4"),
    "an array for a vector": (
        lambda: step(np.zeros(4), vector(), vector()), Format, "input_gradient_vector is ndarray; .* a Vector"),
    "a vector of another device": (
        lambda: step(vector(), vector(4, OTHER), vector()), State, "input_values_vector is on fake:0 but the"),
    "momentum that is the values": (
        shared_momentum, Geometry, "input_momentum_vector is overwritten, .* buffer of input_values_vector"),
    "an optimizer's command buffer of another device": (
        lambda: step(vector(), vector(), vector(), buffer=mg.CommandBuffer()), State, "but the kernel for fake:0"),
    "a learning rate that is text": (lambda: optimizer(learning_rate="0.1"), Format, "learning_rate is '0.1'"),
    "an infinite learning rate": (
        lambda: optimizer(learning_rate=float("inf")), Geometry, "learning_rate is inf; it has to be finite"),
    "a later learning rate that is no number": (
        lambda: setattr(optimizer(), "learning_rate", None), Format, "learning_rate is None; it has to be a number"),
    "clip limits the wrong way round": (
        lambda: optimizer(apply_gradient_clipping=True, gradient_clip_max=-1.0, gradient_clip_min=1.0), Geometry,
        "gradient_clip_min is 1.0 but gradient_clip_max -1.0"),
    "an unknown regularization": (
        lambda: optimizer(regularization_type=7), Format, "regularization_type is 7; .* RegularizationType"),
    "no optimizer descriptor": (
        lambda: mg.OptimizerStochasticGradientDescent(0.1, device=DEVICE), Format, "optimizer_descriptor is 0.1"),
    "an optimizer of states that are none": (
        lambda: optimizer().encode_convolution(commands(), image(), image(), result_state=image()), Format,
        "the gradient state is Image; it has to be a state of gradients"),
    # losses and labels
    "an unknown loss": (lambda: mg.LossDescriptor("softmax"), Format, "loss_type is 'softmax'; .* one of .*huber"),
    "an unknown reduction": (lambda: loss("average"), Format, "reduction_type is 'average'; .* one of none, sum, mean"),
    "smoothing above 1": (lambda: loss(label_smoothing=1.5), Geometry, "label_smoothing is 1.5; .* at most 1.0"),
    "no classes": (lambda: loss(number_of_classes=0), Geometry, "number_of_classes is 0; .* at least 1"),
    "a weight that is no number": (lambda: loss(weight="1"), Format, "weight is '1'; it has to be a number"),
    "no loss descriptor": (lambda: mg.Loss("sum", device=DEVICE), Format, "loss_descriptor is 'sum'"),
    "labels of another size": (
        lambda: encode(loss(), image(), labels(1, 4, 5, 7)), Geometry, "labels are 1x4x5x7 but source_image is 1x4"),
    "labels that are none": (lambda: encode(loss(), image(), image()), Format, "labels is Image; it has to be LossLab"),
    "labels of another device": (
        lambda: encode(loss(), image(), mg.LossLabels.from_array(np.zeros((1, 4, 5, 8), np.float32), device=OTHER)),
        State, "labels are on fake:0 but the kernel on fake:0"),
    "labels in float16": (
        lambda: mg.LossLabels.from_images(image(1, 4, 5, 8, dtype=np.float16)), Format, "labels_image is FLOAT16"),
    "labels that are an array": (
        lambda: mg.LossLabels.from_images(np.zeros((1, 4, 5, 8))), Format, "labels_image is ndarray; .* class Image"),
    "weights of another size": (
        lambda: mg.LossLabels.from_images(image(), image(1, 4, 5, 4)), Geometry, "weights are 1x4x5x4 but labels"),
    "a loss image of another size": (
        lambda: labels(loss_image_size=(2, 1, 1)), Geometry, r"loss_image_size is \(2, 1, 1\); .* or \(5, 4, 8\)"),
    "a loss image of two extents": (
        lambda: labels(loss_image_size=(1, 1)), Format, r"loss_image_size is \(1, 1\); it has to be 3 integers"),
    "one value for an unreduced loss": (
        lambda: encode(loss("none"), image(), labels()), Geometry,
        "loss_image is 1x1x1x1 but reduction NONE of a 1x4x5x8 source needs 1x4x5x8"),
    "a loss of part of the image": (
        lambda: encode(configured_loss(offset=(1, 0, 0)), image(), labels()), Geometry, "offset is Offset.* whole"),
    "a loss of part of the channels": (
        lambda: encode(configured_loss(source_feature_channel_max_count=4), image(), labels()), Geometry,
        "source_feature_channel_max_count is 4; a loss works on whole images"),
    "a loss into another size": (
        lambda: encode(loss(), image(), labels(), destination_image=image(1, 4, 5, 12)), Geometry,
        "destination_image is 1x4x5x12 but source_image is 1x4x5x8"),
    "a loss of a batch with too few labels": (
        lambda: loss().encode_batch(commands(), [image(), image()], [labels()]), Geometry,
        "labels has 1 states but the batch has 2 images"),
    "label data of another count": (
        lambda: mg.LossDataDescriptor(np.zeros(5, np.float32), size=(2, 2, 1)), Geometry,
        r"data has 5 values but size \(2, 2, 1\) needs 4"),
    "label data in float64": (
        lambda: mg.LossDataDescriptor(np.zeros(4), size=(2, 2, 1)), Format, r"data is dtype\('float64'\); .* float32"),
    "label data of the other byte order": (
        lambda: mg.LossDataDescriptor(np.zeros(4, ">f4"), size=(2, 2, 1)), Format, "native byte order"),
    "label data in another layout": (
        lambda: mg.LossDataDescriptor(np.zeros(4, np.float32), layout="WHC", size=(2, 2, 1)), Format,
        "layout is 'WHC'; it has to be 'HWC' or 'CHW'"),
    "label data in rows that overlap": (
        lambda: mg.LossDataDescriptor(np.zeros(8, np.float32), size=(2, 2, 1), bytes_per_row=4), Geometry,
        "bytes_per_row is 4; it has to be at least 8"),
    "label data in rows of half values": (
        lambda: mg.LossDataDescriptor(np.zeros(8, np.float32), size=(2, 2, 1), bytes_per_row=10), Geometry,
        "bytes_per_row is 10; it has to be a multiple of 4"),
    "label data without its last row": (
        lambda: mg.LossDataDescriptor(np.zeros(5, np.float32), size=(2, 2, 1), bytes_per_row=16), Geometry,
        r"data has 5 values but size \(2, 2, 1\) needs 6"),
    "label data without a depth": (
        lambda: mg.LossDataDescriptor(np.zeros(4, np.float32), size=(2, 2)), Format, r"size is \(2, 2\); .* 3 int"),
    "labels without a descriptor": (
        lambda: mg.LossLabels(np.zeros(3), device=DEVICE), Format, "labels_descriptor is ndarray; .*LossData"),
    # command buffers
    "a command buffer for no device": (lambda: mg.CommandBuffer("opencl"), Format, "CommandBuffer: device is 'opencl'"),
    "a second commit": (lambda: committed().commit(), State, "commit is not possible .* has been committed"),
    "waiting for what was not committed": (
        lambda: commands().wait_until_completed(), State, "wait_until_completed before commit would wait for ever"),
    "a vector read before commit": (
        lambda: (lambda v: (step(vector(), vector(), v), np.asarray(v)))(vector()), State, "Vector: read before its"),
    # labels, options and flags
    "a kernel called by a number": (
        lambda: kernel(label=3), Format, "SoftMax: label is 3; it has to be a text or None"),
    "a node called by a list": (
        lambda: mg.SoftMaxNode(mg.ImageNode(), label=["a"]), Format, r"SoftMaxNode: label is \['a'\]; .* text or None"),
    "a state called by bytes": (
        lambda: mg.State([4], DEVICE, label=b"a"), Format, "State: label is b'a'; it has to be a text or None"),
    "an image called by its shape": (
        lambda: setattr(image(), "label", (1, 2)), Format, r"Image: label is \(1, 2\); it has to be a text or None"),
    "a command buffer called by a device": (
        lambda: mg.CommandBuffer(DEVICE, label=DEVICE), Format, "CommandBuffer: label is .*; it has to be a text"),
    "a padding policy called by a number": (
        lambda: mg.DefaultPadding(0, label=0), Format, "DefaultPadding: label is 0; it has to be a text or None"),
    "weights called by a number": (
        lambda: mg.ConvolutionDataSource.from_arrays(np.zeros((1, 1, 1, 1), np.float32), label=1), Format,
        "from_arrays: label is 1; it has to be a text or None"),
    "options in words": (
        lambda: kernel(options="loud"), Format, "SoftMax: options is 'loud'; it has to be a KernelOptions or one of"),
    "a flag in words": (
        lambda: mg.OptimizerDescriptor(apply_gradient_clipping="no"), Format,
        "OptimizerDescriptor: apply_gradient_clipping is 'no'; it has to be True or False"),
    "a flag of two": (
        lambda: mg.Add(records_clamp=2, device=DEVICE), Format, "Add: records_clamp is 2; it has to be True or False"),
    "a flag of None": (
        lambda: mg.LossDescriptor("huber", reduce_across_batch=None), Format,
        "LossDescriptor: reduce_across_batch is None; it has to be True or False"),
    "a node that is exported perhaps": (
        lambda: setattr(mg.ImageNode(), "export_from_graph", "maybe"), Format,
        "ImageNode: export_from_graph is 'maybe'; it has to be True or False"),
    "a node of another format": (
        lambda: setattr(mg.ImageNode(), "format", "half"), Format,
        "ImageNode: format is 'half'; it has to be a FeatureChannelFormat"),
    "a node with an allocator that makes nothing": (
        lambda: setattr(mg.ImageNode(), "image_allocator", 3), Format,
        r"ImageNode: image_allocator is 3; it has to have an image\(\) method"),
    "a forward loss with a negative delta": (
        lambda: setattr(mg.ForwardLoss(mg.LossDescriptor("huber"), device=DEVICE), "delta", -1), Geometry,
        "ForwardLoss: delta is -1.0; it has to be at least 0"),
    "a window that is too large": (
        lambda: mg.PoolingMax(kernel_width=2, kernel_height=2**40, device=DEVICE), Geometry,
        "PoolingMax: kernel_height is 1099511627776; it has to be at most 32768"),
    # archives
    "an archive that is none": (lambda: archive.from_bytes(b"junk"), mg.ArchiveError, "not an archive of a kernel"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_by_name(build, error, words):
    with pytest.raises(error, match=words) as caught:
        build()
    assert isinstance(caught.value, (mg.MPSGradError, NotImplementedError))


AFTER_AN_ENCODE = {"an image read before commit", "a vector read before commit"}


def test_nothing_is_dispatched_by_any_of_them():
    """What their command buffers then hand to the device is what was encoded before the bad input, and no more."""
    for name, (build, error, _) in BAD.items():
        if name in AFTER_AN_ENCODE:
            continue
        COMMANDS.clear()
        ENCODED_BEFORE.clear()
        with pytest.raises(error):
            build()
        for buffer in COMMANDS:
            if buffer.is_open:
                buffer.commit()
                assert len(DEVICE.submitted[-1]) == ENCODED_BEFORE.get(id(buffer), 0), name


def test_there_are_enough_cases():
    assert len(BAD) >= 60
