"""Progress of long work: a live bar on a terminal, plain lines in a file or a pipe."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

__all__ = ["Lines", "Pace", "Progress", "bars", "count", "duration"]

FIRST = 3  # rounds by which a pace is known, after the first, which sets things up
SHORT = 60.0  # seconds of work that nobody needs to be told beforehand
NEWS = 5.0  # seconds between two plain lines when there is news
QUIET = 20.0  # seconds between two plain lines when there is none


class Lines:
    """Plain lines that say how far work is: few enough for a log, soon enough to see that it goes on.

    The first news is printed at once, the last always, others at most every five seconds; without news there is a line
    every twenty seconds. Each line is flushed. `unit` is what is counted: rounds, rules, bytes.

    >>> lines = Lines(Console(), "verifying", total=4000, clock=iter([0, 0, 10, 30]).__next__)
    >>> lines.update(0)
    >>> lines.update(1000)
    >>> lines.update(2000)
    verifying: 2,000 of 4,000 rounds, 30 s, about 30 s left
    """

    def __init__(
        self,
        console: Console,
        what: str = "",
        total: int | None = None,
        unit: str = "rounds",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.what, self.total, self.unit = console, what, total, unit
        self._clock = clock
        self._begin = self._last = clock()
        self._first: tuple[float, int] | None = None  # when work was first seen, and how much was done by then
        self._printed = False

    def update(self, done: int, note: str = "", *, news: bool = False, total: int | None = None) -> None:
        """Say that so much is done, if it is time for a line. A `note` goes into it; `news` make it due sooner."""
        now = self._clock()
        self.total = self.total if total is None else total
        self._first = self._first or (now, done)
        soon = news and (not self._printed or done == self.total)
        if soon or now - self._last >= (NEWS if news else QUIET):
            self._last, self._printed = now, self._printed or news
            self.say(self._line(done, note, now))

    def say(self, text: str) -> None:
        """Print a line, whatever the time."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.console.file.flush()

    def _line(self, done: int, note: str, now: float) -> str:
        since, before = self._first or (now, done)
        words = [count(done, self.total, self.unit), note, duration(now - self._begin)]
        if self.total is not None and before < done < self.total:
            words.append(f"about {duration((now - since) / (done - before) * (self.total - done))} left")
        return (f"{self.what}: " if self.what else "") + ", ".join(filter(None, words))


class Progress:
    """How far one piece of work is: a bar that vanishes at the end on a terminal, `Lines` elsewhere.

    >>> with Progress(Console(), "replaying", total=20) as progress:
    ...     for done in range(20):
    ...         progress.update(done + 1)
    """

    def __init__(self, console: Console, what: str, total: int | None = None, unit: str = "rounds") -> None:
        self._bars = bars(console) if console.is_terminal else None
        self._lines = Lines(console, what, total, unit)
        self._what, self._total, self._unit = what, total, unit
        self.total = total
        if self._bars is not None:
            self._bar = self._bars.add_task(what, total=total, count="", note="")

    def __enter__(self) -> "Progress":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, done: int, note: str = "", *, news: bool = False, total: int | None = None) -> None:
        """Show that so much is done; as `Lines.update`."""
        if self._bars is None:
            self._lines.update(done, note, news=news, total=total)
            return
        self._total = self._total if total is None else total
        shown = count(done, self._total, self._unit)
        self._bars.update(self._bar, completed=done, total=self._total, count=shown, note=note)


class Pace:
    """Says once, after the first few rounds, how long all of them will take, if that is more than a minute.

    >>> pace = Pace(Console(), 4000, clock=iter([0, 0.5, 1.0, 1.6]).__next__)
    >>> for _ in range(9):
    ...     pace.round()
    4,000 rounds will take about 36 min, at 0.53 s a round; evaluations come on top
    """

    def __init__(self, console: Console, rounds: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._rounds, self._clock = console, rounds or 0, clock
        self._times: list[float] = []

    def round(self) -> None:
        """Take note that a round is over."""
        if len(self._times) > FIRST:
            return
        self._times.append(self._clock())
        if len(self._times) <= FIRST:
            return
        each = (self._times[-1] - self._times[0]) / FIRST
        if each * self._rounds > SHORT:
            text = f"{self._rounds:,} rounds will take about {duration(each * self._rounds)}, at {each:.2g} s a round"
            self._console.print(f"{text}; evaluations come on top", markup=False, highlight=False, soft_wrap=True)
            self._console.file.flush()


def bars(console: Console) -> Bars:
    """Return bars for a terminal; a task of them has the fields `count` and `note`.

    >>> len(bars(Console()).columns)
    5
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    return Bars(*columns, console=console, transient=True)


def count(done: int, total: int | None, unit: str) -> str:
    """Return how much is done of how much.

    >>> count(1200, 4000, "rounds"), count(1_200_000, 9_900_000, "bytes"), count(7, None, "rounds")
    ('1,200 of 4,000 rounds', '1.2 of 9.9 MB', '7 rounds')
    >>> count(1, 1, "rounds")
    '1 of 1 round'
    """
    if unit == "bytes":
        return f"{done / 1e6:.1f} MB" if total is None else f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
    counted = unit.removesuffix("s") if (done if total is None else total) == 1 else unit
    return f"{done:,} {counted}" if total is None else f"{done:,} of {total:,} {counted}"


def duration(seconds: float) -> str:
    """Return a time for people.

    >>> duration(12.3), duration(185), duration(7500)
    ('12 s', '3 min', '2 h 5 min')
    """
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
