"""Pictures of runs in one style: a measure over rounds or bytes, the votes of a round, what an attack reports.

The colours are Okabe and Ito's, which colour-blind readers tell apart; liars differ from others by their marks, too.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from cyber0.callbacks import Round
from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.simulation.history import History

__all__ = ["COLOURS", "FORMATS", "INK", "PAPER", "RULE", "STYLE", "draw_measure", "draw_report", "draw_votes", "save"]

FORMATS = ("svg", "pdf", "png")
INK, RULE, PAPER = "#1c2430", "#d9dee5", "#ffffff"  # text, grid, background: a page may replace them in the SVG
# Okabe and Ito's colours; then some of Tol's for long lists
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f98"),
    *("#882255", "#44aa99", "#999933", "#aa4499", "#661100"),
)
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.hashsalt": "cyber0",
    "pdf.fonttype": 42,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
OVER = {"round": "round", "bytes": "bytes_up_per_client"}


def draw_measure(history: History, axes: Any, metric: str, over: str, label: str) -> Any:
    """Draw a measure of the test samples over rounds or bytes, and that of the validation samples as a broken line."""
    lines = history.frame()
    if metric == "accuracy" and lines["accuracy"].isna().all():
        metric = "loss"
    if metric not in lines.columns:
        raise InvalidConfig(f"metric = {metric!r}: this run has {', '.join(map(str, lines.columns))}")
    if over not in OVER:
        raise InvalidConfig(f"over = {over!r}: use one of {', '.join(OVER)}")
    if axes is not None and not hasattr(axes, "plot"):
        raise InvalidConfig(f"axes = {axes!r:.60}: give one axes of matplotlib, as of plt.subplots()[1], or none")
    with styled():
        if axes is None:
            axes = _new_axes(
                {"round": "round", "bytes": "bytes sent by each client"}[over],
                f"{metric.replace('_', ' ')} on test samples",
            )
            _format(axes, percent=metric in ("accuracy", "attack_success"), engineering=over == "bytes")
        x = lines[OVER[over]]
        (line,) = axes.plot(x, lines[metric], label=label, linewidth=1.8, solid_capstyle="round")
        if (held_out := f"validation_{metric}") in lines.columns:
            axes.plot(x, lines[held_out], "--", color=line.get_color(), label=f"{label} (validation)")
        axes.legend(frameon=False)
    return axes


def draw_votes(rounds: Sequence[Round], axes: Any, number: int) -> Any:
    """Draw what each client sent in a round, number by number, with the liars' votes and the aggregate marked."""
    shown = _find(rounds, number)
    sent = np.asarray(shown.sent).swapaxes(0, 1).reshape(len(shown.participants), -1)  # [clients, scalars]
    lies = np.isin(np.asarray(shown.participants), shown.liars)
    with styled():
        axes = axes or _new_axes("number of the vote", "sent", width=8.0)
        low, high = _limits(sent, sent[~lies])
        cut = "; at the edge: farther out" if (np.nan_to_num(np.clip(sent, low, high) - sent) != 0).any() else ""
        title = f"round {shown.number}: {len(lies)} votes, {int(lies.sum())} by liars{cut}"
        axes.set_title(title, loc="left", fontsize=10)
        places = np.arange(sent.shape[1])
        groups = ((~lies, COLOURS[0], "o", 9, "honest", -0.12), (lies, COLOURS[1], "x", 26, "liars", 0.12))
        for who, colour, mark, size, name, aside in groups:
            x, y = np.tile(places + aside, int(who.sum())), np.clip(sent[who], low, high).reshape(-1)
            axes.scatter(
                x, y, s=size, c=colour, marker=mark, linewidths=1.2 if mark == "x" else 0, label=name, alpha=0.8
            )
        if shown.aggregate is not None:
            aggregate = np.asarray(shown.aggregate).reshape(-1)
            axes.hlines(aggregate, places - 0.42, places + 0.42, color=INK, linewidth=2, label="aggregate")
        margin = 0.05 * (high - low)
        axes.set_ylim(low - margin, high + margin)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.figure.legend(*axes.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")
    return axes


def _limits(votes: Any, honest: Any) -> tuple[float, float]:
    """Return the limits of the axis: all votes, unless lies are so far out that they would hide the others."""
    votes, honest = votes[np.isfinite(votes)], honest[np.isfinite(honest)]
    if not len(honest):
        return -1.0, 1.0
    low, high = float(honest.min()), float(honest.max())
    far = 1.5 * (high - low)
    low, high = max(float(votes.min()), low - far), min(float(votes.max()), high + far)
    return (low, high) if low < high else (low - 1e-6, high + 1e-6)


def draw_report(rounds: Sequence[Round], axes: Any, name: str, label: str) -> Any:
    """Draw what an attack reported of each round, such as its strength `omega`, as the mean over its rows."""
    known = [each for each in rounds if name in each.reports]
    if not known:
        reported = sorted({key for each in rounds for key in each.reports})
        raise InvalidConfig(
            f"report = {name!r}: the attack of this run reports {', '.join(reported) or 'nothing'}"
            + ("" if rounds else "; its votes were not kept: run it with keep='votes', or --keep votes")
        )
    values = [float(np.mean(np.asarray(each.reports[name], dtype=np.float64))) for each in known]
    with styled():
        axes = axes or _new_axes("round", name)
        axes.plot([each.number for each in known], values, label=label, linewidth=1.2)
        drawn = np.concatenate([line.get_ydata() for line in axes.lines])
        if drawn.min() > 0 and drawn.max() > 100 * drawn.min():
            axes.set_yscale("log")
        axes.legend(frameon=False)
    return axes


def save(axes: Any, path: Path) -> None:
    """Write the figure of some axes to a file in the format of its ending; the same figure, the same bytes."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise InvalidConfig(
            f"{path}: a picture is written to a file ending in {', '.join('.' + each for each in FORMATS)}"
        )
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    with styled():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            axes.figure.savefig(path, format=kind, dpi=160, metadata=metadata)
        except OSError as error:
            raise InvalidConfig(f"{path} cannot be written: {error.strerror or error}") from None


@contextmanager
def styled() -> Generator[None]:
    """Draw in the common style, whatever the user's own is."""
    matplotlib = require("matplotlib", extra="study")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE | {"axes.prop_cycle": matplotlib.cycler(color=COLOURS)})
        yield


