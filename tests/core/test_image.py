"""Images: descriptors, arrays in and out, views, batches, allocators, temporary images and their memory."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from fake_device import FakeDevice

import mpsgrad as mg
from mpsgrad.image_descriptor import LARGEST_ELEMENT_COUNT
from mpsgrad.regions import share_memory

RANDOM = np.random.default_rng(11)


def array(*shape: int, dtype=np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def numbered(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_a_descriptor_has_mps_defaults():
    descriptor = mg.ImageDescriptor()
    assert descriptor.shape == (1, 1, 1, 1)
    assert descriptor.channel_format is mg.FeatureChannelFormat.FLOAT32
    descriptor = mg.ImageDescriptor(3, width=5, height=4, feature_channels=3, number_of_images=2)
    assert descriptor.channel_format is mg.FeatureChannelFormat.FLOAT16
    assert (descriptor.shape, descriptor.shape_text, descriptor.element_count) == ((2, 4, 5, 3), "2x4x5x3", 120)
    assert descriptor == replace(descriptor) and hash(descriptor) == hash(replace(descriptor))


def test_the_largest_image_is_described_and_a_larger_one_refused():
    largest = mg.ImageDescriptor(width=LARGEST_ELEMENT_COUNT)
    assert largest.element_count == 2**31 - 1
    for extents in ({"width": 2**31}, {"width": 2**16, "height": 2**15}, {"number_of_images": 2**62}):
        with pytest.raises(mg.GeometryError, match=f"{np.prod([*map(int, extents.values())])} elements.*{2**31 - 1}"):
            mg.ImageDescriptor(**extents)


def test_views_share_memory_where_they_have_an_element_in_common():
    x = numbered(2, 1, 2, 12)
    whole = mg.Image.from_array(x)
    images = [whole, *whole.batch_representation()]
    views = [image.sub_image(first, count) for image in images for first in (0, 4, 8) for count in (4, 8, 12 - first)
             if first + count <= 12]  # fmt: skip
    elements = [set(np.asarray(view).ravel()) for view in views]
    for one, of_one in zip(views, elements, strict=True):
        for other, of_other in zip(views, elements, strict=True):
            assert share_memory(one, other) == bool(of_one & of_other), (one, other)
    assert not share_memory(whole, mg.Image.from_array(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_an_array_survives_the_round_trip(dtype):
    x = array(3, 4, 5, 7, dtype=dtype)
    image = mg.Image.from_array(x, label="x")
    assert (image.number_of_images, image.height, image.width, image.feature_channels) == x.shape == image.shape
    assert (image.dtype, image.resource_size, image.label) == (x.dtype, x.nbytes, "x")
    assert image.precision == {np.float32: 24, np.float16: 11}[dtype]
    np.testing.assert_array_equal(np.asarray(image), x)
    assert "'x' 3x4x5x7" in repr(image)


def test_from_array_copies_and_takes_one_image_without_the_first_axis():
    x = array(4, 5, 2)
    image = mg.Image.from_array(x)
    assert image.shape == (1, 4, 5, 2)
    expected = x.copy()
    x[:] = 0
    np.testing.assert_array_equal(np.asarray(image)[0], expected)


def test_a_read_only_array_is_taken():
    x = array(2, 3, 2)
    x.flags.writeable = False
    np.testing.assert_array_equal(np.asarray(mg.Image.from_array(x))[0], x)


def test_asarray_is_the_live_storage():
    image = mg.Image.from_array(numbered(1, 2, 2, 1), FakeDevice())
    view = np.asarray(image)
    assert np.shares_memory(view, np.asarray(image))
    view[0, 1, 1, 0] = 42
    assert np.asarray(image)[0, 1, 1, 0] == 42
    copy = np.array(image)
    copy[:] = -1
    assert np.asarray(image)[0, 1, 1, 0] == 42
    assert np.asarray(image, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="float32 cannot be read as float64 without a copy"):
        image.__array__(np.float64, copy=False)


@pytest.mark.skipif(not mg.default_device().unified_memory, reason="the device's memory has no views on the host")
def test_an_array_outlives_its_image_while_memory_is_recycled():
    """The view holds the buffer, so the pool never hands its memory to another image."""
    x = array(2, 16, 16, 4)
    view = np.asarray(mg.Image.from_array(x))
    part = np.asarray(mg.Image.from_array(x))[1, 3:9, ::2, 1]
    gc.collect()
    others = [mg.Image.from_array(np.full_like(x, index)) for index in range(8)]
    np.testing.assert_array_equal(view, x)
    np.testing.assert_array_equal(part, x[1, 3:9, ::2, 1])
    addresses = {np.asarray(other).ctypes.data for other in others}
    assert len(addresses) == 8 and view.ctypes.data not in addresses
    address = view.ctypes.data
    del view, others
    gc.collect()
    again = [mg.Image.from_array(x) for _ in range(9)]
    assert address in {np.asarray(image).ctypes.data for image in again}, "the memory is recycled once nobody looks"


def test_memory_without_host_access_is_copied():
    device = FakeDevice(unified_memory=False)
    x = array(3, 4, 5, 8)
    image = mg.Image.from_array(x, device)
    first = np.asarray(image)
    np.testing.assert_array_equal(first, x)
    assert not np.shares_memory(first, np.asarray(image))
    np.testing.assert_array_equal(np.asarray(image.sub_image(4, 4)), x[..., 4:])
    np.testing.assert_array_equal(np.asarray(image.batch_representation(1, 2)), x[1:])
    with pytest.raises(ValueError, match="fake:0 cannot be read without a copy"):
        image.__array__(copy=False)
    with pytest.raises(ValueError, match="read-only"):
        first[:] = 0
    assert np.array(image).flags.writeable
    image.write(-x)
    np.testing.assert_array_equal(np.asarray(image), -x)
    image.sub_image(4, 4).write(x[..., :4])
    image.batch_representation(2, 1)[0].write(x[:1])
    expected = -x
    expected[..., 4:] = x[..., :4]
    expected[2] = x[0]
    np.testing.assert_array_equal(np.asarray(image), expected)


def test_anything_with_dlpack_is_taken():
    class Exporter:
        def __init__(self, values):
            self.values = values

        def __dlpack__(self, **arguments):
            return self.values.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self.values.__dlpack_device__()

    x = array(2, 3, 4, 5)
    np.testing.assert_array_equal(np.asarray(mg.Image.from_array(Exporter(x))), x)


def test_views_of_channels_and_images_share_the_storage():
    x = numbered(3, 2, 4, 10)
    image = mg.Image.from_array(x)
    channels = image.sub_image(4, 4)
    assert channels.parent is image and channels.shape == (3, 2, 4, 4)
    np.testing.assert_array_equal(np.asarray(channels), x[..., 4:8])
    np.testing.assert_array_equal(np.asarray(image.sub_image(8, 4)), x[..., 8:])
    batch = image.batch_representation()
    assert [one.shape for one in batch] == [(1, 2, 4, 10)] * 3
    np.testing.assert_array_equal(np.asarray(batch[2])[0], x[2])
    nested = image.batch_representation(1, 2)[1].sub_image(4, 4)
    np.testing.assert_array_equal(np.asarray(nested)[0], x[2, :, :, 4:8])
    nested.write(np.full(nested.shape, -1, np.float32))
    assert (np.asarray(image)[2, :, :, 4:8] == -1).all()
    assert (np.asarray(image)[:2] == x[:2]).all()
    assert image.batch_representation(1, 2).whole.shape == (2, 2, 4, 10)


def test_an_image_of_one_is_its_own_batch():
    image = mg.Image.from_array(array(2, 2, 3))
    assert image.batch_representation()[0] is image


def test_write_replaces_the_contents_of_images_and_views():
    x = numbered(3, 2, 2, 8)
    image = mg.Image.from_array(np.zeros_like(x))
    image.write(x)
    image.sub_image(4, 4).write(-x[..., 4:])
    image.batch_representation()[1].write(x[1:2, ::-1])
    expected = x.copy()
    expected[..., 4:] *= -1
    expected[1] = x[1, ::-1]
    np.testing.assert_array_equal(np.asarray(image), expected)


def test_a_batch_knows_the_one_image_that_it_is():
    image = mg.Image.from_array(numbered(4, 2, 2, 8))
    batch = image.batch_representation()
    assert batch.whole is image
    assert mg.ImageBatch(reversed(list(batch))).whole is None
    assert mg.ImageBatch([batch[0], batch[2]]).whole is None
    part = batch[1:3]
    assert isinstance(part, mg.ImageBatch) and part.whole.shape == (2, 2, 2, 8)
    np.testing.assert_array_equal(np.asarray(part), np.asarray(image)[1:3])
    others = mg.ImageBatch([mg.Image.from_array(numbered(2, 2, 8)), batch[0]])
    assert others.whole is None
    np.testing.assert_array_equal(np.asarray(others), np.stack([numbered(2, 2, 8)] * 2))
    views = mg.ImageBatch([one.sub_image(0, 4) for one in batch])
    assert views.whole is None
    assert others.resource_size() == 2 * 2 * 2 * 8 * 4
    assert mg.ImageBatch([batch[0], batch[0]]).resource_size() == 2 * 2 * 8 * 4


def test_default_allocators_make_their_kind():
    with mg.CommandBuffer() as commands:
        descriptor = mg.ImageDescriptor(width=3)
        assert type(mg.Image.default_allocator().image(commands, descriptor, None)) is mg.Image
        temporary = mg.TemporaryImage.default_allocator().image(commands, descriptor, None)
        assert type(temporary) is mg.TemporaryImage and temporary.command_buffer is commands


def test_an_allocator_of_ones_own_makes_the_results():
    class Allocator:
        def __init__(self):
            self.calls = []

        def image(self, command_buffer, descriptor, kernel):
            self.calls.append((command_buffer, descriptor, kernel))
            return mg.Image(descriptor, label="mine")

    kernel, allocator = mg.SoftMax(), Allocator()
    kernel.destination_image_allocator = allocator
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, mg.Image.from_array(array(2, 3, 4, 5)))
    assert y.label == "mine" and y.shape == (2, 3, 4, 5)
    ((command_buffer, descriptor, caller),) = allocator.calls
    assert command_buffer is commands and descriptor == y.descriptor and caller is kernel


@pytest.mark.parametrize(
    ("made", "words"),
    [(None, "gave None"), (mg.ImageDescriptor(width=2, height=3, feature_channels=5), "gave <Image 1x3x2x5 float32")],
)
def test_an_allocator_that_makes_another_image_is_named(made, words):
    class Allocator:
        def image(self, command_buffer, descriptor, kernel):
            return made and mg.Image(made)

    kernel, x = mg.SoftMax(), mg.Image.from_array(array(1, 3, 4, 5))
    gradient = mg.SoftMaxGradient()
    y, state = kernel.encode(mg.CommandBuffer(), x, return_state=True)
    kernel.destination_image_allocator = gradient.destination_image_allocator = Allocator()
    for encode in (
        lambda: kernel.encode(mg.CommandBuffer(), x),
        lambda: kernel.encode_batch(mg.CommandBuffer(), [x, x]),
        lambda: gradient.encode(mg.CommandBuffer(), x, x, state),
    ):
        with pytest.raises(mg.FormatError, match=f"SoftMax.*allocator of the result.*{words}.*has to give an image of"):
            encode()


def test_a_temporary_image_is_read_once_and_then_gone():
    x = array(2, 3, 4, 5)
    first, second = mg.LogSoftMax(), mg.SoftMax()
    first.destination_image_allocator = mg.TemporaryImage.default_allocator()
    with mg.CommandBuffer() as commands:
        middle = first.encode(commands, mg.Image.from_array(x))
        assert (middle.read_count, mg.Image.from_array(x).read_count) == (1, 0)
        y = second.encode(commands, middle)
        assert middle.read_count == 0
        with pytest.raises(mg.StateError, match="SoftMax: source_image is a temporary image with read_count 0"):
            second.encode(commands, middle)
        with pytest.raises(mg.StateError, match="read_count is 0, so the memory is gone"):
            middle.read_count = 1
    expected = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(np.asarray(y), expected / expected.sum(-1, keepdims=True), rtol=1e-5)


def test_reads_of_a_temporary_image_are_counted():
    x = array(2, 3, 4, 5)
    forward, again = mg.LogSoftMax(), mg.SoftMax()
    forward.destination_image_allocator = mg.TemporaryImage.default_allocator()
    with mg.CommandBuffer() as commands:
        middle = forward.encode(commands, mg.Image.from_array(x))
        middle.read_count = 3
        results = [again.encode(commands, middle) for _ in range(2)]
        assert middle.read_count == 1
        manual = mg.Image(middle.descriptor)
        again.encode(commands, middle, destination_image=manual)
        assert middle.read_count == 0
    for result in results:
        np.testing.assert_array_equal(np.asarray(result), np.asarray(manual))


def test_an_encode_reads_an_image_once_even_if_it_is_both_sources():
    with mg.CommandBuffer() as commands:
        forward = mg.SoftMax()
        forward.destination_image_allocator = mg.TemporaryImage.default_allocator()
        y, state = forward.encode(commands, mg.Image.from_array(array(1, 2, 2, 4)), return_state=True)
        mg.SoftMaxGradient().encode(commands, y, y, state)
        assert y.read_count == 0


def test_memory_of_a_spent_temporary_image_is_used_again():
    x = array(2, 3, 4, 8)
    source = mg.Image.from_array(x)
    kernel = mg.LogSoftMax()
    kernel.destination_image_allocator = mg.TemporaryImage.default_allocator()
    with mg.CommandBuffer() as commands:
        images = [kernel.encode(commands, source)]
        for _ in range(4):
            images.append(kernel.encode(commands, images[-1]))
        buffers = [image.buffer for image in images]
        result = mg.Image(source.descriptor)
        mg.LogSoftMax().encode(commands, images[-1], destination_image=result)
    assert buffers[0] is buffers[2] is buffers[4]
    assert buffers[1] is buffers[3] and buffers[0] is not buffers[1]
    expected = x.astype(np.float64)
    for _ in range(6):
        expected = expected - np.log(np.exp(expected).sum(-1, keepdims=True))
    np.testing.assert_allclose(np.asarray(result), expected, atol=1e-5)


def test_giving_a_temporary_image_back_early_frees_its_memory():
    commands = mg.CommandBuffer()
    descriptor = mg.ImageDescriptor(width=100)
    first = mg.TemporaryImage(commands, descriptor)
    buffer = first.buffer
    first.read_count = 0
    assert mg.TemporaryImage(commands, descriptor).buffer is buffer
    assert mg.TemporaryImage(commands, descriptor).buffer is not buffer
    assert mg.TemporaryImage(commands, mg.ImageDescriptor(width=99)).buffer is not buffer


def test_views_of_a_temporary_image_keep_its_memory():
    """Each view is one read of its parent until it has been read itself."""
    commands = mg.CommandBuffer()
    parent = mg.TemporaryImage(commands, mg.ImageDescriptor(width=4, feature_channels=8, number_of_images=2))
    buffer = parent.buffer
    batch = parent.batch_representation()
    channels = batch[0].sub_image(4, 4)
    assert isinstance(channels, mg.TemporaryImage) and channels.buffer is buffer
    assert (parent.read_count, batch[0].read_count, batch[1].read_count) == (3, 2, 1)
    assert batch.whole is None
    assert batch.increment_read_count(1) == 2
    assert [image.read_count for image in batch] == [3, 2]
    parent.read_count -= 1
    channels.read_count = 0
    assert (parent.read_count, batch[0].read_count) == (2, 2)
    for image in batch:
        assert commands._reuse_buffer(buffer.nbytes) is None
        image.read_count = 0
    assert parent.read_count == 0 and commands._reuse_buffer(buffer.nbytes) is buffer


def test_increment_read_count_skips_what_has_none():
    commands = mg.CommandBuffer()
    temporary, spent = (mg.TemporaryImage(commands, mg.ImageDescriptor()) for _ in range(2))
    spent.read_count = 0
    regular = mg.Image(mg.ImageDescriptor())
    batch = mg.ImageBatch([temporary, regular, spent, temporary])
    assert batch.increment_read_count(2) == 3
    assert [image.read_count for image in batch] == [3, 0, 0, 3]


def test_reading_waits_for_the_kernel_that_writes():
    x = array(2, 3, 4, 5)
    commands = mg.CommandBuffer()
    y = mg.SoftMax().encode(commands, mg.Image.from_array(x, label="x"))
    y.label = "y"
    for what, access in (("read", lambda: np.asarray(y)), ("written", lambda: y.write(x))):
        with pytest.raises(mg.StateError, match=f"Image 'y': {what} before its command buffer was committed"):
            access()
    with pytest.raises(mg.StateError, match="before its command buffer was committed"):
        np.asarray(y.sub_image(0, 4))
    commands.commit()
    np.testing.assert_allclose(np.asarray(y).sum(-1), 1, rtol=1e-5)
    y.write(x)
    np.testing.assert_array_equal(np.asarray(y), x)


def test_writing_waits_for_committed_work_that_reads_the_image():
    source, kernel = mg.Image.from_array(np.ones((1, 64, 64, 64), np.float32)), mg.SoftMax()
    commands = mg.CommandBuffer()
    results = [kernel.encode(commands, source) for _ in range(20)]
    commands.commit()
    source.write(np.full(source.shape, np.nan, np.float32))
    np.testing.assert_allclose(np.asarray(results[-1]), 1 / 64, rtol=1e-5)


def test_an_image_that_discarded_work_was_to_write_can_be_written():
    x = array(1, 2, 3, 4)
    with pytest.raises(ZeroDivisionError), mg.CommandBuffer() as commands:
        y = mg.SoftMax().encode(commands, mg.Image.from_array(x))
        raise ZeroDivisionError
    with pytest.raises(mg.StateError, match="discarded after an exception"):
        np.asarray(y)
    y.write(x)
    np.testing.assert_array_equal(np.asarray(y), x)


def test_memory_is_allocated_at_the_first_use():
    device = FakeDevice()
    image = mg.Image(mg.ImageDescriptor(width=10), device)
    view = image.sub_image(0, 4) if image.feature_channels > 3 else image
    assert device.allocated == []
    assert view.buffer.nbytes == 40 and device.allocated == [40]


@pytest.mark.parametrize(("read", "written"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("by", ["channels", "images"])
def test_a_kernel_may_write_to_another_part_of_the_image_that_it_reads(by, read, written):
    x = array(2, 3, 4, 8)
    image, expected = mg.Image.from_array(x), x.copy()
    if by == "channels":
        views = [image.sub_image(0, 4), image.sub_image(4, 4)]
        parts, sources = (np.split(values, 2, axis=3) for values in (expected, x))
    else:
        views = [*image.batch_representation()]
        parts, sources = (np.split(values, 2) for values in (expected, x))
    parts[written][...] = 2 * sources[read]
    with mg.CommandBuffer() as commands:
        mg.NeuronLinear(a=2, b=0).encode(commands, views[read], destination_image=views[written])
    np.testing.assert_array_equal(np.asarray(image), expected)


def test_the_descriptor_of_an_image_cannot_be_set() -> None:
    image = mg.Image.from_array(np.zeros((1, 2, 3, 4), np.float32))
    with pytest.raises(AttributeError, match="descriptor"):
        image.descriptor = mg.ImageDescriptor(mg.FeatureChannelFormat.FLOAT32, 30, 20, 4)  # type: ignore[misc]
    assert image.shape == (1, 2, 3, 4)
