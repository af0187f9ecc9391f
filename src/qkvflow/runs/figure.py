"""`loss.png`: training and validation loss of a run, from its `metrics.jsonl`."""

from pathlib import Path

from qkvflow.runs.rundir import FIGURE, METRICS, read_lines


def draw_losses(directory: Path) -> str | None:
    """Draw the figure; where it cannot be drawn, the line that says why."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return f"no {FIGURE}: install matplotlib with pip install 'qkvflow[figures]'"
    lines = [line for line in read_lines(directory / METRICS) if line.get("loss") is not None]
    # A figure of its own, without pyplot: no display, no global state.
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for kind, style in (("train", "-"), ("validation", "o-")):
        chosen = [line for line in lines if line.get("kind") == kind]
        steps, losses = [line["step"] for line in chosen], [line["loss"] for line in chosen]
        axes.plot(steps, losses, style, label=kind, markersize=4, linewidth=1.2)
    axes.set(xlabel="step", ylabel="nats per token", title=directory.name)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(directory / FIGURE, dpi=120)
    except OSError as error:
        return f"no {FIGURE}: {error.strerror}"
    return None
