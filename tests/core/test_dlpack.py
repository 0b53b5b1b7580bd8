"""Memory that images share with other libraries: DLPack both ways, and the interface of CUDA arrays."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice

import mpsgrad as mg
from mpsgrad import dlpack

X = np.random.default_rng(7).standard_normal((2, 3, 4, 8)).astype(np.float32)
ON_GPU = mg.default_device().dlpack_device[0] == dlpack.CUDA
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")


@pytest.fixture(params=["torch", "cupy"])
def library(request: pytest.FixtureRequest) -> Any:
    """Another library, with arrays on the default device."""
    if request.param == "cupy" and not ON_GPU:
        pytest.skip("CuPy needs an NVIDIA GPU")
    library = pytest.importorskip(request.param)
    if ON_GPU and not library.cuda.is_available():
        pytest.skip(f"{request.param} has no CUDA")
    return library


def array_in(library: Any, values: np.ndarray) -> Any:
    if library.__name__ == "cupy":
        return library.asarray(values)
    return library.from_numpy(values.copy()).to("cuda" if ON_GPU else "cpu")


def numbers(array: Any) -> np.ndarray:
    if hasattr(array, "get"):
        return array.get()
    return array.cpu().numpy() if hasattr(array, "cpu") else np.asarray(array)


def torch_with_cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return torch


def lent() -> int:
    """How many pieces of memory other libraries have."""
    gc.collect()
    return len(dlpack._lent)


def doubled(image: mg.Image) -> mg.Image:
    """Work that has been committed but not waited for."""
    commands = mg.CommandBuffer()
    result = mg.NeuronLinear(a=2, b=0).encode(commands, image)
    commands.commit()
    return result


def test_an_image_in_another_librarys_memory(library: Any) -> None:
    array = array_in(library, X)
    image = mg.Image.from_dlpack(array)
    assert image.device is mg.default_device() and image.shape == X.shape and image.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(image), X)
    np.testing.assert_array_equal(np.asarray(doubled(image)), 2 * X)
    array[1] = 3
    np.testing.assert_array_equal(np.asarray(image)[1], np.full_like(X[1], 3))
    image.write(-X)
    np.testing.assert_array_equal(numbers(array), -X)
    with mg.CommandBuffer() as commands:
        mg.NeuronAbsolute().encode(commands, mg.Image.from_array(X), destination_image=image)
    np.testing.assert_array_equal(numbers(array), np.abs(X))


def test_another_librarys_array_in_an_images_memory(library: Any) -> None:
    image = mg.Image.from_array(X)
    result = doubled(image)
    array = library.from_dlpack(result)
    assert tuple(array.shape) == X.shape
    array[0] += 1
    expected = 2 * X
    expected[0] += 1
    np.testing.assert_array_equal(numbers(array), expected)
    np.testing.assert_array_equal(np.asarray(result), expected)
    part = library.from_dlpack(image.batch_representation(1, 1)[0].sub_image(4, 4))
    np.testing.assert_array_equal(numbers(part), X[1:, ..., 4:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_both_types(library: Any, dtype: Any) -> None:
    values = X.astype(dtype)
    image = mg.Image.from_dlpack(array_in(library, values[0]))
    assert image.shape == (1, *X.shape[1:]) and image.dtype == dtype
    np.testing.assert_array_equal(numbers(library.from_dlpack(image)), values[:1])


def test_numbers_may_begin_behind_the_address() -> None:
    values = np.arange(12, dtype=np.float32)
    capsule = dlpack.capsule_of(values, values.ctypes.data, (dlpack.CPU, 0), values.dtype, (8,), (1,))
    managed = dlpack._ManagedTensor.from_address(dlpack._pointer_in(id(capsule), b"dltensor"))
    managed.tensor.byte_offset = 16
    assert dlpack.BorrowedTensor(capsule).address == values.ctypes.data + 16


def test_memory_lives_as_long_as_somebody_uses_it(library: Any) -> None:
    image = mg.Image.from_array(X)
    array = library.from_dlpack(image)
    del image
    gc.collect()
    others = [mg.Image.from_array(np.zeros_like(X)) for _ in range(4)]
    np.testing.assert_array_equal(numbers(array), X)
    assert len(others) == 4
    borrowed = mg.Image.from_dlpack(array_in(library, X))
    gc.collect()
    more = [array_in(library, np.zeros_like(X)) for _ in range(4)]
    np.testing.assert_array_equal(np.asarray(borrowed), X)
    assert len(more) == 4
    kept = lent()
    del array
    assert lent() in (kept, kept - 1)


def test_images_exchange_memory() -> None:
    """Through a capsule of our own on a GPU, of NumPy's elsewhere."""
    image = mg.Image.from_array(X)
    before = lent()
    same = mg.Image.from_dlpack(image)
    same.write(-X)
    np.testing.assert_array_equal(np.asarray(image), -X)
    del image
    gc.collect()
    np.testing.assert_array_equal(np.asarray(same), -X)
    del same
    assert lent() == before


