"""Slices, reshaped images and concatenations, and their gradients: what the references say, to the bit."""

from __future__ import annotations

from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.kernels import strides
from mpsgrad.kernels.strides import EXTENTS, View, elementwise
from mpsgrad.shader import use_tunables
from mpsgrad.testing import FencedImage, batch_sizes, channel_counts, channel_formats, values
from mpsgrad.tunables import ALWAYS, NEVER, tunables

extents = st.tuples(batch_sizes(), st.integers(1, 6), st.integers(1, 6), channel_counts())


def draw_image(data: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return data.draw(values(shape, dtype))


@given(data=st.data())
def test_a_slice_and_its_gradient(data):
    n, h, w, c = data.draw(extents)
    dtype = data.draw(channel_formats()).dtype
    x = draw_image(data, (n, h, w, c), dtype)
    top, left = data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))
    first = data.draw(st.integers(0, (c - 1) // 4)) * 4
    height, width, count = (data.draw(st.integers(1, k)) for k in (h - top, w - left, c - first))
    kernel = mg.Slice()
    kernel.offset = mg.Offset(left, top)
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = first, count
    kernel.clip_rect = mg.Region(mg.Origin(), mg.Size(width, height, n))
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
    expected = reference.slice_image(x, (top, left), (height, width), first, count)
    np.testing.assert_array_equal(np.asarray(y), expected)
    g = draw_image(data, y.shape, dtype)
    with mg.CommandBuffer() as commands:
        dx = mg.SliceGradient().encode(commands, mg.Image.from_array(g), source, state)
    np.testing.assert_array_equal(np.asarray(dx), reference.slice_image_gradient(g, x.shape, (top, left), first))


def test_a_slice_into_a_larger_image_keeps_the_rest_and_reads_zeros_outside():
    rng = np.random.default_rng(1)
    x, before = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4, 8), (2, 6, 7, 16)))
    kernel = mg.Slice()
    kernel.offset = mg.Offset(2, -1, 1)
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(3, 4, 1))
    kernel.destination_feature_channel_offset = 4
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
    expected = before.copy()
    expected[0, 2:6, 1:4, 4:12] = 0
    expected[0, 3:6, 1:3, 4:12] = x[1, 0:3, 2:4]
    np.testing.assert_array_equal(np.asarray(result), expected)
    g = mg.Image.from_array(before)
    with mg.CommandBuffer() as commands:
        dx = mg.SliceGradient().encode(commands, g, source, state)
    expected = np.zeros_like(x)
    expected[1, :, 2:4] = before[0, 3:6, 1:3, 4:12]
    np.testing.assert_array_equal(np.asarray(dx), expected)


def test_the_gradient_of_a_slice_that_exceeds_the_caches():
    device = mg.default_device()
    before = tunables(device.tuning)
    use_tunables(device.tuning, before.with_number("cached_bytes", 1 << 20))
    try:
        x = np.zeros((2, 64, 65, 16), np.float32)
        kernel = mg.Slice()
        kernel.offset = mg.Offset(2, 1)
        kernel.clip_rect = mg.Region(mg.Origin(), mg.Size(60, 59, 2))
        g = np.random.default_rng(3).standard_normal((2, 59, 60, 16), dtype=np.float32)
        with mg.CommandBuffer() as commands:
            _, state = kernel.encode(commands, mg.Image.from_array(x), return_state=True)
            dx = mg.SliceGradient().encode(commands, mg.Image.from_array(g), mg.Image.from_array(x), state)
    finally:
        use_tunables(device.tuning, before)
    np.testing.assert_array_equal(np.asarray(dx), reference.slice_image_gradient(g, x.shape, (1, 2), 0))


