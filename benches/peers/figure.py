"""Draws what `run.py` measured. Needs: pip install matplotlib"""

from pathlib import Path

try:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
except ImportError as missing:
    raise SystemExit(f"--plot needs matplotlib ({missing}): pip install matplotlib, or leave --plot out")

COLOURS = {"specdec": "#2a6f97", "llama.cpp": "#9a9a9a", "candle": "#d9a441"}


def draw(path: Path, engines: list, rates: dict[str, float], base: str) -> None:
    """Bars of tokens/s with their ratios to `base`: a panel for one row at a time, one for batches."""
    batches = sorted({engine.batch for engine in engines})
    panels = [[engine for engine in engines if engine.batch == batch] for batch in batches]
    heights = [len(panel) + 1 for panel in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        figsize=(9, 0.32 * sum(heights) + 0.8),
        height_ratios=heights,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for (axis,), panel, batch in zip(axes, panels, batches):
        names = [engine.name.removesuffix(f", batch {batch}") for engine in panel]
        values = [rates[engine.name] for engine in panel]
        bars = axis.barh(range(len(panel)), values, color=[COLOURS[engine.family] for engine in panel], height=0.7)
        labels = [f"{value:.0f}  ({value / rates[base]:.2f}x)" for value in values]
        axis.bar_label(bars, labels, padding=4, fontsize=9)
        axis.set_yticks(range(len(panel)), names, fontsize=9)
        axis.invert_yaxis()
        axis.set_title("one sequence at a time" if batch == 1 else f"batches of {batch}", loc="left", fontsize=10)
        axis.axvline(rates[base], color="#9a9a9a", linewidth=0.8, linestyle=":", zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1][0].set_xlim(0, max(rates.values()) * 1.2)
    axes[-1][0].set_xlabel(f"new tokens/s, decoding (ratio to {base})")
    matplotlib.rcParams.update({"svg.hashsalt": "peers", "svg.fonttype": "none"})
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
