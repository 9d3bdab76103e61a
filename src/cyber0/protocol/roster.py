"""Who takes part: names and public keys in order, how many may lie, how many votes decide, and for how many rounds.

A roster changes by records in the chain. One that is written with round t is pending in the link after it: clients sign
it with their votes of round t + 1, and it is in force from round t + 2 on. Only the key of a client that was on the
roster without one, since it had not come when the run was founded, is in force with the round it is written with.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from io import BytesIO
from typing import Any, Literal, cast, get_args

from cyber0.config import Agreement
from cyber0.errors import InvalidIdentity, InvalidRoster
from cyber0.protocol.signing import decoded

__all__ = ["Change", "Roster", "changes_from", "changes_to_bytes", "when"]

Kind = Literal["admit", "revoke", "rotate", "extend", "byzantine", "quorum"]
DOMAIN = b"cyber0 roster 2\0"
QUOTED = json.JSONEncoder(ensure_ascii=False).encode
MOST = 2**32 - 1  # rounds, of which a run has fewer


@dataclass(frozen=True, slots=True)
class Change:
    """A record that changes a roster.

    Args:
        kind: `admit` a client with its key, `revoke` one, `rotate` its key, `extend` the run, or set how many clients
            may lie (`byzantine`) or how many votes decide (`quorum`).
        name: Whose; empty where it is about no client.
        key: The new public key, if there is one.
        number: How many rounds, liars or votes there are from then on, if it is about these.
        signature: Of a change that the client asked for itself: by its key before the change.

    """

    kind: Kind
    name: str = ""
    key: bytes = b""
    number: int = 0
    signature: bytes = b""

    @property
    def text(self) -> str:
        """The change in words."""
        key = self.key.hex()[:16]
        words = {
            "admit": f"{self.name} is admitted with the key {key}",
            "revoke": f"{self.name} is revoked",
            "rotate": f"{self.name} has a new key, {key}",
            "extend": f"the run has {self.number} rounds",
            "byzantine": f"{self.number} clients may lie",
            "quorum": f"{self.number} votes decide a round",
        }
        return words[self.kind]

    def fields(self) -> list[Any]:
        """Return the change as a list that JSON can hold."""
        return [self.kind, self.name, self.key.hex(), self.number, self.signature.hex()]

    def statement(self, run: bytes) -> bytes:
        """Return what a client signs with its present key to ask for a change of its own entry."""
        return b"cyber0 change 2\0" + run + canonical([self.kind, self.name, self.key.hex(), self.number])


@dataclass(frozen=True)
class Roster:
    """The clients of a round in order, with their public keys; a client whose key is not known yet has an empty one.

    >>> roster = Roster(("ann", "bob", "cy"), (b"", b"", b""), byzantine=1, quorum=3, rounds=9)
    >>> later = roster.after([Change("admit", "dan", bytes(33))])
    >>> later.names == roster.names, later.after([]).names
    (True, ('ann', 'bob', 'cy', 'dan'))
    """

    names: tuple[str, ...]
    keys: tuple[bytes, ...]
    byzantine: int
    quorum: int  # the fewest votes that decide a round
    rounds: int
    pending: tuple[Change, ...] = field(default=())

    def __post_init__(self) -> None:
        self._check_clients()
        if not 0 < self.rounds < MOST:
            raise InvalidIdentity(f"rounds = {self.rounds}: it must be from 1 to {MOST - 1}")
        if not 0 <= 2 * self.byzantine < len(self.names):
            raise InvalidIdentity(f"byzantine = {self.byzantine} of {len(self.names)} clients: fewer than half may lie")
        if not 2 * self.byzantine < self.quorum <= len(self.names):
            raise InvalidIdentity(
                f"quorum = {self.quorum} of {len(self.names)} clients: it must be from {2 * self.byzantine + 1} (more "
                f"than 2 x byzantine) to {len(self.names)}"
            )

    def _check_clients(self) -> None:
        for name in cast("tuple[Any, ...]", self.names):  # of files of strangers, too
            if not isinstance(name, str) or not 0 < len(name) <= 100:
                raise InvalidIdentity(f"roster: {name!r} is no client's name, which is text of 1 to 100 characters")
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if list(self.names).count(name) > 1)
            raise InvalidIdentity(f"roster: {twice!r} is named twice")
        if len(self.keys) != len(self.names):
            raise InvalidIdentity(f"roster: {len(self.names)} names, but {len(self.keys)} keys")
        known = [key for key in self.keys if key]
        if len(set(known)) < len(known):
            first, second, *_ = (n for n, k in zip(self.names, self.keys, strict=True) if k and known.count(k) > 1)
            raise InvalidIdentity(f"roster: {first} and {second} have the same key: every client needs its own")

    @classmethod
    def of(
        cls,
        agreement: Agreement,
        names: Iterable[str],
        keys: Mapping[str, bytes] | None = None,
        quorum: int | None = None,
    ) -> "Roster":
        """Return the roster that a run begins with; by default the fewest votes that are allowed decide.

        >>> Roster.of(Agreement(clients=3, byzantine=1), ["ann", "bob", "cy"]).quorum
        3
        """
        names, known = tuple(names), keys or {}
        if len(names) != agreement.clients:
            raise InvalidIdentity(f"roster names {len(names)} clients, but clients = {agreement.clients}")
        quorum = quorum or agreement.quorum or 2 * agreement.byzantine + 1
        return cls(names, tuple(known.get(n, b"") for n in names), agreement.byzantine, quorum, agreement.rounds)

    @property
    def size(self) -> int:
        """How many clients are on it."""
        return len(self.names)

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each client."""
        return _places(self.names)

    @cached_property
    def owners(self) -> dict[bytes, str]:
        """The client of each public key."""
        return {key: name for name, key in zip(self.names, self.keys, strict=True) if key}

    @cached_property
    def last(self) -> int:
        """How many rounds there are; an extension counts as soon as it is written."""
        return max([self.rounds, *(change.number for change in self.pending if change.kind == "extend")])

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Who is on it, or will be when what is pending is in force."""
        return tuple(dict.fromkeys((*self.names, *self.in_force().names))) if self.pending else self.names

    def key(self, name: str) -> bytes:
        """Return a client's public key; empty if it is not known, or the client not on the roster."""
        place = self.places.get(name)
        return b"" if place is None else self.keys[place]

    @property
    def digest(self) -> bytes:
        """SHA-256 of a domain and its bytes: links of the chain contain it."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(DOMAIN + self.to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """Return the roster in canonical JSON, written client by client: as objects they would take memory."""
        written = BytesIO()
        written.write(b'{"byzantine":%d,"clients":[' % self.byzantine)
        for place, (name, key) in enumerate(zip(self.names, self.keys, strict=True)):
            written.write(f'{"," * (place > 0)}[{QUOTED(name)},"{key.hex()}"]'.encode())
        pending = canonical([change.fields() for change in self.pending])
        written.write(b'],"pending":%b,"quorum":%d,"rounds":%d}' % (pending, self.quorum, self.rounds))
        return written.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Roster":
        """Return the roster in these bytes, which must be canonical."""
        try:
            fields = json.loads(data)
            names = tuple(name for name, _ in fields["clients"])
            keys = tuple(bytes.fromhex(key) for _, key in fields["clients"])
            pending = tuple(map(_change, fields["pending"]))
            numbers = [fields[name] for name in ("byzantine", "quorum", "rounds")]
            if not all(type(number) is int for number in numbers):
                raise InvalidIdentity("roster: byzantine, quorum and rounds must be integers")
            roster = cls(names, keys, numbers[0], numbers[1], numbers[2], pending)
            canonical_data = roster.to_bytes()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, InvalidIdentity):
                raise
            raise InvalidIdentity(f"the roster cannot be read: {error}") from None
        if canonical_data != data:
            raise InvalidIdentity("the roster is not written in the canonical way")
        return roster

    def after(self, changes: Iterable[Change]) -> "Roster":
        """Return the roster of the next round: what was pending is in force, and these changes are pending."""
        changes = tuple(changes)
        if not self.pending and not changes:
            return self
        later = self.enrolled(changes)
        return replace(later.in_force(), pending=tuple(change for change in changes if not self._enrols(change)))

    def enrolled(self, changes: Iterable[Change]) -> "Roster":
        """Return the roster of the round that these changes are written with: clients that had no key have theirs."""
        keys = {change.name: change.key for change in changes if self._enrols(change)}
        if not keys:
            return self
        return replace(
            self, keys=tuple(key or keys.get(name, b"") for name, key in zip(self.names, self.keys, strict=True))
        )

    def _enrols(self, change: Change) -> bool:
        """Return whether a change gives a key to a client that is on the roster, and stays there, without one."""
        waits = change.name in self.places and not self.key(change.name)
        return change.kind == "admit" and waits and all(pending.name != change.name for pending in self.pending)

    def in_force(self) -> "Roster":
        """Return the roster with the pending changes made."""
        if not self.pending:
            return self
        entries = dict(zip(self.names, self.keys, strict=True))
        numbers = {"extend": self.rounds, "byzantine": self.byzantine, "quorum": self.quorum}
        for change in self.pending:
            if change.kind == "revoke":
                entries.pop(change.name, None)
            elif change.kind in numbers:
                numbers[change.kind] = change.number
            else:
                entries[change.name] = change.key
        return Roster(
            tuple(entries), tuple(entries.values()), numbers["byzantine"], numbers["quorum"], numbers["extend"]
        )

    def check(self, changes: Iterable[Change]) -> None:
        """Refuse changes that cannot be made together, after those that are pending.

        >>> roster = Roster(("ann", "bob", "cy"), (b"", b"", b""), byzantine=1, quorum=3, rounds=9)
        >>> roster.check([Change("revoke", "bob")])
        Traceback (most recent call last):
        cyber0.errors.InvalidRoster: 1 of 3 clients would be revoked: a quorum of 3 must be left
        """
        changes, now = tuple(changes), self.in_force()
        if not changes:
            return
        for change in changes:
            _check_change(now, change)
        _check_rounds(now.rounds, [change.number for change in changes if change.kind == "extend"])
        self._check_subjects(changes)
        revoked = sum(change.kind == "revoke" for change in changes)
        if revoked > len(now.names) - now.quorum:
            raise InvalidRoster(
                f"{revoked} of {len(now.names)} clients would be revoked: a quorum of {now.quorum} must be left"
            )
        pending = sum(change.kind == "revoke" for change in self.pending)
        if revoked and revoked + pending > len(self.names) - self.quorum:
            raise InvalidRoster(
                f"{revoked} of {len(self.names)} clients would be revoked before {pending} others are gone: a quorum "
                f"of {self.quorum} must be left; ask again a round later"
            )
        try:
            now.after(changes).in_force()
        except InvalidIdentity as error:
            raise InvalidRoster(str(error)) from None

    def _check_subjects(self, changes: tuple[Change, ...]) -> None:
        """Refuse two changes of one client: a new key after its revocation would bring it back."""
        asked: dict[str, Change] = {}
        for change in changes:
            before = asked.get(change.name)
            if before is not None and before.kind == change.kind == "revoke":
                raise InvalidRoster(f"{change.name} is revoked already")
            if before is not None:
                raise InvalidRoster(
                    f"{change.kind} {change.name}: {before.text}, and one round takes one change of a client: "
                    "ask again when that is written"
                )
            if change.name and not self._enrols(change):
                asked[change.name] = change


@lru_cache(maxsize=4)
def _places(names: tuple[str, ...]) -> dict[str, int]:
    """Return the place of each client; rosters of the same clients share it."""
    return {name: place for place, name in enumerate(names)}


def _check_change(now: Roster, change: Change) -> None:
    known = change.name in now.places
    if change.kind == "admit" and not change.key:
        raise InvalidRoster(f"{change.name} cannot be admitted without a key")
    if change.kind == "admit" and now.key(change.name):
        raise InvalidRoster(f"{change.name} is on the roster already: cyber0 rotate gives it a new key")
    if change.kind in ("admit", "rotate") and decoded(change.key) is None:
        raise InvalidRoster(f"{change.kind} {change.name}: {change.key.hex()[:16] or 'nothing'} is no public key")
    if change.kind in ("revoke", "rotate") and not known:
        raise InvalidRoster(f"{change.name} is not on the roster: {', '.join(now.names[:20])}")


def _check_rounds(rounds: int, extended: list[int]) -> None:
    for number in extended:
        if number <= rounds:
            raise InvalidRoster(f"rounds = {number}: the run has {rounds} already, give more")
        rounds = number


def canonical(fields: Any) -> bytes:
    """Return JSON with sorted keys and without spaces, in UTF-8."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def changes_to_bytes(changes: Iterable[Change]) -> bytes:
    """Return changes in canonical JSON; nothing for none.

    >>> changes_to_bytes([Change("revoke", "bob")])
    b'[["revoke","bob","",0,""]]'
    """
    fields = [change.fields() for change in changes]
    return canonical(fields) if fields else b""