@pytest.mark.parametrize("by_eights", [ALWAYS, NEVER])
@pytest.mark.parametrize("channels", [(16, 32), (13, 32), (32, 16, 5)])
def test_a_concatenation_that_exceeds_the_caches_only_as_a_whole(channels, by_eights):
    """CPUs with few registers copy it with one kernel however large it is, others each source with one."""
    device = mg.default_device()
    before = tunables(device.tuning)
    rng = np.random.default_rng(5)
    sources = [rng.standard_normal((2, 43, 45, count), dtype=np.float32) for count in channels]
    assert all(2 * source.nbytes < 1 << 20 < 2 * sum(each.nbytes for each in sources) for source in sources)
    numbers = before.with_number("cached_bytes", 1 << 20).with_number("convolution_by_eights", by_eights)
    use_tunables(device.tuning, numbers)
    try:
        with mg.CommandBuffer() as commands:
            result = mg.Concatenation().encode(commands, [mg.Image.from_array(source) for source in sources])
            if device.family == "cpu":
                assert len(commands._dispatches) == (1 if by_eights == ALWAYS else len(sources))
    finally:
        use_tunables(device.tuning, before)
    np.testing.assert_array_equal(np.asarray(result), np.concatenate(sources, 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_views_of_many_pixels_are_concatenated_in_place(dtype):
    """More pixels than a thread of a CPU makes at once, of more sources than one run of its kernel has."""
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal((2, 43, 45, count)).astype(dtype) for count in (4, 5, 1, 13, 8, 9)]
    wide, before = (rng.standard_normal((2, 43, 45, count)).astype(dtype) for count in (12, 48))
    sources, parent = [mg.Image.from_array(array) for array in arrays], mg.Image.from_array(before)
    sources[0] = mg.Image.from_array(wide).sub_image(4, 4)
    with mg.CommandBuffer() as commands:
        mg.Concatenation().encode(commands, sources, destination_image=parent.sub_image(4, 40))
    before[..., 4:44] = np.concatenate((wide[..., 4:8], *arrays[1:]), 3)
    np.testing.assert_array_equal(np.asarray(parent), before)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("channels", [*range(1, 9), 13])
def test_slices_of_few_channels_of_many_pixels(channels, dtype):
    x = np.random.default_rng(channels).standard_normal((2, 43, 45, 20)).astype(dtype)
    kernel = mg.Slice()
    kernel.offset, kernel.clip_rect = mg.Offset(3, 2), mg.Region(mg.Origin(), mg.Size(41, 40, 2))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, channels
    source = mg.Image.from_array(x)
    result = FencedImage.of(kernel.destination_image_descriptor([source]))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result.image)
    np.testing.assert_array_equal(result.check(), reference.slice_image(x, (2, 3), (40, 41), 4, channels))


@pytest.mark.parametrize("tuning", ["cpu", "cpu-avx2"])
def test_what_goes_past_the_caches_counts_what_is_beside_it_and_is_whole_lines(tuning):
    numbers = tunables(tuning)
    elements = 64 * 56 * 56

    def goes_past(stride: int, beside: int) -> bool:
        views = View(0, (1, 64, 64 * 56, elements)), View(0, (1, stride, stride * 56, stride * 56 * 56))
        names = "source", "destination"
        work = elementwise(names, views, (64, 56, 56, 1), 1, "cpu", 4, 2, numbers, beside)
        return bool(work.parameters["extents"][list(EXTENTS.fields).index("exceeds_caches")])

    most = numbers.streamed_bytes // 4 - 2 * elements
    assert not goes_past(128, most) and goes_past(128, most + 1)
    assert not goes_past(127, most + 1)


@given(data=st.data())
def test_reshaped_images_and_their_gradients(data):
    n, h, w, c = data.draw(extents)
    dtype = data.draw(channel_formats()).dtype
    x = draw_image(data, (n, h, w, c), dtype)
    shape = tuple(data.draw(st.permutations([h, w, c])))
    kernel, source = mg.Reshape(), mg.Image.from_array(x)
    names = ("reshaped_height", "reshaped_width", "reshaped_feature_channels")
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode_reshaped(commands, source, **dict(zip(names, shape, strict=True)), return_state=True)
        result = FencedImage.of(y.descriptor)
        kernel.encode(commands, source, destination_image=result.image)
    expected = reference.reshape(x, shape[:2], shape[2])
    np.testing.assert_array_equal(np.asarray(y), expected)
    np.testing.assert_array_equal(result.check(), expected)
    g = draw_image(data, (n, *shape), dtype)
    with mg.CommandBuffer() as commands:
        dx = mg.ReshapeGradient().encode(commands, mg.Image.from_array(g), source, state)
    np.testing.assert_array_equal(np.asarray(dx), reference.reshape_gradient(g, x.shape))


