# ruff: noqa: E501
"""Draws one picture for each family of kernels, docs/families/*.svg, and the page that shows them, docs/families.md.

Every number in them comes from the float64 references. ``make docs`` runs it; it needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from mpsgrad import reference

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402

FOLDER = Path(__file__).parent / "families"
INK, FORWARD, BACKWARD, MARK = "#22303c", "#20558a", "#b0413e", "#e0a100"
Box = tuple[float, float, float, float]
"""First column, first row, columns and rows of an outlined part."""


@dataclass
class Grid:
    """An array of numbers as a table of coloured cells."""

    title: str
    values: np.ndarray
    boxes: Sequence[Box] = ()
    digits: int = 1

    def draw(self, axes: Any, colour: str) -> None:
        values = np.atleast_2d(self.values)
        largest = max(float(np.abs(values).max()), 1e-9)
        axes.imshow(values, cmap="RdBu_r", vmin=-1.6 * largest, vmax=1.6 * largest)
        for (row, column), value in np.ndenumerate(values):
            text = f"{round(value, self.digits) + 0.0:.{self.digits}f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=INK)
        for column, row, width, height in self.boxes:
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), width, height, fill=False, edgecolor=MARK, linewidth=2)
            )
        axes.set_xticks(np.arange(-0.5, values.shape[1]), [])
        axes.set_yticks(np.arange(-0.5, values.shape[0]), [])
        axes.grid(color="white", linewidth=1)
        axes.tick_params(length=0)
        axes.spines[:].set_color(colour)
        axes.set_title(self.title, fontsize=9, color=colour)


@dataclass
class Curves:
    """Functions of one variable."""

    title: str
    at: np.ndarray
    lines: dict[str, np.ndarray]

    def draw(self, axes: Any, colour: str) -> None:
        for (label, values), tint in zip(self.lines.items(), plt.get_cmap("tab10").colors, strict=False):
            axes.plot(self.at, values, label=label, linewidth=1.4, color=tint)
        axes.axhline(0, color="#c8d0d8", linewidth=0.8, zorder=0)
        axes.legend(fontsize=6.5, frameon=False, handlelength=1.2)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(self.title, fontsize=9, color=colour)


@dataclass
class Paths:
    """Ways down a valley, whose heights are drawn as contours."""

    title: str
    height: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ways: dict[str, np.ndarray]

    def draw(self, axes: Any, colour: str) -> None:
        x, y = np.meshgrid(np.linspace(-2.3, 2.3, 80), np.linspace(-1.6, 1.6, 80))
        axes.contour(x, y, self.height(x, y), levels=12, colors="#c8d0d8", linewidths=0.7)
        for (label, way), tint in zip(self.ways.items(), plt.get_cmap("tab10").colors, strict=False):
            axes.plot(*way.T, marker=".", markersize=3, linewidth=1, label=label, color=tint)
        axes.legend(fontsize=6.5, frameon=False, loc="upper right")
        axes.tick_params(labelsize=7)
        axes.set_title(self.title, fontsize=9, color=colour)


Panel = Grid | Curves | Paths


@dataclass
class Family:
    """One picture: formulas above, the forward pass in the upper row and the backward pass, right to left, below."""

    name: str
    title: str
    text: str
    formulas: Sequence[str]
    forward: Sequence[Panel]
    backward: Sequence[Panel] = ()
    kernels: tuple[str, str] = ("", "")
    state: str = "state"
    operands: Sequence[Panel] = field(default=())

    def draw(self) -> Any:
        rows = 2 if self.backward else 1
        figure = plt.figure(figsize=(9, 1.0 + 0.46 * len(self.formulas) + 2.45 * rows))
        top = 1 - 0.42 / figure.get_figheight()
        figure.text(0.03, top, self.title, fontsize=13, fontweight="bold", color=INK, va="center")
        for index, formula in enumerate(self.formulas, 1):
            place = top - (0.08 + 0.46 * index) / figure.get_figheight()
            figure.text(0.05, place, f"${formula}$", fontsize=10.5, color=INK, va="center")
        room = top - (0.34 + 0.46 * len(self.formulas)) / figure.get_figheight()
        self._row(figure, self.forward, room - room / rows, room / rows, FORWARD, self.kernels[0], is_forward=True)
        if self.backward:
            self._row(figure, self.backward, 0, room / 2, BACKWARD, self.kernels[1], is_forward=False)
            if self.state:
                self._arrow(figure, (0.5, room * 0.62), (0.5, room * 0.34), "#7a8794")
                figure.text(0.515, room * 0.48, self.state, fontsize=8, color="#5a6672", va="center", style="italic")
        return figure

    def _row(
        self, figure: Any, panels: Sequence[Panel], bottom: float, height: float, colour: str, kernel: str, *,
        is_forward: bool,
    ) -> None:  # fmt: skip
        if len(panels) == 1:
            panels[0].draw(figure.add_axes((0.12, bottom + 0.16 * height, 0.76, 0.68 * height)), colour)
            return
        left, right = panels
        for panel, start in ((left, 0.05), (right, 0.63)):
            panel.draw(figure.add_axes((start, bottom + 0.08 * height, 0.32, 0.74 * height)), colour)
        middle = bottom + 0.46 * height
        ends = ((0.38, middle), (0.62, middle))
        self._arrow(figure, *(ends if is_forward else ends[::-1]), colour)
        figure.text(
            0.5, middle, kernel, fontsize=9, color="white", ha="center", va="center",
            bbox={"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "none"},
        )  # fmt: skip

    @staticmethod
    def _arrow(figure: Any, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        figure.add_artist(
            FancyArrowPatch(
                start, end, transform=figure.transFigure, arrowstyle="-|>", mutation_scale=14, linewidth=1.6,
                color=colour, shrinkA=0, shrinkB=0,
            )  # fmt: skip
        )


def _numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 10, shape).astype(float)


def _image(rows: np.ndarray) -> np.ndarray:
    return rows[None, :, :, None]


def convolution() -> Family:
    x, g = _numbers(6, 6), _numbers(3, 3, seed=1)
    w = np.array([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]])
    weights, geometry = w[None, :, :, None], {"size": (3, 3), "stride": (2, 2), "offset": (1, 1)}
    y = reference.convolution(_image(x), weights, **geometry)
    dx = reference.convolution_gradient_data(
        _image(g), weights, source_size=(6, 6), stride=(2, 2), offset=(1, 1)
    )
    return Family(
        "convolution", "Convolution",
        "The window slides by the stride and is not flipped. The gradient for the source gathers, for each of its "
        "pixels, the windows that read it; that for the weights sums over images and windows into the state.",
        (r"y[i][o] = b[o] + \sum_{t,c}\, w[o][t][c]\; x[s\,i + t][c]",
         r"dx[p][c] = \sum_{o,t,i:\; s\,i+t=p}\, w[o][t][c]\; g[i][o]\qquad dw[o][t][c] = \sum_i g[i][o]\; x[s\,i+t][c]"),
        (Grid("x, the window of one result outlined", x, [(2, 2, 3, 3)], 0), Grid("y", y[0, ..., 0], [(1, 1, 1, 1)], 0)),
        (Grid("dx", dx[0, ..., 0], [(2, 2, 3, 3)], 0), Grid("g", g, [(1, 1, 1, 1)], 0)),
        ("3 x 3 window\nstride 2", "gather"), "weights and their gradient",
    )  # fmt: skip


def transposed_convolution() -> Family:
    x = np.array([[1.0, 0, 2], [0, 3, 0], [1, 0, 0]])
    w = np.array([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 4
    y = reference.convolution_transpose(_image(x), w[None, :, :, None], size=(5, 5), stride=(2, 2))
    g = _numbers(5, 5, seed=2)
    dx, _, _ = reference.convolution_transpose_gradient(_image(g), _image(x), w[None, :, :, None], stride=(2, 2))
    return Family(
        "convolution_transpose", "Transposed convolution",
        "Zeros are put between the source's pixels, and a window of stride 1 slides over that: each pixel of the source "
        "spreads over a window of the result. Its gradient is a convolution with that stride.",
        (r"y[v][o] = b[o] + \sum_{t,c}\, w[o][t][c]\; z[v+t][c],\qquad z[s\,i] = x[i]\;\mathrm{and}\;0\;\mathrm{between}",),
        (Grid("x", x, [(1, 1, 1, 1)], 0), Grid("y", y[0, ..., 0], [(1, 1, 3, 3)])),
        (Grid("dx", dx[0, ..., 0], [(1, 1, 1, 1)]), Grid("g", g, [(1, 1, 3, 3)], 0)),
        ("3 x 3 window\nstride 2", "convolution"), "weights and their gradient",
    )  # fmt: skip


def pooling() -> Family:
    x, g = _numbers(6, 6, seed=3), np.arange(1.0, 10).reshape(3, 3)
    geometry = {"kernel": (2, 2), "stride": (2, 2), "offset": (1, 1)}
    y = reference.pooling_max(_image(x), size=(3, 3), **geometry)
    dx = reference.pooling_max_gradient(_image(g), _image(x), **geometry)
    return Family(
        "pooling", "Pooling",
        "Max pooling passes each gradient on to the pixel that won its window, the first one of equals; average pooling "
        "divides it among the window's pixels; L2 pooling weights it by x / y.",
        (r"y[i] = \max_t\, x[s\,i+t]\qquad dx[p] = \sum_{i:\;p\;\mathrm{won}\;i} g[i]",
         r"\mathrm{average:}\;\; y = \frac{1}{N}\sum_t x_t\qquad \mathrm{L2:}\;\; y = \sqrt{\sum_t x_t^2}"),
        (Grid("x", x, [(2, 2, 2, 2)], 0), Grid("y", y[0, ..., 0], [(1, 1, 1, 1)], 0)),
        (Grid("dx", dx[0, ..., 0], [(2, 2, 2, 2)], 0), Grid("g", g, [(1, 1, 1, 1)], 0)),
        ("max of 2 x 2", "to the winners"), "winners",
    )  # fmt: skip


def batch_normalization() -> Family:
    x, g = _numbers(6, 5, seed=4) * np.array([1, 2, 0.5, 1, 3]), _numbers(6, 5, seed=5)
    source, ones = x.reshape(1, 6, 1, 5), np.ones(5)
    mean, variance = reference.batch_normalization_statistics(source)
    y = reference.batch_normalization(source, mean, variance, ones, 0 * ones, 1e-5)
    dx, _, _ = reference.batch_normalization_gradient(g.reshape(1, 6, 1, 5), source, mean, variance, ones, 0 * ones, 1e-5)
    column = [(1.0, 0.0, 1.0, 6.0)]
    return Family(
        "batch_normalization", "Batch normalization",
        "Each feature channel, a column here, is normalized over all images and pixels. Both passes have two phases: "
        "sums over the column, then the elements.",
        (r"y = \gamma\,\hat{x} + \beta,\qquad \hat{x} = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}",
         r"dx = \frac{\gamma}{\sqrt{\sigma^2+\epsilon}}\left(g - \overline{g} - \hat{x}\,\overline{g\,\hat{x}}\right)"
         r"\qquad d\gamma = \sum g\,\hat{x}\qquad d\beta = \sum g"),
        (Grid("x: pixels by channels", x, column), Grid("y", y[0, :, 0], column)),
        (Grid("dx", dx[0, :, 0], column), Grid("g", g, column, 0)),
        ("statistics,\nthen normalize", "sums,\nthen elements"), "mean, variance, sums",
    )  # fmt: skip


def group_normalization() -> Family:
    x, g = _numbers(5, 6, seed=6), _numbers(5, 6, seed=7)
    source, ones = x.reshape(1, 5, 1, 6), np.ones(6)
    y = reference.group_normalization(source, ones, 0 * ones, 2, 1e-5)
    dx, _, _ = reference.group_normalization_gradient(g.reshape(1, 5, 1, 6), source, ones, 2, 1e-5)
    groups = [(0.0, 0.0, 3.0, 5.0), (3.0, 0.0, 3.0, 5.0)]
    return Family(
        "group_normalization", "Instance and group normalization",
        "Each image by itself, the channels of a group together; with one channel in each group it is instance "
        "normalization. Gamma and beta belong to channels.",
        (r"\hat{x} = \frac{x - \mu_{n,k}}{\sqrt{\sigma_{n,k}^2 + \epsilon}}\qquad y[c] = \gamma[c]\,\hat{x} + \beta[c]",
         r"dx = \frac{1}{\sqrt{\sigma^2+\epsilon}}\left(\gamma g - \overline{\gamma g} - \hat{x}\,\overline{\gamma g\,\hat{x}}\right)"),
        (Grid("x: pixels by channels, two groups", x, groups, 0), Grid("y", y[0, :, 0], groups)),
        (Grid("dx", dx[0, :, 0], groups), Grid("g", g, groups, 0)),
        ("by group", "by group"), "statistics",
    )  # fmt: skip


def response_normalization() -> Family:
    x, g = _numbers(4, 7, seed=8), _numbers(4, 7, seed=9)
    arguments = {"kernel_size": 3, "alpha": 0.3, "beta": 0.75, "delta": 1.0}
    y = reference.cross_channel_normalization(x.reshape(1, 4, 1, 7), **arguments)
    dx = reference.cross_channel_normalization_gradient(g.reshape(1, 4, 1, 7), x.reshape(1, 4, 1, 7), **arguments)
    window, one = [(2.0, 1.0, 3.0, 1.0)], [(3.0, 1.0, 1.0, 1.0)]
    return Family(
        "response_normalization", "Cross-channel, spatial and local contrast normalization",
        "Each element is divided by a power of the mean square of its neighbours: in the channels, or around the pixel. "
        "The gradient adds what the element did to its neighbours' results.",
        (r"y_c = x_c\, D_c^{-\beta},\qquad D_c = \delta + \frac{\alpha}{N}\sum_{j\,\in\,\mathrm{window}(c)} x_j^2",
         r"dx_c = g_c D_c^{-\beta} - \frac{2\alpha\beta}{N}\, x_c \sum_{j:\;c\,\in\,\mathrm{window}(j)} g_j x_j D_j^{-\beta-1}"),
        (Grid("x: pixels by channels", x, window, 0), Grid("y", y[0, :, 0], one)),
        (Grid("dx", dx[0, :, 0], one), Grid("g", g, window, 0)),
        ("3 channels", "3 channels"), "",
    )  # fmt: skip


def soft_max() -> Family:
    x, g = _numbers(4, 6, seed=10) / 3, np.eye(4, 6, 1)
    y = reference.soft_max(x.reshape(1, 4, 1, 6))
    dx = reference.soft_max_gradient(g.reshape(1, 4, 1, 6), y)
    row = [(0.0, 1.0, 6.0, 1.0)]
    return Family(
        "soft_max", "SoftMax and LogSoftMax",
        "The channels of each pixel, a row here, become probabilities. The gradient needs the result alone, which the "
        "gradient kernel computes anew from the source.",
        (r"y_c = \frac{e^{x_c}}{\sum_k e^{x_k}}\qquad dx_c = y_c\left(g_c - \sum_k g_k y_k\right)",
         r"\log y_c = x_c - \log\sum_k e^{x_k}\qquad dx_c = g_c - y_c\sum_k g_k"),
        (Grid("x: pixels by channels", x, row), Grid("y", y[0, :, 0], row, 2)),
        (Grid("dx", dx[0, :, 0], row, 2), Grid("g", g, row, 0)),
        ("each pixel", "each pixel"), "",
    )  # fmt: skip


def neurons() -> Family:
    at = np.linspace(-3, 3, 241)
    kinds = {"relu": {"a": 0.1}, "elu": {}, "tanh": {}, "soft_plus": {}, "hard_sigmoid": {}, "gelu": {}}
    return Family(
        "neurons", "Neurons",
        "Element by element. The gradient kernel reads the source, so that the forward result need not be kept; PReLU "
        "has a slope for each channel, and a gradient for it.",
        (r"y = f(x)\qquad dx = g\,f'(x)",),
        (
            Curves("f", at, {kind: reference.neuron(at, kind, **given) for kind, given in kinds.items()}),
            Curves("f'", at, {kind: reference.neuron_derivative(at, kind, **given) for kind, given in kinds.items()}),
        ),
        (), ("differentiate", ""), "",
    )  # fmt: skip


def dropout() -> Family:
    x, g = _numbers(5, 6, seed=11), _numbers(5, 6, seed=12)
    mask = reference.dropout_mask((1, 5, 6, 1), 0.6, seed=3)
    y, dx = reference.dropout(_image(x), mask, 0.6), reference.dropout_gradient(_image(g), mask, 0.6)
    return Family(
        "dropout", "Dropout",
        "The mask is drawn by Philox 4x32-10 from the seed and the element's place, so that it is the same on every "
        "device; the state keeps it, one bit for an element.",
        (r"y = \frac{m}{p}\,x\qquad dx = \frac{m}{p}\,g,\qquad m = [\,u < p\,],\; u\;\mathrm{of\;Philox}",),
        (Grid("x", x, digits=0), Grid("y, p = 0.6", y[0, ..., 0])),
        (Grid("dx", dx[0, ..., 0]), Grid("g", g, digits=0)),
        ("draw a mask", "the same mask"), "mask",
    )  # fmt: skip


def resampling() -> Family:
    x, g = np.array([[0.0, 4, 8], [4, 8, 4], [8, 4, 0]]), np.ones((6, 6))
    ratio = (Fraction(1, 2), Fraction(1, 2))
    y = reference.resample(_image(x), (6, 6), ratio)
    dx = reference.resample_gradient(_image(g), (3, 3), ratio)
    return Family(
        "resampling", "Upsampling and resizing",
        "Along each axis a result is a weighted mean of two source pixels (bilinear) or one of them (nearest). The "
        "gradient is the transposed sum: each source pixel collects from those that read it.",
        (r"y = A_y\, x\, A_x^{\mathsf{T}}\qquad dx = A_y^{\mathsf{T}}\, g\, A_x",),
        (Grid("x", x, [(1, 1, 1, 1)], 0), Grid("y, bilinear by 2", y[0, ..., 0])),
        (Grid("dx", dx[0, ..., 0], [(1, 1, 1, 1)], 2), Grid("g = 1", g, digits=0)),
        ("interpolate", "transpose"), "",
    )  # fmt: skip


def arithmetic() -> Family:
    a, b, g = _numbers(4, 4, seed=13), _numbers(1, 4, seed=14), _numbers(4, 4, seed=15)
    y = reference.arithmetic("multiply", _image(a), _image(b))[0, ..., 0]
    _, db = reference.arithmetic_gradient("multiply", _image(g), _image(a), _image(b))
    return Family(
        "arithmetic", "Arithmetic",
        "Addition, subtraction, multiplication and division of two images. With a stride of 0 a source is spread over "
        "the other one; its gradient is then the sum over the spread.",
        (r"y = s_a a \circ s_b b + \mathrm{bias}\qquad da = g\,\frac{\partial y}{\partial a}"
         r"\qquad db = \sum_{\mathrm{spread}} g\,\frac{\partial y}{\partial b}",),
        (Grid("a, and below it b spread over the rows", np.vstack([a, b]), [(0, 4, 4, 1)], 0), Grid("y = a b", y, digits=0)),
        (Grid("db", db[0, ..., 0], [(0, 0, 4, 1)], 0), Grid("g", g, digits=0)),
        ("a b", "sum over rows\nof g a"), "",
    )  # fmt: skip


def reductions() -> Family:
    x = _numbers(5, 6, seed=16)
    y = reference.reduction("row", "max", _image(x))
    g = np.arange(1.0, 6).reshape(5, 1)
    dx = reference.reduction_gradient("row", "max", _image(g), _image(x))
    row = [(0.0, 2.0, 6.0, 1.0)]
    return Family(
        "reductions", "Reductions",
        "Sum, mean, minimum and maximum of rows, columns, feature channels or all pixels. Sums spread their gradient, "
        "extremes pass it to the first element that gave them.",
        (r"\mathrm{sum:}\; dx = g\qquad \mathrm{mean:}\; dx = g / N\qquad \mathrm{max:}\; dx = g\;[\,x\;\mathrm{is\;first\;largest}\,]",),
        (Grid("x", x, row, 0), Grid("y, the maximum of each row", y[0, ..., 0], [(0, 2, 1, 1)], 0)),
        (Grid("dx", dx[0, ..., 0], row, 0), Grid("g", g, [(0, 2, 1, 1)], 0)),
        ("reduce rows", "spread"), "",
    )  # fmt: skip


def copies() -> Family:
    x, g = np.arange(1.0, 10).reshape(3, 3), np.ones((7, 7))
    y = reference.pad(_image(x), (2, 2, 0), (2, 2, 0), "mirror")
    dx = reference.pad_gradient(_image(g), (2, 2, 0), (2, 2, 0), "mirror")
    return Family(
        "copies", "Pad, slice, concatenation and reshape",
        "Elements are copied to other places. Where one is copied several times, as padding by mirroring does, its "
        "gradient is the sum over the copies.",
        (r"y[q] = x[\,\mathrm{source}(q)\,]\qquad dx[p] = \sum_{q:\;\mathrm{source}(q) = p} g[q]",),
        (Grid("x", x, [(0, 0, 3, 3)], 0), Grid("y, mirrored by 2 on each side", y[0, ..., 0], [(2, 2, 3, 3)], 0)),
        (Grid("dx: how many copies there are", dx[0, ..., 0], digits=0), Grid("g = 1", g, digits=0)),
        ("pad", "add up"), "",
    )  # fmt: skip


def gram_matrix() -> Family:
    x = _numbers(6, 4, seed=17)
    y = reference.gram_matrix(x.reshape(1, 6, 1, 4))
    g = np.eye(4) + np.eye(4, k=1)
    dx = reference.gram_matrix_gradient(g.reshape(1, 1, 4, 4), x.reshape(1, 6, 1, 4))
    return Family(
        "gram_matrix", "Gram matrix",
        "How features go together over all pixels of an image: the loss of style transfer compares these.",
        (r"y[f][c] = \alpha\sum_p x[p][f]\,x[p][c]\qquad dx[p][c] = \alpha\sum_f x[p][f]\left(g[f][c] + g[c][f]\right)",),
        (Grid("x: pixels by features", x, [(1, 0, 1, 6), (3, 0, 1, 6)], 0), Grid("y", y.reshape(4, 4), [(3, 1, 1, 1)], 0)),
        (Grid("dx", dx[0, :, 0], digits=0), Grid("g", g, digits=0)),
        ("products\nof columns", "multiply"), "",
    )  # fmt: skip


def losses() -> Family:
    at = np.linspace(-3, 3, 121)
    kinds = ("mean_absolute_error", "mean_squared_error", "huber", "hinge", "sigmoid_cross_entropy")
    values, slopes = {}, {}
    for kind in kinds:
        prediction, labels = at.reshape(-1, 1, 1, 1), np.ones((121, 1, 1, 1))
        values[kind] = reference.loss_elements(prediction, labels, kind).ravel()
        slopes[kind] = reference.loss_gradient(prediction, labels, kind).ravel()
    return Family(
        "losses", "Losses",
        "A loss compares a prediction with labels, element by element or over the classes. Loss gives the gradient at "
        "once; ForwardLoss and LossGradient are its two halves.",
        (r"L = \sum w\;\ell(x, t)\qquad dx = w\;\frac{\partial \ell}{\partial x}\qquad (\mathrm{here}\;t = 1)",),
        (Curves("loss of one element", at, values), Curves("its gradient", at, slopes)),
        (), ("differentiate", ""), "",
    )  # fmt: skip


def optimizers() -> Family:
    def height(x: Any, y: Any) -> Any:
        return x**2 + 6 * y**2

    def way(step: Callable[[np.ndarray, np.ndarray, list, int], tuple]) -> np.ndarray:
        point, slots, places = np.array([-2.0, 1.3]), [np.zeros(2), np.zeros(2)], []
        for number in range(30):
            places.append(point)
            point, *slots = step(point * [2, 12], point, slots, number)
        return np.array(places)

    ways = {
        "gradient descent": way(
            lambda g, v, s, n: (reference.stochastic_gradient_descent(g, v, learning_rate=0.05)[0], *s)
        ),
        "with momentum": way(
            lambda g, v, s, n: (
                *reference.stochastic_gradient_descent(g, v, s[0], learning_rate=0.02, momentum_scale=0.8), s[1],
            )  # fmt: skip
        ),
        "RMSProp": way(lambda g, v, s, n: (*reference.rms_prop(g, v, s[0], learning_rate=0.1), s[1])),
        "Adam": way(lambda g, v, s, n: reference.adam(g, v, *s, time_step=n, learning_rate=0.2)[:3]),
    }
    return Family(
        "optimizers", "Optimizers",
        "Steps down a valley by the gradient, its running mean, and the running mean of its square. They run on the "
        "device, over vectors or over the states of convolutions and normalizations.",
        (r"m \leftarrow \beta_1 m + (1-\beta_1)\,g\qquad u \leftarrow \beta_2 u + (1-\beta_2)\,g^2\qquad "
         r"v \leftarrow v - \eta\,\frac{\sqrt{1-\beta_2^t}}{1-\beta_1^t}\,\frac{m}{\sqrt{u} + \epsilon}",),
        (Paths("30 steps each", height, ways),),
    )  # fmt: skip


FAMILIES: Sequence[Callable[[], Family]] = (
    convolution, transposed_convolution, pooling, batch_normalization, group_normalization, response_normalization,
    soft_max, neurons, dropout, resampling, arithmetic, reductions, copies, gram_matrix, losses, optimizers,
)  # fmt: skip
PAGE = """\
# The families of kernels

Made by `make docs` from the float64 references, which `docs/draw_families.py` draws: change those, not this page.

The forward pass is blue and runs from left to right, the backward pass below it is red and runs back: `g` is the gradient
with respect to the result `y`, `dx` the gradient with respect to the source `x`. Outlined cells belong together.
"""


def page(families: Sequence[Family]) -> str:
    """docs/families.md."""
    parts = [f"## {each.title}\n\n{each.text}\n\n![{each.title}](families/{each.name}.svg)\n" for each in families]
    return "\n".join([PAGE, *parts])


def main() -> None:
    plt.rcParams |= {"svg.hashsalt": "mpsgrad", "font.family": "DejaVu Sans"}
    families = [make() for make in FAMILIES]
    FOLDER.mkdir(exist_ok=True)
    for each in families:
        figure = each.draw()
        figure.savefig(FOLDER / f"{each.name}.svg", metadata={"Date": None})
        plt.close(figure)
    (FOLDER.parent / "families.md").write_text(page(families), encoding="utf-8")
    print(f"families.md: {len(families)} pictures")


if __name__ == "__main__":
    main()
