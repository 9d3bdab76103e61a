"""The display of a federator: a live table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cyber0.network.log import Form, Log, Said
from cyber0.network.server import Federator
from cyber0.network.watch import standing
from cyber0.printable import many, printable
from cyber0.protocol.messages import Evaluation

__all__ = ["Show", "showing", "table"]

EVERY = 10.0  # seconds from one plain line to the next
ROWS = 40  # clients that a table shows
STYLES = {
    "must replay": "red",
    "away": "dim",
    "has voted": "green",
    "is awaited": "yellow",
    "catches up": "cyan",
}
LEVELS = {"info": "dim", "warning": "yellow", "error": "red"}


class Show:
    r"""The display of a federator.

    >>> from io import StringIO
    >>> show = Show(Console(file=StringIO()), live=False)
    >>> show.notice("alice is here")
    >>> show.log.console.file.getvalue().split(maxsplit=1)[1]
    'info    alice is here\n'
    """

    def __init__(self, console: Console, *, live: bool, form: Form = "plain") -> None:
        self.live, self.log = live, Log(console, form)
        self.federator: Federator | None = None
        self._last = time.monotonic()

    def begin(self, federator: Federator, address: str, *, secure: bool) -> None:
        """Show that a federator listens at an address."""
        self.federator = federator
        how = "with TLS" if secure else "without TLS: anybody can pretend to be any client"
        rounds = many(federator.state.round, "round is", "rounds are")
        self.log.say(f"listening at {address}, {how}; {rounds} in the ledger")
        self.log.say(federator.settings.finality(federator.state.who))

    def notice(self, text: str) -> None:
        """Show a sentence; on a terminal the table shows it."""
        if not self.live:
            self.log.say(text)

    def __rich__(self) -> Group | str:
        return "" if self.federator is None else table(self.federator)

    def line(self) -> None:
        """Print how far the run is, unless that was done within the last seconds."""
        federator = self.federator
        if self.live or federator is None or time.monotonic() - self._last < EVERY:
            return
        self._last = time.monotonic()
        present, rate = len(federator.state.present), round(federator.tally.rate, 3)
        self.log.say(heading(federator), rounds=federator.state.round, present=present, rounds_per_second=rate)


@contextmanager
def showing(console: Console, form: Form = "plain") -> Generator[Show]:
    """Show a display while a federator runs."""
    show = Show(console, live=console.is_terminal and form == "plain", form=form)
    if not show.live:
        yield show
        return
    with Live(show, console=console, refresh_per_second=4):
        yield show


def heading(federator: Federator) -> str:
    """Return in one line how far the run is."""
    state, tally = federator.state, federator.tally
    seen = tally.clients.values()
    rounds = f"round {state.round:,} of {state.who.last:,}, {tally.rate:,.1f} rounds/s"
    bytes_ = f"{sum(s.received for s in seen) / 1e3:,.1f} kB in, {federator.sent() / 1e3:,.1f} kB out"
    quality = _median_quality([s.evaluation for s in seen if s.evaluation is not None])
    return f"{rounds}, {len(state.present)} of {len(state.who.names)} are here, {bytes_}{quality}"


def _median_quality(evaluations: list[Evaluation]) -> str:
    """Return the median of the clients' accuracies, or of their losses where the task has no classes."""
    accuracies = sorted(each.accuracy for each in evaluations if each.accuracy is not None)
    losses = sorted(each.loss for each in evaluations)
    if accuracies:
        return f", accuracy {accuracies[len(accuracies) // 2]:.1%}"
    return f", loss {losses[len(losses) // 2]:.4g}" if losses else ""


def table(federator: Federator) -> Group:
    """Return a table of who is here, who is late, and whose votes do not count and why."""
    state, seen = federator.state, federator.tally.clients
    rows = Table("client", "", "counted", "refused", "why", "evaluation", box=None, padding=(0, 2, 0, 0))
    for name in state.who.names[:ROWS]:
        one = seen[name]
        quality = "" if one.evaluation is None else _quality(one.evaluation)
        cells = f"{federator.tally.share(name):.0%}", str(one.refused), Text(printable(one.reason[:60])), quality
        rows.add_row(Text(printable(name)), _standing(federator, name), *cells)
    said = [Said.of(text) for text in list(federator.tally.notices)]
    notices = [Text(f"  {printable(text)}", LEVELS[text.level], no_wrap=True) for text in said]
    return Group(Text(heading(federator), "bold"), rows, *notices)


def _quality(evaluation: Evaluation) -> str:
    if evaluation.accuracy is None:
        return f"loss {evaluation.loss:.4g} at {evaluation.round}"
    return f"{evaluation.accuracy:.1%} at {evaluation.round}"


def _standing(federator: Federator, name: str) -> Text:
    how = standing(federator.state, name)
    return Text(how, STYLES[how])
