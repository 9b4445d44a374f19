#!/usr/bin/python3
"""Draws a comparison: validation loss against steps and against training time, and the bytes each method sends.

    scripts/plot_compare.py RUN_DIR      the --run-dir of a finished `tandem compare`

Writes compare-loss and compare-bytes as SVG and PNG into RUN_DIR. Lines are means over the seeds, bands reach from the lowest
to the highest. Training time is the sum of the steps: evaluations do not count. Needs matplotlib (Debian: python3-matplotlib).
"""
import json
import pathlib
import statistics
import sys

try:
    import matplotlib
except ImportError:
    sys.exit("plot_compare.py: matplotlib is missing; run scripts/install_deps.sh plot")
matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's colours, which colour-blind readers can tell apart; line styles go on where they run out.
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
STYLES = ["-", "--", ":", "-."]


def look_of(number):
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}


def curve(path):
    """(step, seconds of training, validation loss) of each evaluation of a run."""
    seconds, points = 0, []
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            seconds += event["step_ms"] / 1000
        elif event["event"] == "eval" and event["val_loss"] is not None:
            points.append((event["step"], seconds, event["val_loss"]))
    return points


def draw_losses(result, folder):
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, constrained_layout=True)
    for number, method in enumerate(result["methods"]):
        look = look_of(number)
        runs = [curve(folder / f"{method['folder']}-seed{run['seed']}" / "metrics.jsonl") for run in method["runs"]]
        # Evaluations that every seed has; a run that diverged has fewer.
        evaluations = list(zip(*[run for run in runs if run]))
        if not evaluations:
            continue
        steps = [points[0][0] for points in evaluations]
        seconds = [statistics.mean(point[1] for point in points) for points in evaluations]
        losses = [[point[2] for point in points] for points in evaluations]
        for axis, x in zip(axes, (steps, seconds)):
            axis.fill_between(x, [min(l) for l in losses], [max(l) for l in losses], color=look["color"], alpha=0.15,
                              linewidth=0)
            axis.plot(x, [statistics.mean(l) for l in losses], label=f"{method['method']}: {method['verdict']}",
                      marker="o" if len(x) < 3 else None, **look)
    for axis, label in zip(axes, ("step", "training time, s")):
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
        if result["target_loss"] is not None:
            axis.axhline(result["target_loss"], color="grey", linewidth=0.8)
    axes[0].set_ylabel("validation loss, nats per token")
    axes[1].legend(fontsize="small")
    figure.suptitle(f"{result['seeds']} seeds, {result['ranks']} ranks: mean, lowest and highest", fontsize="medium")
    return figure


def draw_bytes(result):
    methods = result["methods"]
    figure, axis = plt.subplots(figsize=(7, 1.2 + 0.4 * len(methods)), constrained_layout=True)
    ratios = [method["bytes_ratio"] or 0 for method in methods]
    axis.barh(range(len(methods)), ratios, color=[look_of(i)["color"] for i in range(len(methods))])
    for row, method in enumerate(methods):
        text = "not measured: one rank" if method["bytes_ratio"] is None else \
            f" {ratios[row]:.3f}   ({method['bytes_sent'] / 1e6:.3g} MB a step)"
        axis.text(ratios[row], row, text, va="center", fontsize="small")
    axis.set_yticks(range(len(methods)))
    axis.set_yticklabels([method["method"] for method in methods])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.5 * max(ratios + [0.1]))
    axis.set_xlabel("bytes on the wire, relative to dense fp32 gradients")
    return figure


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    try:
        result = json.loads((folder / "compare.json").read_text())
    except (OSError, ValueError) as error:
        print(f"plot_compare.py: {folder / 'compare.json'} cannot be read: {error}", file=sys.stderr)
        return 2
    for name, figure in ("compare-loss", draw_losses(result, folder)), ("compare-bytes", draw_bytes(result)):
        for ending in "svg", "png":
            figure.savefig(folder / f"{name}.{ending}", dpi=150)
        print(f"written  {folder / name}.svg and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
