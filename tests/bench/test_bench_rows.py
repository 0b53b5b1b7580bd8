"""Every row on tiny shapes: its check accepts the kernel and PyTorch, and rejects a wrong element."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from bench import pytorch, selection
from bench.case import GROUPS, Case, TorchCall, Work
from bench.check import check_ours, check_pytorch, run_once
from bench.inputs import RandomArray
from mpsgrad.vector import Vector

MODULES = selection.modules()


def _cases(module: str, dtype: str, hardware: str = "cpu") -> list[Case]:
    return list(importlib.import_module(f"bench.rows.{module}").cases(dtype, hardware))


def _spoil(result: Any) -> None:
    """Adds 1 to the first element of an image or a vector."""
    values = np.array(result)
    values.flat[0] += 1
    result.buffer.write(values.reshape(-1).view(np.uint8))


def _spoilt(work: Work) -> Work:
    """``work`` with a wrong first element in its first result."""
    results = dict(work.results())
    name = next(iter(results))
    if isinstance(results[name], (mg.Image, Vector)):
        _spoil(results[name])
    else:
        results[name] = results[name].copy()
        results[name].flat[0] += 1
    return Work(work.encode, lambda: results, work.parts)


@pytest.mark.parametrize("dtype", selection.DTYPES)
@pytest.mark.parametrize("module", MODULES)
def test_every_check_accepts_the_kernel_and_rejects_a_wrong_element(module: str, dtype: str, device: mg.Device) -> None:
    for case in _cases(module, dtype):
        work = case.prepare(device)
        run_once(work, device)
        parts = work.parts()
        assert check_ours(work, parts).over_bound <= 1
        with pytest.raises(AssertionError, match="out of bounds"):
            check_ours(_spoilt(work), parts)


@pytest.mark.parametrize("module", [name for name in MODULES if name != "optimizer"])
def test_what_is_timed_again_and_again_is_what_was_checked(module: str, device: mg.Device) -> None:
    """All but the optimizer, which works in place, give the same result at every run."""
    for case in _cases(module, "float32"):
        work = case.prepare(device)
        with mg.CommandBuffer(device) as commands:
            for _ in range(3):
                work.encode(commands)
        check_ours(work, work.parts())


@pytest.mark.parametrize("dtype", selection.DTYPES)
@pytest.mark.parametrize("module", MODULES)
def test_pytorch_computes_what_the_row_computes(module: str, dtype: str, device: mg.Device) -> None:
    torch = pytest.importorskip("torch")
    for case in _cases(module, dtype):
        work = case.prepare(device)
        run_once(work, device)
        parts, calls = work.parts(), work.torch_calls(torch.device("cpu"))
        # That gradient of PyTorch's writes outside its tensor.
        assert calls or (case.op, dtype) == ("crop_and_resize_gradient", "float16")
        for layout, call in calls.items():
            error = check_pytorch(call, parts)
            assert error.over_bound < pytorch.DISAGREES, (case.name, layout, error)
            wrong = TorchCall(lambda *all, call=call: _changed(call.function(*all)), call.arguments, call.results)
            if module != "optimizer":
                assert check_pytorch(wrong, parts).over_bound > pytorch.DISAGREES, (case.name, layout)


def _changed(returned: Any) -> Any:
    """Tensors that are twice as large plus 1."""
    if isinstance(returned, (tuple, list)):
        return [each if each is None else _changed(each) for each in returned]
    return 2 * returned + 1


def test_a_value_that_is_not_finite_is_an_infinite_error(device: mg.Device) -> None:
    case = next(case for case in _cases("soft_max", "float32") if case.op == "soft_max")
    work = case.prepare(device)
    run_once(work, device)
    image = work.results()["result"]
    values = np.array(image)
    values[0, 0, 0, 1] = np.nan
    image.write(values)
    parts = work.parts()
    with pytest.raises(AssertionError, match="out of bounds"):
        check_ours(work, parts)
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(np.array(work.results()["result"]))
    call = TorchCall(lambda: tensor, (), lambda returned: {"result": returned})
    assert math.isinf(check_pytorch(call, parts).over_bound)


def test_an_input_is_the_same_numbers_as_array_image_tensor_and_slice(device: mg.Device) -> None:
    """The shape has more elements than the block that is repeated."""
    torch = pytest.importorskip("torch")
    numbers = RandomArray((4, 6, 7, 9), "float32", seed=3)
    assert numbers.size > 1009
    array = numbers.array()
    assert array.shape == numbers.shape and numbers.nbytes == array.nbytes
    assert (np.asarray(numbers.image(device)) == array).all()
    assert (numbers.tensor(torch.device("cpu")).numpy() == array).all()
    assert (numbers.first(2) == array[:2]).all()
    assert (numbers.channels(4) == array[..., :4]).all()
    assert not (array == RandomArray(numbers.shape, "float32", seed=4).array()).any()
    nchw, nhwc = (pytorch.layouts(torch.device("cpu"), numbers)[layout][0] for layout in ("NCHW", "NHWC"))
    assert (pytorch.as_image(nchw).numpy() == array).all() and (pytorch.as_image(nhwc).numpy() == array).all()
    assert nchw.is_contiguous() and nhwc.is_contiguous(memory_format=torch.channels_last)


def test_rows_come_in_order_of_importance_and_options_choose() -> None:
    everything = selection.selected("gpu", None, None, quick=False)
    order = [GROUPS.index(case.group) for case in everything]
    assert order == sorted(order)
    assert {case.dtype for case in everything} == {"float32", "float16"}
    assert any(case.tf32 for case in everything)
    assert {case.dtype for case in selection.selected("cpu", None, None, quick=False)} == {"float32"}
    assert not any(case.tf32 for case in selection.selected("cpu", None, None, quick=False))
    quick = selection.selected("cpu", "float16", ["soft_max_gradient"], quick=True)
    assert {(case.op, case.dtype, case.group) for case in quick} == {
        ("soft_max_gradient", "float16", "design"),
        ("log_soft_max_gradient", "float16", "design"),
    }