def test_a_capsule_that_nobody_takes() -> None:
    before = lent()
    capsule = dlpack.capsule_of(object(), 64, (1, 0), np.dtype(np.float32), (2, 3), (3, 1))
    assert lent() == before + 1
    del capsule
    assert lent() == before


def test_what_is_in_a_capsule() -> None:
    before = lent()
    capsule = dlpack.capsule_of(object(), 64, (2, 3), np.dtype(np.float16), (2, 3), (8, 1))
    tensor = dlpack.BorrowedTensor(capsule)
    assert (tensor.address, tensor.device, tensor.shape, tensor.strides) == (64, (2, 3), (2, 3), (8, 1))
    assert tensor.dtype == np.float16
    with pytest.raises(BufferError, match="that nobody took yet"):
        dlpack.BorrowedTensor(capsule)
    with pytest.raises(BufferError, match="int is no capsule"):
        dlpack.BorrowedTensor(7)
    del capsule
    assert lent() == before + 1
    del tensor
    assert lent() == before


def test_numpy_reads_our_capsules() -> None:
    class Lender:
        def __dlpack__(self, **_: Any) -> Any:
            return dlpack.capsule_of(X, X.ctypes.data, (1, 0), X.dtype, (2, 3, 4, 4), (96, 32, 8, 1))

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    before = lent()
    values = np.from_dlpack(Lender())
    np.testing.assert_array_equal(values, X[..., :4])
    assert np.shares_memory(values, X)
    del values
    assert lent() == before


class Foreign:
    """An array with these properties, of which only the address is used."""

    def __init__(self, **changes: Any) -> None:
        device = mg.default_device().dlpack_device
        self.values = {"address": 1 << 20, "device": device, "dtype": np.dtype(np.float32), "shape": (1, 2, 3, 4)}
        self.values |= changes
        self.values.setdefault("strides", dlpack.dense_strides(self.values["shape"]))

    def __dlpack_device__(self) -> Any:
        return self.values["device"]

    def __dlpack__(self, **_: Any) -> Any:
        return dlpack.capsule_of(self, **self.values)


REFUSED = {
    "another device": ({"device": (9, 0)}, mg.FormatError, r"on the DLPack device \(9, 0\) but \w+:0 is"),
    "another dtype": ({"dtype": np.dtype(np.int32)}, mg.FormatError, "images hold float16 or float32, not int32"),
    "float64": ({"dtype": np.dtype(np.float64)}, mg.FormatError, "images hold float16 or float32, not float64"),
    "two dimensions": ({"shape": (3, 4)}, mg.GeometryError, r"shape \(3, 4\); it has to be"),
    "nothing": ({"shape": (1, 0, 3, 4)}, mg.GeometryError, "without an extent of 0"),
    "gaps": ({"strides": (48, 24, 8, 1)}, mg.FormatError, r"strides \(48, 24, 8, 1\); it has to be C-contiguous"),
    "other order": ({"strides": (24, 1, 2, 6)}, mg.FormatError, "it has to be C-contiguous"),
    "an odd address": ({"address": (1 << 20) + 8}, mg.FormatError, "address 0x100008, which is no multiple of 16"),
}


