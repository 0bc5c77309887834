"""The picture of a benchmark: what engines attain, under what the machine's memory and multipliers allow."""

from pathlib import Path
from typing import TYPE_CHECKING

from fastcore.bench import BenchResult, Timing
from fastcore.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_plot_file", "draw"]

SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#b8860b", "#6a4c93")
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
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _draw_limits(axes, result)
    for number, engine in enumerate(result.engines):
        timings = sorted((t for t in result.timings if t.engine == engine), key=lambda t: t.intensity)
        colour = COLOURS[number % len(COLOURS)]
        for is_decode, marker in ((True, "s"), (False, "o")):
            points = [t for t in timings if (t.workload.rows == 1) == is_decode]
            axes.plot(
                [t.intensity for t in points],
                [t.compute / 1e9 for t in points],
                marker=marker,
                markersize=7.5 if number == 0 else 6.5,
                color=colour,
                markerfacecolor=colour if number == 0 else "white",
                markeredgewidth=1.4,
                linewidth=1.0,
                linestyle="-" if number == 0 else ":",
                alpha=1.0 if number == 0 else 0.9,
                zorder=4 if number == 0 else 3,
            )
            if number == 0:
                for t in points:
                    _label(axes, t)
    _legend(axes, result)
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.set_xlabel("FLOP for each byte of weights and KV cache that must be read")
    axes.set_ylabel("GFLOP/s")
    axes.grid(True, which="major", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(file)


def _draw_limits(axes: "Axes", result: BenchResult) -> None:
    """The roof: bandwidth times intensity up to the ridge, from there on the multipliers."""
    limits = result.limits
    intensities = [t.intensity for t in result.timings]
    rates = [t.compute / 1e9 for t in result.timings]
    left, right = min(intensities) / 1.8, max(max(intensities), 2 * limits.compute / limits.read) * 2.2
    top, bottom = limits.compute / 1e9, min(rates)
    ridge = limits.compute / limits.read
    axes.plot([left, ridge, right], [left * limits.read / 1e9, top, top], color=GREY, linewidth=1.6, zorder=2)
    axes.fill_between([left, ridge, right], [left * limits.read / 1e9, top, top], top * 4, color="#f4f4f4", zorder=0)
    axes.set_xlim(left, right)
    axes.set_ylim(min(bottom, left * limits.read / 1e9) / 1.5, top * 2.2)
    axes.annotate(
        f"{top:.0f} GFLOP/s, f32 kernel in L1",
        (right, top),
        xytext=(-6, 5),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
        color=GREY,
    )
    middle = (left * ridge) ** 0.5
    axes.annotate(
        f"{limits.read / 1e9:.1f} GB/s, {result.num_threads} threads reading",
        (middle, middle * limits.read / 1e9),
        xytext=(-5, 5),
        textcoords="offset points",
        ha="center",
        va="bottom",
        rotation=45,
        rotation_mode="anchor",
        transform_rotates_text=True,
        fontsize=9,
        color=GREY,
    )


def _label(axes: "Axes", timing: Timing) -> None:
    """Rows of a prompt, or sequences of a batch, beneath the point."""
    workload = timing.workload
    axes.annotate(
        str(workload.rows if workload.rows > 1 else workload.batch),
        (timing.intensity, timing.compute / 1e9),
        xytext=(5, -5),
        textcoords="offset points",
        ha="left",
        va="top",
        fontsize=8,
        color=COLOURS[0],
        zorder=5,
    )


def _legend(axes: "Axes", result: BenchResult) -> None:
    from matplotlib.lines import Line2D

    def handle(marker: str, colour: str, filled: bool, label: str) -> Line2D:
        face = colour if filled else "white"
        return Line2D([], [], marker=marker, color=colour, markerfacecolor=face, linestyle="none", label=label)

    engines = [
        handle("D", COLOURS[i % len(COLOURS)], i == 0, f"{name}" if i == 0 else name)
        for i, name in enumerate(result.engines)
    ]
    kinds = [
        handle("o", GREY, False, "prefill; the number: tokens"),
        handle("s", GREY, False, "decode; the number: sequences"),
    ]
    axes.legend(handles=[*engines, *kinds], loc="lower right", fontsize=8.5, frameon=True, framealpha=1.0)