def test_views_are_reshaped_in_place():
    rng = np.random.default_rng(2)
    x, before = (rng.standard_normal((2, 3, 4, 16)).astype(np.float32) for _ in range(2))
    source, parent = mg.Image.from_array(x), mg.Image.from_array(before)
    with mg.CommandBuffer() as commands:
        mg.Reshape().encode(commands, source.sub_image(4, 8), destination_image=parent.sub_image(8, 8))
    before[..., 8:] = x[..., 4:12]
    np.testing.assert_array_equal(np.asarray(parent), before)


@pytest.mark.parametrize("aligns", [False, True], ids=["without gaps", "as MPS"])
@given(data=st.data())
def test_concatenations_and_their_gradients(aligns, data):
    n, h, w, _ = data.draw(extents)
    dtype = data.draw(channel_formats()).dtype
    counts = data.draw(st.lists(channel_counts(), min_size=1, max_size=6))
    arrays = [draw_image(data, (n, h, w, count), dtype) for count in counts]
    images = [mg.Image.from_array(array) for array in arrays]
    kernel = mg.Concatenation(aligns_channels=aligns)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, images, return_state=True)
        result = FencedImage.of(y.descriptor)
        kernel.encode(commands, images, destination_image=result.image)
    expected = reference.concatenation(arrays, aligns_channels=aligns)
    np.testing.assert_array_equal(np.asarray(y), expected)
    np.testing.assert_array_equal(result.check(), expected)
    g = draw_image(data, y.shape, dtype)
    for index, expected in enumerate(reference.concatenation_gradient(g, counts, aligns_channels=aligns)):
        with mg.CommandBuffer() as commands:
            dx = mg.ConcatenationGradient(index).encode(commands, mg.Image.from_array(g), images[index], state)
        np.testing.assert_array_equal(np.asarray(dx), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@given(data=st.data())
def test_two_sources_whose_pixels_are_copied_one_after_the_other(dtype, data):
    """Of short pixels CPUs write more than there is, but for the last ones of a thread."""
    shape = data.draw(st.tuples(batch_sizes(), st.integers(1, 9), st.integers(1, 70)))
    counts = data.draw(st.tuples(*[st.integers(1, 50)] * 2))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = [rng.standard_normal((*shape, count)).astype(dtype) for count in counts]
    images = [mg.Image.from_array(array) for array in arrays]
    if data.draw(st.booleans()) and counts[0] % 4 == 0:
        wide = np.concatenate((arrays[0][..., :1].repeat(4, 3), arrays[0]), 3)
        images[0] = mg.Image.from_array(wide).sub_image(4, counts[0])
    result = FencedImage.of(mg.Concatenation().destination_image_descriptor(images))
    with mg.CommandBuffer() as commands:
        mg.Concatenation().encode(commands, images, destination_image=result.image)
    np.testing.assert_array_equal(result.check(), np.concatenate(arrays, 3))


@pytest.mark.parametrize(("dtype", "counts"), [(np.float32, (40, 77, 44)), (np.float16, (128, 131, 300))])
def test_long_pixels_of_several_sources_are_copied_one_after_the_other(dtype, counts):
    rng = np.random.default_rng(12)
    arrays = [rng.standard_normal((2, 5, 7, count)).astype(dtype) for count in counts]
    images = [mg.Image.from_array(array) for array in arrays]
    wide = np.concatenate((arrays[0][..., :4], arrays[0]), 3)
    images[0] = mg.Image.from_array(wide).sub_image(4, counts[0])
    result = FencedImage.of(mg.Concatenation().destination_image_descriptor(images))
    with mg.CommandBuffer() as commands:
        mg.Concatenation().encode(commands, images, destination_image=result.image)
    np.testing.assert_array_equal(result.check(), np.concatenate(arrays, 3))


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @pytest.mark.parametrize("channels", [(5, 5), (50, 3, 1), (1, 2, 1, 4), (4, 12), (8, 16, 8), (9, 4)])
    @pytest.mark.parametrize("is_large", [True, False])
    def test_sources_are_copied_at_once(self, is_large, channels, monkeypatch):
        """Vectors where they fit all sources; elsewhere four elements across the ends of these, or one."""
        monkeypatch.setattr(strides, "FEWEST_ELEMENTS_OF_FLAT", 1 if is_large else 1000)
        for dtype in gpu_forms.DTYPES:
            rng = np.random.default_rng(11)
            sources = [rng.integers(-99, 99, (1, 3, 7, count)).astype(dtype) for count in channels]
            expected, images = np.concatenate(sources, 3), [mg.Image.from_array(source) for source in sources]
            with mg.CommandBuffer() as commands:
                result = mg.Concatenation().encode(commands, images)
                (dispatch,) = commands._dispatches
            if is_large and sum(channels) % 4:
                assert dispatch.function.name.endswith("flat4_and_rest")
            np.testing.assert_array_equal(np.asarray(result), expected)
            if expected.shape[3] % 4 or channels[0] % 4:
                continue
            before = rng.integers(-99, 99, (1, 3, 7, expected.shape[3] + 16)).astype(dtype)
            wide = np.concatenate((sources[0], *sources), 3)
            images[0] = mg.Image.from_array(wide).sub_image(channels[0], channels[0])
            parent = mg.Image.from_array(before)
            with mg.CommandBuffer() as commands:
                mg.Concatenation().encode(
                    commands, images, destination_image=parent.sub_image(4, expected.shape[3]))
            before[..., 4:-12] = expected
            np.testing.assert_array_equal(np.asarray(parent), before)


def test_the_channels_that_mps_gives():
    """7 and 11 channels take 8 and 12 there."""
    images = [mg.Image.from_array(np.ones((1, 1, 1, count), np.float32)) for count in (7, 11)]
    assert mg.Concatenation(aligns_channels=True).destination_image_descriptor(images).feature_channels == 20
    assert mg.Concatenation().destination_image_descriptor(images).feature_channels == 18


def test_batches_and_archives_give_the_same_bits():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 2, 4, 5)).astype(np.float32)
    kernel = mg.Reshape()
    kernel.reshaped_width, kernel.reshaped_height, kernel.reshaped_feature_channels = 5, 4, 2
    restored = archive.from_bytes(archive.to_bytes(kernel))
    images = [mg.Image.from_array(one) for one in x]
    with mg.CommandBuffer() as commands:
        results, states = restored.encode_batch(commands, images, return_state=True)
        again = mg.Reshape().encode_batch_reshaped(
            commands, images, reshaped_width=5, reshaped_height=4, reshaped_feature_channels=2
        )
        gradients = mg.ReshapeGradient().encode_batch(commands, list(results), images, states)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(results))
    np.testing.assert_array_equal(np.asarray(results), x.reshape(3, 4, 5, 2))
    np.testing.assert_array_equal(np.asarray(gradients), x)
    assert archive.from_bytes(archive.to_bytes(mg.ConcatenationGradient(2))).source_index == 2


