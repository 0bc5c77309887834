"""The picture of a benchmark: what engines attain, under what the machine's memory and multipliers allow."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcore.bench.timing import BenchResult
from fastcore.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["check_plot_file", "draw"]

SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#c27c0e", "#6a4c93")  # of engines, fastcore first
GREY = "#555555"


def check_plot_file(file: str | Path) -> None:
    """Raise before a long run what would fail after it: no matplotlib, an unknown suffix, no such folder."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingPackageError(
            'a plot needs matplotlib: install it with `pip install "fastcore-engine[plot]"`, or leave out --plot'
        ) from None
    path = Path(file)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"plot file {str(path)!r}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"plot file {str(path)!r}: there is no folder {path.parent}")


def draw(result: BenchResult, file: str | Path, title: str) -> None:
    """Draw attained GFLOP/s over FLOP for each byte of weights and KV cache; fastcore filled, its peers hollow."""
    check_plot_file(file)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 5.4), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel("FLOP for each byte of weights and KV cache that has to be read")
    axes.set_ylabel("GFLOP/s")
    axes.grid(True, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for engine in result.engines:
        _draw_engine(axes, result, engine)
    _draw_legend(axes, result)
    _draw_roof(figure, axes, result)
    figure.savefig(file)


def _draw_engine(axes: "Axes", result: BenchResult, engine: str) -> None:
    """A line of squares for decoding, of circles for prefill; fastcore's points say how many tokens or sequences."""
    colour = _colour(result, engine)
    is_own = engine == result.engines[0]
    look: dict[str, Any] = {"markersize": 7.5, "linestyle": "-", "markerfacecolor": colour, "zorder": 4}
    if not is_own:
        look = {"markersize": 6.5, "linestyle": ":", "markerfacecolor": "white", "zorder": 3}
    for marker, is_decode in (("s", True), ("o", False)):
        timings = [t for t in result.timings if t.engine == engine and (t.workload.rows == 1) == is_decode]
        timings.sort(key=lambda timing: timing.intensity)
        x, y = [t.intensity for t in timings], [t.compute / 1e9 for t in timings]
        axes.plot(x, y, marker=marker, color=colour, markeredgewidth=1.4, linewidth=1.0, **look)
        text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": colour, "zorder": 5}
        text |= {"xytext": (6, -4), "va": "top"} if is_decode else {"xytext": (0, 6), "ha": "center"}
        for timing, point in zip(timings, zip(x, y, strict=True), strict=True):
            if is_own:
                number = timing.workload.batch if is_decode else timing.workload.rows
                axes.annotate(str(number), point, **text)


def _draw_legend(axes: "Axes", result: BenchResult) -> None:
    from matplotlib.lines import Line2D

    def handle(marker: str, colour: str, face: str, label: str) -> Line2D:
        return Line2D([], [], linestyle="none", marker=marker, color=colour, markerfacecolor=face, label=label)

    own, *peers = result.engines
    handles = [
        handle("D", _colour(result, own), _colour(result, own), own),
        *(handle("D", _colour(result, engine), "white", engine) for engine in peers),
        handle("o", GREY, "white", "prefill of so many tokens"),
        handle("s", GREY, "white", "decode of so many sequences"),
    ]
    axes.legend(handles=handles, loc="lower right", fontsize=8.5, framealpha=1.0, edgecolor="#cccccc")


def _draw_roof(figure: "Figure", axes: "Axes", result: BenchResult) -> None:
    """Bandwidth times intensity up to the ridge, from there on the multipliers. Sets the scales, so it comes last."""
    read, top = result.limits.read / 1e9, result.limits.compute / 1e9
    ridge = top / read
    intensities = [timing.intensity for timing in result.timings]
    left, right = min(intensities) / 2, max(*intensities, 2 * ridge) * 2
    slowest = min(timing.compute / 1e9 for timing in result.timings)
    bottom = min(left * read / 1.6, slowest / 1.6, top / 60)  # leaves room for the legend
    roof = [left, ridge, right], [left * read, top, top]
    axes.plot(*roof, color=GREY, linewidth=1.6, zorder=2)
    axes.fill_between(*roof, top * 2, color="#f5f5f5", zorder=0)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top * 2))
    decades = [10.0**exponent for exponent in range(-6, 7)]
    _set_ticks(axes.xaxis, (left, right), [2.0**exponent for exponent in range(-20, 21)])
    _set_ticks(axes.yaxis, (bottom, top * 2), [step * decade for decade in decades for step in (1, 2, 5)])
    text: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "bottom", "fontsize": 9, "color": GREY}
    axes.annotate(f"the f32 kernel on operands in L1: {top:.0f} GFLOP/s", (right, top), xytext=(-6, 4), **text)
    label = f"reading with {result.num_threads} threads: {read:.1f} GB/s"
    along = axes.annotate(label, (ridge, top), xytext=(0, 0), rotation_mode="anchor", **text)
    figure.draw_without_rendering()  # the layout decides how steep the roof is
    (x0, y0), (x1, y1) = axes.transData.transform([(left, left * read), (ridge, top)])
    angle = math.atan2(y1 - y0, x1 - x0)
    along.set_rotation(math.degrees(angle))
    back, up = 12, 4  # points along the roof and above it
    along.set_position((-back * math.cos(angle) - up * math.sin(angle), -back * math.sin(angle) + up * math.cos(angle)))


def _set_ticks(axis: "Axis", limits: tuple[float, float], ticks: list[float]) -> None:
    """Numbers as people write them, in place of powers."""
    shown = [tick for tick in ticks if limits[0] <= tick <= limits[1]]
    axis.set_ticks(shown, [f"{tick:g}" for tick in shown])
    axis.set_ticks([], minor=True)


def _colour(result: BenchResult, engine: str) -> str:
    return COLOURS[result.engines.index(engine) % len(COLOURS)]
