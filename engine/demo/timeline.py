#!/usr/bin/env python3
"""Draw a trace of hostlane-demo as a picture: timeline.py TRACE OUT.png (or .svg, .pdf)."""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.patches
import matplotlib.pyplot as plt

HOST, COPY, CONSUMER = 1, 2, 3
ROWS = {HOST: ("host", 2), COPY: ("copy stream", 1), CONSUMER: ("consumer stream", 0)}
HOST_COLOURS = {"compile plan": "#8a8a8a", "submit part": "#c9803b", "drain": "#d9d4c7"}
SETUP = ("allocate and pin", "open executor", "fill", "publish", "verify published", "compile plan")
BAR = 0.62


def text_colour(colour):
    red, green, blue = matplotlib.colors.to_rgb(colour)
    return "black" if 0.30 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"


def duration(us):
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.1f} ms" if us >= 1e3 else f"{us:.0f} µs"


def size(count):
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if count >= 0.99 * unit:
            return f"{count / unit:.2f} {name}"
    return f"{count / 1024:.1f} KiB"


def bar(axes, event, zero, scale, colour, label, width):
    """One span, with its label when that fits into the picture's width in µs."""
    start, length = event["ts"] - zero, event["dur"]
    y = ROWS[event["tid"]][1]
    axes.barh(y, length / scale, left=start / scale, height=BAR, color=colour, edgecolor="white", linewidth=0.4)
    if label and length > width * (0.006 + 0.0075 * len(label)):
        axes.text((start + length / 2) / scale, y, label, ha="center", va="center", fontsize=8, color=text_colour(colour))


def caption(spans, zero):
    before = [e for e in spans if e["tid"] == HOST and e["ts"] + e["dur"] <= zero and e["name"] in SETUP]
    return "before: " + " · ".join(f"{e['name']} {duration(e['dur'])}" for e in before)


def mark(axes, at, scale, text, colour, level, reach):
    """A vertical line with its text above the rows, on the side that has room."""
    axes.plot([at / scale] * 2, [-0.5, level], color=colour, linestyle="--", linewidth=1, zorder=3)
    right = at > 0.5 * reach
    place = (at + (-0.005 if right else 0.005) * reach) / scale
    axes.text(place, level, text, ha="right" if right else "left", va="center", fontsize=8.5, color=colour, zorder=4,
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})


def draw(events, out):
    spans = [e for e in events if e["ph"] == "X"]
    summary = next(e for e in events if e["ph"] == "i" and e["name"] == "restore summary")
    facts, zero = summary["args"], summary["ts"]
    copies = [e for e in spans if e["tid"] == COPY]
    reads = [e for e in spans if e["tid"] == CONSUMER]
    reach = max(e["ts"] + e["dur"] for e in copies + reads) - zero
    scale, unit = (1e3, "ms") if reach >= 5e3 else (1.0, "µs")
    colours = matplotlib.colormaps["viridis"]

    figure, axes = plt.subplots(figsize=(13, 4.2), constrained_layout=True)
    for event in copies + reads:
        layer = event["args"]["layer"]
        colour = colours(0.08 + 0.87 * layer / max(1, facts["layers"] - 1))
        bar(axes, event, zero, scale, colour, str(layer), reach)
    drawn = set()
    for event in spans:
        inside = event["ts"] >= zero and event["ts"] - zero < reach
        if event["tid"] == HOST and inside and event["name"] in HOST_COLOURS:
            bar(axes, event, zero, scale, HOST_COLOURS[event["name"]], event["name"], reach)
            drawn.add(event["name"])

    first = min(reads, key=lambda e: e["ts"])["ts"] - zero
    total = facts["total_us"]
    mark(axes, first, scale, f"first consumer starts, {duration(first)}", "#7a1f5c", 2.58, reach)
    mark(axes, total, scale, f"last layer ready, {duration(total)}", "#14532d", 2.58, reach)
    if facts["performance_meaning"] and facts["ceiling_gbps"] > 0:
        ideal = facts["bytes"] / facts["ceiling_gbps"] / 1e3
        text = f"the same bytes in one large copy, {facts['ceiling_gbps']:.1f} GB/s: {duration(ideal)}"
        mark(axes, ideal, scale, text, "#a11d1d", 2.86, reach)

    stages = [matplotlib.patches.Patch(color=colour, label=name) for name, colour in HOST_COLOURS.items() if name in drawn]
    axes.legend(handles=stages, loc="upper left", bbox_to_anchor=(0.25, 0.985), ncol=len(stages), frameon=False, fontsize=8.5)
    axes.set_yticks([row for _, row in ROWS.values()], [name for name, _ in ROWS.values()])
    axes.set_ylim(-0.5, 3.02)
    axes.set_xlim(-0.01 * reach / scale, 1.02 * reach / scale)
    axes.set_xlabel(f"{unit} after the restore's base event (numbers in the bars are layers)\n{caption(spans, zero)}", fontsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    speed = (
        f"{facts['gbps']:.1f} GB/s, {facts['gbps'] / facts['ceiling_gbps']:.3f} of one large copy"
        if facts["performance_meaning"]
        else "times have no performance meaning"
    )
    axes.set_title(
        f"{facts['model']}, {facts['layers']} layers, {facts['pages']} pages, {size(facts['bytes'])}, route {facts['route']}: "
        f"{facts['device']}, {speed}",
        fontsize=11,
        loc="left",
    )
    figure.savefig(out, dpi=140)


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    trace, out = arguments
    with open(trace, encoding="utf-8") as file:
        draw(json.load(file), out)


if __name__ == "__main__":
    main(sys.argv[1:])