def _new_axes(x: str, y: str, width: float = 6.4) -> Any:
    axes = _figure(figsize=(width, 4), layout="constrained", facecolor=PAPER).add_subplot()
    axes.set(xlabel=x, ylabel=y, facecolor="none", axisbelow=True)
    axes.grid(True, color=RULE, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=3, width=0.6)
    return axes


def _figure(**options: Any) -> Any:
    """Return a new figure that belongs to no window, and that a notebook shows as a picture."""
    figure = require("matplotlib.figure", extra="study").Figure(**options)
    figure.set_canvas(require("matplotlib.backends.backend_agg", extra="study").FigureCanvasAgg(figure))
    figure._repr_png_ = partial(_png, figure)  # what IPython asks for
    return figure


def _png(figure: Any) -> bytes:
    content = BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()


def _format(axes: Any, *, percent: bool, engineering: bool) -> None:
    ticker = require("matplotlib.ticker", extra="study")
    if percent:
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    if engineering:
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=" ", unit="B"))


def _find(rounds: Sequence[Round], number: int) -> Round:
    """Return a round whose votes were kept; negative numbers count from the last."""
    kept = [each for each in rounds if each.honest is not None]
    if not kept:
        raise InvalidConfig("the votes of this run were not kept: run it with keep='votes', or --keep votes")
    if number < 0:
        found = kept[number:][:1] if -number <= len(kept) else []
    else:
        found = [each for each in kept if each.number == number]
    if not found:
        raise InvalidConfig(f"round = {number}: votes were kept of rounds {kept[0].number} to {kept[-1].number}")
    return found[0]