@pytest.mark.parametrize(("changes", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(changes: Any, error: type[Exception], words: str) -> None:
    before = lent()
    with pytest.raises(error, match=f"Image.from_dlpack: .*{words}"):
        mg.Image.from_dlpack(Foreign(**changes))
    assert lent() == before


def test_strides_of_extents_of_one_do_not_matter() -> None:
    image = mg.Image.from_dlpack(Foreign(shape=(1, 2, 1, 4), strides=(77, 4, 99, 1)))
    assert image.shape == (1, 2, 1, 4)
    column = Foreign(shape=(5, 1), strides=(1, 5))
    assert dlpack.BorrowedTensor.of(column, None).is_dense
    assert not dlpack.BorrowedTensor.of(Foreign(shape=(5, 2), strides=(1, 5)), None).is_dense


def test_two_images_over_one_array_are_no_source_and_destination(library) -> None:
    """Also for a kernel that took other images of the same extents before."""
    array, kernel = array_in(library, X), mg.NeuronReLU()
    image, again = mg.Image.from_dlpack(array), mg.Image.from_dlpack(array)
    with mg.CommandBuffer() as commands:
        for destination in (mg.Image(image.descriptor), mg.Image.from_dlpack(array_in(library, X))):
            kernel.encode(commands, image, destination_image=destination)
            with pytest.raises(mg.GeometryError, match="shares memory with source_image"):
                kernel.encode(commands, image, destination_image=again)


def test_objects_that_share_no_memory() -> None:
    with pytest.raises(mg.FormatError, match="list has no __dlpack__"):
        mg.Image.from_dlpack([1.0])
    with pytest.raises(mg.FormatError, match="device is 'cpu'"):
        mg.Image.from_dlpack(Foreign(), "cpu")  # type: ignore[arg-type]
    lent = np.zeros((1, 2, 3, 4), np.float32)
    lent.flags.writeable = False
    if not ON_GPU:
        with pytest.raises(mg.FormatError, match="Image.from_dlpack: .*readonly"):
            mg.Image.from_dlpack(lent)
    with pytest.raises(NotImplementedError, match="fake:0: kernels cannot use memory that something else allocated"):
        mg.Image.from_dlpack(Foreign(device=(1, 0)), FakeDevice())


def test_work_that_was_not_committed_is_not_lent() -> None:
    with mg.CommandBuffer() as commands:
        result = mg.SoftMax().encode(commands, mg.Image.from_array(X))
        temporary = mg.TemporaryImage(commands, result.descriptor)
        with pytest.raises(mg.StateError, match="before its command buffer was committed"):
            result.__dlpack__()
        with pytest.raises(mg.StateError, match="no CPU access"):
            temporary.__dlpack__()
    assert result.__dlpack_device__() == mg.default_device().dlpack_device
    result.__dlpack__()


@pytest.mark.skipif(ON_GPU, reason="is about other devices")
def test_only_gpus_have_the_interface_of_cuda_arrays() -> None:
    assert not hasattr(mg.Image.from_array(X), "__cuda_array_interface__")


@needs_gpu
def test_the_interface_of_cuda_arrays(library: Any) -> None:
    image = mg.Image.from_array(X)
    result = doubled(image)
    if library.__name__ == "torch":
        array = library.as_tensor(result, device="cuda")
    else:
        array = library.asarray(result)
    np.testing.assert_array_equal(numbers(array), 2 * X)
    array[:] = 5
    assert (np.asarray(result) == 5).all()
    view = image.sub_image(4, 4).__cuda_array_interface__
    assert view["shape"] == (2, 3, 4, 4) and view["strides"] == (384, 128, 32, 4) and view["version"] == 3
    assert view["data"][0] == image.__cuda_array_interface__["data"][0] + 16


@needs_gpu
def test_work_of_other_streams_is_waited_for() -> None:
    """Both libraries work on one memory without a wait on the host."""
    torch = torch_with_cuda()
    x = torch.ones((64, 112, 112, 64), device="cuda")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            value = 1.0
            x.fill_(value)
            for _ in range(12):
                x.mul_(1.5)
                image = mg.Image.from_dlpack(x)
                result = doubled(image)
                x = torch.from_dlpack(result)
                value *= 3
            assert bool((x == value).all())


@needs_gpu
def test_lent_memory_is_not_used_again_too_early() -> None:
    torch = torch_with_cuda()
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    ones = np.ones((16, 112, 112, 64), np.float32)
    for _ in range(20):
        array = torch.from_dlpack(mg.Image.from_array(ones))
        for _ in range(10):
            array.mul_(1.0)
        total += array.sum(dtype=torch.float64)
        del array
        mg.Image.from_array(np.zeros_like(ones))
    assert float(total) == 20 * ones.size
