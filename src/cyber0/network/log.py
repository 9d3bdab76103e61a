"""What is said of a run as it goes on: sentences with a time and a level, as text or as lines of JSON.

What repeats is counted: the same notice about the same client is shown once, then at growing intervals with how often
it came meanwhile. So a client that lies in every round fills no disk.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Console

from cyber0.errors import InvalidConfig
from cyber0.printable import printable
from cyber0.progress import duration

__all__ = ["FORMS", "LEVELS", "Form", "Level", "Log", "Repeats", "Said", "check_form", "counting"]

Level = Literal["info", "warning", "error"]
Form = Literal["plain", "json"]
LEVELS: tuple[Level, ...] = ("info", "warning", "error")
FORMS: tuple[Form, ...] = ("plain", "json")
STYLES: dict[Level, str] = {"info": "", "warning": "yellow", "error": "red"}

FIRST, LONGEST = 10.0, 3600.0  # seconds until a notice that repeats is shown again, the first time and at most
KINDS = 32  # notices about one client that are told apart: it may choose some of the words itself
VARYING = re.compile(r"[0-9a-f]{8,}|\d[\d,.]*")  # rounds, counts and digests, in which the same notice differs


class Said(str):
    """A sentence with its level and the client that it is about, if there is one. It is used like any other text.

    >>> said = Said("ann is here", client="ann")
    >>> said, said.level, said.client
    ('ann is here', 'info', 'ann')
    """

    __slots__ = ("client", "level")
    level: Level
    client: str

    def __new__(cls, text: str, level: Level = "info", client: str = "") -> "Said":
        """Return a text with a level."""
        made = super().__new__(cls, text)
        made.level, made.client = level, client
        return made

    @classmethod
    def of(cls, text: str) -> "Said":
        """Return a text as one that is said; what has a level keeps it."""
        return text if isinstance(text, Said) else cls(text)

    def saying(self, text: str) -> "Said":
        """Return another text with the same level, about the same client."""
        return Said(text, self.level, self.client)


@dataclass(slots=True)
class Repeat:
    """When a notice was shown last, how long it is only counted from then on, and how often it came since."""

    shown: float
    pause: float = FIRST
    count: int = 0


NONE: Mapping[str, Repeat] = {}


class Repeats:
    """Which notices are shown: the first at once, the same again at growing intervals, with a count.

    Two notices are the same if they are about the same client and differ only in numbers.

    >>> clock = iter([0, 3, 6, 12]).__next__
    >>> repeats = Repeats(clock)
    >>> for number in range(4):
    ...     print(repeats.shown(Said(f"round {number}: the vote of ann does not count", client="ann")))
    round 0: the vote of ann does not count
    None
    None
    round 3: the vote of ann does not count (3 times in 12 s)
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._known: dict[str, dict[str, Repeat]] = {}  # by kind, of which there are few, and client
        self._kinds = Counter[str]()  # how many kinds there are of each client

    def shown(self, said: Said, *, known: bool = True) -> Said | None:
        """Return what is to be shown of a notice now: the notice, perhaps with a count, or None.

        All clients that are not `known` count as one: they choose their names themselves.
        """
        now = self.now()
        client = said.client if known else ""
        kind = VARYING.sub("#", said.replace(said.client, "#") if said.client else str(said))
        repeat = self._known.get(kind, NONE).get(client)
        if repeat is None and self._kinds[client] >= KINDS:
            self._forget(client, now)
            if self._kinds[client] >= KINDS:  # as many as this differ by design
                kind = ""
                repeat = self._known.get(kind, NONE).get(client)
        if repeat is None:
            self._known.setdefault(kind, {})[client] = Repeat(now)
            self._kinds[client] += 1
            return said
        repeat.count += 1
        passed = now - repeat.shown
        if passed < repeat.pause:
            return None
        count, repeat.count, repeat.shown = repeat.count, 0, now
        if count == 1:  # nothing was left out: it is rare
            repeat.pause = FIRST
            return said
        repeat.pause = min(2 * repeat.pause, LONGEST)
        return said.saying(f"{said} ({count:,} times in {duration(passed)})")

    def _forget(self, client: str, now: float) -> None:
        for kind, clients in list(self._known.items()):
            repeat = clients.get(client)
            if repeat is not None and now - repeat.shown > 2 * repeat.pause:
                del clients[client]
                self._kinds[client] -= 1
                if not clients:
                    del self._known[kind]


def counting(notice: Callable[[Said], None]) -> Callable[[str], None]:
    """Return a function that calls another one with what is to be shown of texts, in which no character does harm.

    >>> say = counting(print)
    >>> for number in range(3):
    ...     say(f"waiting for round {number}")
    waiting for round 0
    """
    repeats = Repeats()

    def say(text: str) -> None:
        said = repeats.shown(Said.of(text))
        if said is not None:
            notice(said.saying(printable(said)))

    return say


class Log:
    r"""Lines on a console: plain ones, with a short time on a terminal and a whole one elsewhere, or JSON.

    >>> from io import StringIO
    >>> console = Console(file=StringIO(), width=20)
    >>> log = Log(console, "json", now=lambda: datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC))
    >>> log.say(Said("ann is here", client="ann"), rounds=7)
    >>> console.file.getvalue()
    '{"time": "2026-05-04T03:02:01.000Z", "level": "info", "text": "ann is here", "client": "ann", "rounds": 7}\n'
    """

    def __init__(
        self, console: Console, form: Form = "plain", *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.console, self.form, self.now = console, form, now

    def say(self, text: str, **facts: Any) -> None:
        """Write a line; facts are for lines of JSON."""
        said, now = Said.of(text), self.now()
        style = ""
        if self.form == "json":
            about = {"client": said.client} if said.client else {}
            stamp = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03}Z"
            line = json.dumps({"time": stamp, "level": said.level, "text": str(said), **about, **facts})
        elif self.console.is_terminal:
            line, style = f"{now.astimezone():%H:%M:%S} {printable(said)}", STYLES[said.level]
        else:
            line = f"{now:%Y-%m-%dT%H:%M:%SZ} {said.level:7} {printable(said)}"
        self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
        self.console.file.flush()


def check_form(form: str) -> Form:
    """Return the form of a log's lines; one that is not known is refused.

    >>> check_form("xml")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: log = 'xml': it is plain or json
    """
    for known in FORMS:
        if form == known:
            return known
    raise InvalidConfig(f"log = {form!r}: it is {' or '.join(FORMS)}")
