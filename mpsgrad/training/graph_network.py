"""``GraphNetwork``: the graphs that train a model and that infer with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpsgrad.command import CommandBuffer, Recording
from mpsgrad.data_type import DataType
from mpsgrad.devices import Device
from mpsgrad.errors import ModelError, MPSGradError
from mpsgrad.graph import (
    BatchNormalizationNode,
    FilterNode,
    Graph,
    GroupNormalizationNode,
    ImageNode,
    InstanceNormalizationNode,
    LogSoftMaxNode,
    LossNode,
    SoftMaxNode,
    TrainingStyle,
)
from mpsgrad.graph.trainable import TrainableNode
from mpsgrad.graph.walk import in_order
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor
from mpsgrad.kernels.batch_normalization_data_source import load_normalization
from mpsgrad.kernels.loss_descriptor import LossDescriptor
from mpsgrad.kernels.loss_labels import LossLabels
from mpsgrad.kernels.loss_scale import SMALLEST_SCALE, LossScale
from mpsgrad.training.models import Build
from mpsgrad.training.optimizers import OptimizerKind
from mpsgrad.training.parameters import (
    Trained,
    TrainedImageNormalization,
    TrainedNormalization,
    TrainedWeights,
    taken,
)

INFERENCE_BATCH = 256
LOSS_SCALE = "loss_scale"


class GraphNetwork:
    """The model that ``build`` makes, trained in batches of ``batch_size`` pictures, and evaluated.

    Every convolution, fully connected layer and normalization with parameters is trained unless its ``training_style``
    is UPDATE_DEVICE_NONE; whatever data source it was made with gives the first values. Evaluation leaves dropout out
    and uses the running averages of batch normalization. ``model`` names the model in messages.

    In mixed precision images are in float16, and parameters, their gradients, what the optimizer keeps, and sums stay
    in float32; convolutions on GPUs multiply by weights rounded to float16. The loss is scaled; a step whose gradients
    overflow is left out (``LossScale``).

    Raises ``ModelError`` if ``build`` fails, for a result other than 1 x 1 x ``classes`` scores, for two nodes with
    parameters of one label, and if there is nothing to train.
    """

    def __init__(
        self,
        model: str,
        build: Build,
        *,
        shape: tuple[int, int, int],
        classes: int,
        batch_size: int,
        optimizer: OptimizerKind,
        seed: int,
        device: Device,
        mixed_precision: bool = False,
        checkpoint_arrays: Mapping[str, np.ndarray] | None = None,
        checkpoint_numbers: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self._optimizer = optimizer.of_one_network()
        self._restored = checkpoint_arrays
        self._classes = classes
        self._batch_size = batch_size
        self.loss_scale = LossScale(device=device) if mixed_precision else None
        self._format = FeatureChannelFormat.FLOAT16 if mixed_precision else FeatureChannelFormat.FLOAT32
        height, width, channels = shape
        pictures, scores = self._built(build, shape, seed)
        self.scores = scores
        self.trained = self._make_trainable(scores)
        descriptor = LossDescriptor("softmax_cross_entropy", "sum", weight=1.0 / batch_size)
        loss = LossNode(scores, descriptor=descriptor)
        self.training = self._graph(
            loss.training_graph(), pictures, results_are_needed=False, loss_scale=self.loss_scale
        )
        self.inference = self.training.inference_graph(SoftMaxNode(scores))
        self._check_scores(ImageDescriptor(self._format, width, height, channels))
        if not self.trained:
            raise ModelError(f"{model}: has no parameters that are trained")
        self._pictures, self._labels = self.batch(
            np.zeros((batch_size, *shape), np.float32), np.zeros((batch_size, 1, 1, classes), np.float32)
        )
        self._recording: Recording | None = None
        if checkpoint_arrays is not None:
            self._restore(checkpoint_arrays, checkpoint_numbers or {})

    def _built(self, build: Build, shape: tuple[int, int, int], seed: int) -> tuple[ImageNode, ImageNode]:
        """New nodes: the source and the scores."""
        pictures = ImageNode("pictures")
        try:
            made = build(pictures, shape, self._classes, np.random.default_rng(seed))
        except (Exception, SystemExit) as error:
            raise ModelError(f"{self.model}: build: {type(error).__name__}: {error}") from error
        scores = made.result_image if isinstance(made, FilterNode) else made
        if not isinstance(scores, ImageNode) or scores.producer is None:
            raise ModelError(f"{self.model}: build returned {made!r}; it has to be the last node or its result image")
        if isinstance(scores.producer, (SoftMaxNode, LogSoftMaxNode)):
            raise ModelError(
                f"{self.model}: the last node is {scores.producer!r}; leave it out: the loss applies the softmax"
            )
        return pictures, scores

    def _graph(self, results: Any, pictures: ImageNode, **options: Any) -> Graph:
        try:
            graph = Graph(results, device=self.device, **options)
        except (MPSGradError, NotImplementedError) as error:
            raise ModelError(f"{self.model}: {error}") from error
        if graph.source_images != (pictures,):
            raise ModelError(
                f"{self.model}: the source images are {graph.source_images}; it has to be the pictures alone"
            )
        return graph

    def _trainable_nodes(self, scores: ImageNode) -> dict[str, Any]:
        """The nodes to train by their names: the labels, or the classes with a number."""
        found: dict[str, Any] = {}
        assert scores.producer is not None
        counts: dict[str, int] = {}
        for node in in_order([scores.producer]):
            if not isinstance(node, TrainableNode) or node.training_style == TrainingStyle.UPDATE_DEVICE_NONE:
                continue
            kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(node).__name__.removesuffix("Node")).lower()
            counts[kind] = counts.get(kind, 0) + 1
            name = node.label or f"{kind}_{counts[kind]}"
            if name in found:
                raise ModelError(f"{self.model}: two nodes have the label {name!r}")
            found[name] = node
        return found

    def _make_trainable(self, scores: ImageNode) -> dict[str, Trained]:
        """Gives the nodes data sources that are trained, with the values of their own or those of the checkpoint."""
        made: dict[str, Trained] = {}
        for name, node in self._trainable_nodes(scores).items():
            node.training_style = TrainingStyle.UPDATE_DEVICE_GPU
            node.data_source = made[name] = self._trained(name, node)
            made[name].optimizer.loss_scale = self.loss_scale
        return made

    def _trained(self, name: str, node: Any) -> Trained:
        source = node.data_source
        if isinstance(node, BatchNormalizationNode):
            names = ("gamma", "beta", "mean", "variance")
            loaded = load_normalization(name, source, arrays=names, protocol="BatchNormalizationDataSource")
            arrays = self._first_values(name, {each: getattr(loaded, each) for each in names})
            return TrainedNormalization(self._optimizer, loaded.epsilon, arrays, self.device)
        if isinstance(node, (InstanceNormalizationNode, GroupNormalizationNode)):
            kernel = node.kernel_class
            loaded = load_normalization(
                name,
                source,
                arrays=kernel.data_source_arrays,
                protocol=kernel.data_source_name,
                further=kernel.data_source_properties,
            )
            arrays = self._first_values(name, {"gamma": loaded.gamma, "beta": loaded.beta})
            groups = source.number_of_groups if isinstance(node, GroupNormalizationNode) else len(loaded.gamma)
            return TrainedImageNormalization(self._optimizer, loaded.epsilon, groups, arrays, self.device)
        if not source.load():
            raise ModelError(f"{self.model}: the data source of {name} could not load")
        arrays = {"weights": np.array(source.weights, np.float32)}
        if source.bias_terms is not None:
            arrays["biases"] = np.array(source.bias_terms, np.float32)
        descriptor = source.descriptor
        source.purge()
        data_type = DataType.FLOAT32 if self.loss_scale is None else DataType.FLOAT16
        return TrainedWeights(self._optimizer, descriptor, self._first_values(name, arrays), self.device, data_type)

    def _first_values(self, name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._restored is None:
            return arrays
        return {each: taken(self._restored, f"{name}.{each}", array.shape) for each, array in arrays.items()}

    def _check_scores(self, picture: ImageDescriptor) -> None:
        try:
            shapes = self.inference.plan([picture]).shapes
        except (MPSGradError, NotImplementedError) as error:
            raise ModelError(f"{self.model}: {error}") from error
        found = shapes.of[self.inference.filters[-1].source_images[0]]
        if found.shape != (1, 1, 1, self._classes):
            raise ModelError(
                f"{self.model}: the scores of a picture are {found.shape_text}; they have to be 1x1x1x{self._classes}"
            )

    def train_step(self, pictures: np.ndarray, labels: np.ndarray, learning_rate: float) -> float:
        """One step on a batch; returns its mean loss. The first one is recorded, the others are its replays.

        Raises ``MPSGradError`` if gradients overflow in mixed precision even with the smallest scale of the loss.
        """
        for trained in self.trained.values():
            trained.optimizer.learning_rate = learning_rate
        self._pictures.write(pictures.astype(self._format.dtype, copy=False))
        self._labels.labels_image.write(labels)
        if self._recording is None:
            self._recording = self.encode_step(self._pictures, self._labels).record()
        self._recording.replay()
        if self.loss_scale is not None and not self.loss_scale.last_step[1]:
            if self.loss_scale.scale <= SMALLEST_SCALE:
                raise MPSGradError(f"{self.model}: gradients overflow in float16 whatever the scale of the loss")
            for trained in self.trained.values():
                trained.take_step_back()
        return self.loss(self._labels)

    def loss(self, labels: LossLabels) -> float:
        """The mean loss of the last step that was encoded with ``labels``."""
        loss = float(np.asarray(labels.loss_image).sum())
        return loss if self.loss_scale is None else loss * self.loss_scale.last_step[0]

    def batch(self, pictures: np.ndarray, labels: np.ndarray) -> tuple[Image, LossLabels]:
        """An image and labels for ``encode_step`` that hold copies of the arrays."""
        weights = None if self.loss_scale is None else np.zeros_like(labels)
        image = Image.from_array(pictures.astype(self._format.dtype, copy=False), self.device)
        return image, LossLabels.from_array(labels, weights, device=self.device)

    def encode_step(self, pictures: Image, labels: LossLabels) -> CommandBuffer:
        """A command buffer with one step."""
        commands = CommandBuffer(self.device, label="training step")
        if self.loss_scale is not None:
            assert labels.weights_image is not None
            self.loss_scale.encode_weights(commands, labels.weights_image, 1.0 / self._batch_size)
        self.training.encode(commands, [pictures], [labels])
        return commands

    def probabilities(self, pictures: np.ndarray) -> np.ndarray:
        """The probability of each class for each picture: count x classes."""
        self.inference.reload_from_data_sources()
        made = []
        for start in range(0, len(pictures), INFERENCE_BATCH):
            with CommandBuffer(self.device, label="evaluation") as commands:
                part = pictures[start : start + INFERENCE_BATCH].astype(self._format.dtype, copy=False)
                result = self.inference.encode(commands, [Image.from_array(part, self.device)])
            made.append(np.array(result, np.float32).reshape(-1, self._classes))
        return np.concatenate(made)

    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the trained parameters as ``node.parameter``."""
        return {
            f"{name}.{each}": array
            for name, trained in self.trained.items()
            for each, array in trained.arrays().items()
        }

    def precision_metrics(self) -> dict[str, float]:
        """In mixed precision the present scale of the loss, and how many steps were left out."""
        if self.loss_scale is None:
            return {}
        return {"loss_scale": self.loss_scale.scale, "skipped_steps": self.loss_scale.skipped_steps}

    def checkpoint_arrays(self) -> dict[str, np.ndarray]:
        """The parameters, what the optimizers keep as ``node.slot.parameter``, and the state of the loss scale."""
        kept = {
            f"{name}.{each}": array
            for name, trained in self.trained.items()
            for each, array in trained.optimizer_arrays().items()
        }
        scale = {} if self.loss_scale is None else {LOSS_SCALE: self.loss_scale.state}
        return self.parameters() | kept | scale

    def checkpoint_numbers(self) -> dict[str, Any]:
        """What the optimizers count, and how many images each dropout has drawn masks for."""
        return {
            "optimizers": {name: trained.optimizer_numbers for name, trained in self.trained.items()},
            "drawn_images": list(self.training.drawn_images),
        }

    def _restore(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> None:
        for name, trained in self.trained.items():
            lead = f"{name}."
            own = {key.removeprefix(lead): array for key, array in arrays.items() if key.startswith(lead)}
            trained.restore_optimizer(own, numbers["optimizers"][name])
        if self.loss_scale is not None:
            state = taken(arrays, LOSS_SCALE, self.loss_scale.state.shape)
            self.loss_scale.state = state
        self.training.drawn_images = numbers["drawn_images"]
