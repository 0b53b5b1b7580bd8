"""What a replay of a recorded training step costs the host: ``python -m bench.replay --help``.

The pictures are tiny, so that the device is done soon. The time is the processor's for the thread that replays; work of
others on the machine still makes it longer, as it empties the caches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

import mpsgrad as mg
from mpsgrad.neighbouring_dispatches import with_neighbours_joined
from mpsgrad.training import digits
from mpsgrad.training.graph_network import GraphNetwork
from mpsgrad.training.models import MODELS
from mpsgrad.training.optimizers import OPTIMIZERS

BATCH_SIZE, SIDE = 2, 8
REPLAYS = 60


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--device", help="as MPSGRAD_DEVICE takes it")
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    options = parser.parse_args(arguments)
    device = mg.find_device(options.device) if options.device else mg.default_device()
    network = GraphNetwork(
        options.model,
        MODELS[options.model],
        shape=(SIDE, SIDE, 3),
        classes=digits.CLASSES,
        batch_size=BATCH_SIZE,
        optimizer=OPTIMIZERS[options.optimizer],
        seed=0,
        device=device,
    )
    pictures = np.zeros((BATCH_SIZE, SIDE, SIDE, 3), np.float32)
    commands = network.encode_step(*network.batch(pictures, digits.one_hot(np.zeros(BATCH_SIZE, int))))
    dispatches = len(with_neighbours_joined(commands._dispatches))
    recording = commands.record()
    seconds = []
    for _ in range(REPLAYS):
        started = time.thread_time()
        recording.replay()
        seconds.append(time.thread_time() - started)
        commands.wait_until_completed()
    nodes = len(network.training.filters)
    print(f"{device.name}: {options.model}, {nodes} nodes, {dispatches} dispatches")
    for name, taken in (("median", statistics.median(seconds)), ("fastest", min(seconds))):
        microseconds = 1e6 * taken
        print(
            f"{name}: {microseconds:.0f} us a replay, {microseconds / nodes:.2f} us a node, "
            f"{microseconds / dispatches:.2f} us a dispatch"
        )


if __name__ == "__main__":
    main()
