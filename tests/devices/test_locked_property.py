"""Properties of devices that threads use for the first time at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from mpsgrad.devices.cuda import CUDADevice
from mpsgrad.devices.locked_property import locked_property
from mpsgrad.devices.opencl import OpenCLDevice


class Owner:
    def __init__(self) -> None:
        self.made = 0

    @locked_property
    def thing(self) -> object:
        """What there is one of."""
        self.made += 1
        time.sleep(0.02)
        return object()

    @locked_property
    def other(self) -> object:
        return self.thing


def test_threads_that_come_at_once_get_the_same_object() -> None:
    owner, begin = Owner(), threading.Barrier(4)

    def get(name: str) -> object:
        begin.wait()
        return getattr(owner, name)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(get, ["thing", "other", "thing", "other"]))
    assert owner.made == 1 and len(set(map(id, found))) == 1
    assert owner.thing is found[0] and Owner().thing is not found[0]


def test_the_class_shows_the_property() -> None:
    assert isinstance(Owner.thing, locked_property) and Owner.thing.__doc__ == "What there is one of."


def test_what_a_device_has_one_of_is_locked() -> None:
    for owner, names in ((OpenCLDevice, ("_context", "queue", "immediate_queue")), (CUDADevice, ("context", "stream"))):
        for name in names:
            assert isinstance(vars(owner)[name], locked_property)
