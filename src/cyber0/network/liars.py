"""Byzantine clients, for tests and demonstrations: they follow the rounds like a member, but send lies."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cyber0.errors import UnknownName
from cyber0.network.member import Member
from cyber0.protocol.messages import Bye, FromFederator, Hello, Vote
from cyber0.protocol.records import to_wire
from cyber0.protocol.settings import Settings

__all__ = ["LIES", "Liar"]

Messages = list[Any]  # or bytes that are no messages
GARBAGE = 3000  # messages of a flood


def negated(vote: Vote, _: random.Random) -> Messages:
    """Return the negated vote (sign flipping).

    >>> negated(Vote(0, to_wire([1.0])), random.Random(0))[0].scalars == to_wire([-1.0])
    True
    """
    return [Vote(vote.round, to_wire(-np.frombuffer(vote.scalars, dtype="<f4")), vote.fingerprint)]


def noise(vote: Vote, rng: random.Random) -> Messages:
    """Return a vote of extreme numbers, with a wrong fingerprint.

    >>> len(noise(Vote(0, bytes(8)), random.Random(0))[0].scalars)
    8
    """
    values = [rng.choice([-1e30, 3e38, -500.0, 0.0, 1.0]) for _ in range(len(vote.scalars) // 4)]
    return [Vote(vote.round, to_wire(values), rng.getrandbits(64))]


def not_a_number(vote: Vote, _: random.Random) -> Messages:
    """Return a vote of NaN.

    >>> not_a_number(Vote(0, bytes(4)), random.Random(0))[0].scalars.hex()
    '0000c07f'
    """
    return [Vote(vote.round, to_wire(np.full(len(vote.scalars) // 4, np.nan)))]


def stale(vote: Vote, _: random.Random) -> Messages:
    """Return votes for other rounds than the open one.

    >>> [vote.round for vote in stale(Vote(5, b""), random.Random(0))]
    [4, 3, 6]
    """
    return [Vote(max(0, vote.round + step), vote.scalars) for step in (-1, -2, 1)]


def equivocal(vote: Vote, rng: random.Random) -> Messages:
    """Return two different votes for one round.

    >>> len(equivocal(Vote(5, bytes(4)), random.Random(0)))
    2
    """
    return [vote, *noise(vote, rng)]


def flood(vote: Vote, rng: random.Random) -> Messages:
    """Return thousands of messages, half of them random bytes.

    >>> len(flood(Vote(5, bytes(4)), random.Random(0)))
    3000
    """
    return [rng.randbytes(rng.randrange(40)) if number % 2 else vote for number in range(GARBAGE)]


LIES: dict[str, Callable[[Vote, random.Random], Messages]] = {
    "equivocate": equivocal,
    "flood": flood,
    "nan": not_a_number,
    "random": noise,
    "sf": negated,
    "stale": stale,
}


class Liar:
    """A member that lies: it receives messages as it should, but replaces its votes by lies.

    >>> Liar(None, "fib")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown lie 'fib': use one of equivocate, flood, nan, random, sf, stale
    """

    def __init__(self, member: Member, lie: str) -> None:
        if lie not in LIES:
            raise UnknownName("lie", lie, LIES)
        self.member, self.lie = member, lie
        self._rng = random.Random(lie)  # noqa: S311

    @property
    def settings(self) -> Settings:
        """As in `Member`."""
        return self.member.settings

    @property
    def commits(self) -> int:
        """As in `Member`."""
        return self.member.commits

    @property
    def rounds(self) -> int:
        """As in `Member`."""
        return self.member.rounds

    @property
    def bye(self) -> Bye | None:
        """As in `Member`."""
        return self.member.bye

    @property
    def waits(self) -> bool:
        """As in `Member`."""
        return self.member.waits

    @property
    def welcomed(self) -> bool:
        """As in `Member`."""
        return self.member.welcomed

    @property
    def is_over(self) -> bool:
        """As in `Member`."""
        return self.member.is_over

    def hello(self) -> Hello:
        """As in `Member`."""
        return self.member.hello()

    def receive(self, messages: Iterable[FromFederator], send: Callable[[Any], None]) -> None:
        """As in `Member`."""

        def send_lies(message: Any) -> None:
            lies = LIES[self.lie](message, self._rng) if isinstance(message, Vote) else [message]
            for lie in lies:
                send(self.member.signed(lie) if isinstance(lie, Vote) else lie)

        self.member.receive(messages, send_lies)
