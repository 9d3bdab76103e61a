"""What a client knows of a roster that it was not sent: enough to follow the chain and to vote, not to check others."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cyber0.errors import InvalidIdentity
from cyber0.protocol.roster import Change, Roster, canonical

__all__ = ["Outline", "roster_from"]


@dataclass(frozen=True)
class Outline(Roster):
    """An outline of a roster: its digest, and how many are on it.

    It says what the federator says, and nobody's names or keys. Links of the chain contain the digest, so whoever has
    the whole roster of that digest can check the rest.

    >>> roster = Roster(("ann", "bob", "cy"), (b"", b"", b""), byzantine=1, quorum=3, rounds=9)
    >>> outline = Outline.of_roster(roster)
    >>> outline.size, outline.names, outline.digest == roster.digest
    (3, (), True)
    >>> roster_from(outline.to_bytes()) == outline
    True
    """

    many: int = 0
    hashed: bytes = field(default=b"")

    def __post_init__(self) -> None:
        """Nothing of it can be checked but the digest."""

    @classmethod
    def of_roster(cls, roster: Roster) -> "Outline":
        """Return the outline of a roster."""
        numbers = roster.byzantine, roster.quorum, roster.last
        return cls((), (), *numbers, many=roster.size, hashed=roster.digest)

    @property
    def size(self) -> int:
        """How many clients are on it."""
        return self.many

    @property
    def digest(self) -> bytes:
        """As the federator says."""
        return self.hashed

    def following(self, changes: Iterable[Change], digest: bytes) -> "Outline":
        """Return the outline of the next round's roster, which has this digest; an empty one is that of before."""
        last = max([self.rounds, *(change.number for change in changes if change.kind == "extend")])
        if last == self.rounds and digest in (b"", self.hashed):
            return self
        return replace(self, rounds=last, hashed=digest or self.hashed)

    def to_bytes(self) -> bytes:
        """Return the outline in canonical JSON."""
        fields = {
            "byzantine": self.byzantine,
            "clients": self.many,
            "digest": self.hashed.hex(),
            "quorum": self.quorum,
            "rounds": self.rounds,
        }
        return canonical({"outline": fields})


def roster_from(data: bytes) -> Roster:
    """Return the roster, or the outline of one, in these bytes.

    >>> roster_from(b'{"outline":{}}')
    Traceback (most recent call last):
    cyber0.errors.InvalidIdentity: the outline of a roster cannot be read: 'byzantine'
    """
    if not data.startswith(b'{"outline":'):
        return Roster.from_bytes(data)
    try:
        fields = json.loads(data)["outline"]
        numbers = [fields[name] for name in ("byzantine", "quorum", "rounds", "clients")]
        if not all(type(number) is int and 0 <= number < 2**32 for number in numbers):
            raise ValueError("its numbers must be integers")
        digest = bytes.fromhex(fields["digest"])
        byzantine, quorum, rounds, clients = numbers
        outline = Outline((), (), byzantine, quorum, rounds, many=clients, hashed=digest)
        is_canonical = len(digest) == 32 and outline.to_bytes() == data
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidIdentity(f"the outline of a roster cannot be read: {error}") from None
    if not is_canonical:
        raise InvalidIdentity("the outline of a roster is not written in the canonical way")
    return outline