# bad input


def _image(*shape: int, dtype: Any = np.float32) -> mg.Image:
    return mg.Image.from_array(np.ones(shape, dtype))


def _encode(kernel: Any, *sources: Any, into: Any = None, **properties: Any) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel.encode(mg.CommandBuffer(), *sources, destination_image=into)


def _concatenation_gradient(index: int, x: Any = (1, 2, 3, 4)) -> None:
    commands, images = mg.CommandBuffer(), [_image(1, 2, 3, 4), _image(1, 2, 3, 5)]
    y, state = mg.Concatenation().encode(commands, images, return_state=True)
    mg.ConcatenationGradient(index).encode(commands, y, _image(*x), state)


def _gradient(forward: Any, gradient: Any, g: Any) -> None:
    commands, x = mg.CommandBuffer(), _image(1, 2, 3, 4)
    _, state = forward.encode(commands, x, return_state=True)
    gradient.encode(commands, _image(*g), x, state)


X = (1, 2, 3, 4)
BAD_INPUT = {
    "a slice beyond the source": (
        lambda: _encode(mg.Slice(), _image(*X), offset=mg.Offset(3, 0)), mg.GeometryError,
        "Slice: offset is (3, 0, 0) and clip_rect.size"),
    "a slice from an unaligned channel": (
        lambda: _encode(mg.Slice(), _image(*X), source_feature_channel_offset=2), mg.GeometryError,
        "Slice: source_feature_channel_offset is 2; it has to be a multiple of 4"),
    "a slice with a clamped edge": (
        lambda: _encode(mg.Slice(), _image(*X), edge_mode=mg.EdgeMode.CLAMP), NotImplementedError,
        "Slice: edge_mode is CLAMP; it supports ZERO"),
    "a slice's gradient of another size": (
        lambda: _gradient(mg.Slice(), mg.SliceGradient(), (1, 2, 2, 4)), mg.GeometryError,
        "SliceGradient: source_gradient is 1x2x2x4 but Slice of a 1x2x3x4 source gives 1x2x3x4"),
    "the state of another kernel": (
        lambda: _gradient(mg.SoftMax(), mg.SliceGradient(), X), mg.StateError,
        "SliceGradient: gradient_state was made by SoftMax; it has to be made by Slice"),
    "another number of elements": (
        lambda: _encode(mg.Reshape(), _image(*X), reshaped_width=5), mg.GeometryError,
        "Reshape: the source is 1x2x3x4 with 24 elements in each image but the result 1x1x5x1 with 5"),
    "a width of 0": (
        lambda: _encode(mg.Reshape(), _image(*X), reshaped_width=0), mg.GeometryError,
        "Reshape: reshaped_width is 0; it has to be at least 1"),
    "another number of images": (
        lambda: _encode(mg.Reshape(), _image(2, 2, 3, 4), into=_image(1, 2, 3, 8)), mg.GeometryError,
        "Reshape: the source is 2x2x3x4 with 24 elements in each image but the result 1x2x3x8 with 48"),
    "an offset": (
        lambda: _encode(mg.Reshape(), _image(*X), into=_image(*X), offset=mg.Offset(1, 0)), NotImplementedError,
        "Reshape: offset is Offset(x=1, y=0, z=0); only Offset(x=0, y=0, z=0) is supported"),
    "another first image": (
        lambda: _encode(mg.Reshape(), _image(2, 2, 3, 4), reshaped_width=24, offset=mg.Offset(z=1)),
        NotImplementedError, "Reshape: offset is Offset(x=0, y=0, z=1); only Offset(x=0, y=0, z=0) is supported"),
    "a reshaped gradient of another size": (
        lambda: _gradient(mg.Slice(), mg.ReshapeGradient(), X), mg.StateError,
        "ReshapeGradient: gradient_state was made by Slice; it has to be made by Reshape"),
    "one image": (
        lambda: mg.Concatenation().encode(mg.CommandBuffer(), _image(*X)), mg.FormatError,
        "Concatenation: source_images is Image; it has to be a list of images"),
    "no image": (
        lambda: mg.Concatenation().encode(mg.CommandBuffer(), []), mg.GeometryError,
        "Concatenation: source_images is empty"),
    "images of several sizes": (
        lambda: mg.Concatenation().encode(mg.CommandBuffer(), [_image(*X), _image(1, 3, 3, 4)]), mg.GeometryError,
        "Concatenation: source_images[1] is 1x3x3x4 but source_images[0] 1x2x3x4; only the feature"),
    "images of several formats": (
        lambda: mg.Concatenation().encode(mg.CommandBuffer(), [_image(*X), _image(*X, dtype=np.float16)]),
        mg.FormatError, "Concatenation: source_images[1] is FLOAT16 but source_images[0] is FLOAT32"),
    "a destination of another size": (
        lambda: mg.Concatenation().encode(mg.CommandBuffer(), [_image(*X)] * 2, destination_image=_image(*X)),
        mg.GeometryError, "Concatenation: destination_image is 1x2x3x4 but the sources give 1x2x3x8"),
    "a source that is not there": (
        lambda: _concatenation_gradient(2), mg.StateError,
        "ConcatenationGradient: source_index is 2 but gradient_state was made of 2 sources"),
    "a source that is another": (
        lambda: _concatenation_gradient(1), mg.GeometryError,
        "ConcatenationGradient: source_image is 1x2x3x4 but gradient_state was made for 1x2x3x5"),
    "a negative index": (
        lambda: mg.ConcatenationGradient(-1), mg.GeometryError,
        "ConcatenationGradient: source_index is -1; it has to be at least 0"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)