def changes_from(data: bytes) -> tuple[Change, ...]:
    """Return the changes in these bytes, which must be canonical.

    >>> changes_from(b'[["promote","bob","",0,""]]')
    Traceback (most recent call last):
    cyber0.errors.InvalidIdentity: a change of the roster cannot be read: ['promote', 'bob', '', 0, '']
    """
    if not data:
        return ()
    try:
        changes = tuple(map(_change, json.loads(data)))
        canonical_data = changes_to_bytes(changes)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidIdentity):
            raise
        raise InvalidIdentity(f"changes of the roster cannot be read: {error}") from None
    if canonical_data != data:
        raise InvalidIdentity("changes of the roster are not written in the canonical way")
    return changes


def _change(fields: Any) -> Change:
    try:
        kind, name, key, number, signature = fields
        if kind in get_args(Kind) and isinstance(name, str) and len(name) <= 100 and type(number) is int:
            return Change(kind, name, bytes.fromhex(key), number, bytes.fromhex(signature))
    except (ValueError, TypeError):
        pass
    raise InvalidIdentity(f"a change of the roster cannot be read: {fields!r}")


def when(changes: Iterable[Change], number: int, last: int) -> str:
    """Return which round changes are written with, and from which on they are in force, in a run of `last` rounds.

    >>> when([Change("revoke", "bob")], number=7, last=100)
    'bob is revoked: written with round 7, in force from round 9 on'
    >>> when([Change("revoke", "bob")], number=99, last=100)
    'bob is revoked: written with round 99, and the run ends before it is in force'
    """
    texts = "; ".join(change.text for change in changes)
    if any(change.kind == "extend" for change in changes):
        return f"{texts}: written with round {number}, in force at once"
    if number + 2 >= last:
        return f"{texts}: written with round {number}, and the run ends before it is in force"
    return f"{texts}: written with round {number}, in force from round {number + 2} on"
