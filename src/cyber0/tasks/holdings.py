"""Write how many samples of each label each client holds to a file: as a picture, or as a table."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidData
from cyber0.extras import require

__all__ = ["FORMATS", "check_format", "write"]

Counts = NDArray[np.int64]
FORMATS = (".csv", ".pdf", ".png", ".svg")
WHOLE = 50  # clients up to which each gets its number on the axis


def check_format(path: Path) -> None:
    """Refuse a file whose ending is not one of the formats.

    >>> check_format(Path("holdings.jpeg"))
    Traceback (most recent call last):
    cyber0.errors.InvalidData: holdings.jpeg: a picture or table is written to a file ending in .csv, .pdf, .png, .svg
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidData(f"{path}: a picture or table is written to a file ending in {', '.join(FORMATS)}")


def write(path: Path, counts: Counts, title: str = "") -> None:
    """Write counts [clients, classes] in the format of the file's ending: numbers (.csv), or a picture.

    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "holdings.csv"
    >>> write(out, np.array([[3, 0], [1, 2]]))
    >>> print(out.read_text())
    client,0,1,total
    0,3,0,3
    1,1,2,3
    <BLANKLINE>
    """
    check_format(path)
    save = _save_table if path.suffix.lower() == ".csv" else _save_picture
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, counts, title)
    except OSError as error:
        raise InvalidData(f"{path} cannot be written: {error.strerror or error}") from error


def _save_table(path: Path, counts: Counts, _: str) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["client", *range(counts.shape[1]), "total"])
        for client, row in enumerate(counts.tolist()):
            rows.writerow([client, *row, sum(row)])


def _save_picture(path: Path, counts: Counts, title: str) -> None:
    matplotlib = require("matplotlib", extra="study")
    figures = require("matplotlib.figure", extra="study")
    width = float(np.clip(len(counts) * 0.22, 7, 16))
    figure = figures.Figure(figsize=(width, 6.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    colours = _colours(matplotlib, counts.shape[1])
    _draw_sizes(above, counts, colours)
    _draw_shares(below, counts, colours)
    figure.suptitle(title, fontsize=11)
    with matplotlib.rc_context({"svg.hashsalt": "cyber0"}):  # the same numbers, the same bytes
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _colours(matplotlib: Any, classes: int) -> NDArray[np.float64]:
    """Return a colour for each label: [classes, 3]."""
    if classes <= 10:
        return matplotlib.colormaps["tab10"](np.arange(classes))[:, :3]
    return matplotlib.colormaps["turbo"](np.linspace(0, 1, classes))[:, :3]


def _draw_sizes(axes: Any, counts: Counts, colours: NDArray[np.float64]) -> None:
    """Draw a bar for each client, stacked by label."""
    tops = np.cumsum(counts, axis=1)
    for label, colour in enumerate(colours):
        bottom = tops[:, label] - counts[:, label]
        axes.bar(np.arange(len(counts)), counts[:, label], 0.85, bottom=bottom, color=colour)
    axes.set_ylabel("samples")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _draw_shares(axes: Any, counts: Counts, colours: NDArray[np.float64]) -> None:
    """Draw the share of each label in each client's samples; the labels of its rows are the legend of the bars."""
    clients, classes = counts.shape
    shares = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).T[:, :, None]
    axes.imshow(1 - np.sqrt(shares) * (1 - colours[:, None, :]), aspect="auto", origin="lower", interpolation="nearest")
    axes.set(xlabel="client", ylabel="label", xlim=(-0.6, clients - 0.4))
    axes.set_title("the fuller the colour, the greater the label's share of the client's samples", fontsize=9)
    if classes <= 20:
        axes.set_yticks(range(classes))
        for tick, colour in zip(axes.get_yticklabels(), colours, strict=True):
            tick.set(color=colour, fontweight="bold")
    if clients <= WHOLE:
        axes.set_xticks(range(clients))
        axes.tick_params(axis="x", labelsize=7 if clients > 20 else 9)
