"""The settings of a federation: what was agreed, who takes part, and how long a round waits."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from statistics import median
from typing import Any, cast

from cyber0 import aggregation
from cyber0.config import Agreement, RunConfig, canonical_rule
from cyber0.errors import Cyber0Error, InvalidConfig, InvalidIdentity, Refused
from cyber0.plan import Plan, participants
from cyber0.protocol.decide import quorum
from cyber0.protocol.identity import Identity, Parent, layout_from
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.messages import Invitation
from cyber0.protocol.outline import Outline
from cyber0.protocol.roster import Roster

__all__ = ["Settings"]

FLOOR = 0.02  # seconds that a round waits for others after its quorum in any case
OWN = (
    "certificate",
    "federator",
    "keys",
    "roster",
    "rotates",
    "semantics",
)  # what the JSON of an invitation does not have


@dataclass(frozen=True)
class Settings:
    """What a federator and its clients hold to: the agreement, the roster, and how a round is timed.

    A deadline that brings too few votes is doubled, up to `longest` seconds. Once a quorum is in, a round waits for the
    other clients that keep up, `patience` times as long as quorums took lately. Votes of every `fingerprint_every`th
    round carry a fingerprint of the weights; clients that evaluate do so every `evaluate_every` rounds.

    >>> settings = Settings.of(RunConfig(clients=4, byzantine=1, directions=2))
    >>> settings.roster
    ('client-0', 'client-1', 'client-2', 'client-3')
    >>> settings.quorum, settings.vote_bytes, settings.seconds(extension=2)
    (3, 8, 240.0)
    >>> Settings.from_invitation(settings.invitation(client="client-2")).place
    2
    """

    agreement: Agreement
    roster: tuple[str, ...]
    keep_votes: bool = True
    deadline: float = 60.0
    longest: float = 3600.0
    patience: float = 2.0
    fingerprint_every: int = 100
    evaluate_every: int = 10
    federator: bytes = b""  # of an invitation: the public key that signs the chain
    certificate: bytes = b""  # of that key, in DER, if it has one
    keys: Mapping[str, bytes] = field(default_factory=dict[str, bytes])  # of a federator: those it knows beforehand
    place: int = -1  # of an invitation, which has no roster: where its client is; -1 if it is nowhere
    rotates: bool = False  # of a federator: whether a client that comes with a new key may go on with it
    semantics: int = aggregation.SEMANTICS  # of a federator: the version of what the rule computes
    parent: Parent | None = None  # the run whose first rounds it begins with

    def __post_init__(self) -> None:
        if len(set(self.roster)) != len(self.roster):
            raise InvalidConfig(f"roster = {self.roster} names a client twice: names must differ")
        if self.roster and len(self.roster) != self.agreement.clients:
            raise InvalidConfig(f"the roster names {len(self.roster)} clients, but clients = {self.agreement.clients}")
        if not 0 <= self.patience < float("inf"):
            raise InvalidConfig(f"patience = {self.patience!r} must be a number of at least 0")
        for name in ("deadline", "longest"):
            if not 0 < getattr(self, name) < 2**32:  # the integers of strangers may be too large for a float
                raise InvalidConfig(f"{name} = {getattr(self, name)!r} must be a number of seconds above 0")
        for name, least in (("fingerprint_every", 1), ("evaluate_every", 1), ("place", -1)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise InvalidConfig(f"{name} = {getattr(self, name)!r} must be an integer of at least {least}")

    @classmethod
    def of(cls, config: RunConfig, roster: tuple[str, ...] | None = None, **options: Any) -> "Settings":
        """Return the settings of a recipe; what only a simulation has is refused.

        >>> Settings.of(RunConfig(dropout=0.1))
        Traceback (most recent call last):
        cyber0.errors.InvalidConfig: dropout = 0.1 is for simulations: in a federation clients fail by themselves
        """
        instead = {
            "algorithm": "a federation trains by cyber0",
            "attack": "a liar joins a federation with --attack",
            "dropout": "in a federation clients fail by themselves",
            "epsilon": "a client joins a federation with --epsilon, and the terms may ask for --least-noise",
            "noise": "a client joins a federation with --epsilon, and the terms may ask for --least-noise",
        }
        for name, text in instead.items():
            if (value := getattr(config, name)) != RunConfig.model_fields[name].default:
                raise InvalidConfig(f"{name} = {value!r} is for simulations: {text}")
        names = roster or tuple(f"client-{number}" for number in range(config.clients))
        options.setdefault("evaluate_every", config.evaluate_every)
        return cls(config.agreement, names, **options)

    @classmethod
    def of_ledger(cls, ledger: Ledger, asked: "Settings | None" = None, **options: Any) -> "Settings":
        """Return the settings to serve a ledger with: of the run in it, or, in a new one, as asked for.

        What was asked for must not contradict the ledger; only how rounds are timed may change.

        >>> from cyber0.protocol.ledger import Memory
        >>> ledger, settings = Memory(), Settings.of(RunConfig(clients=3, byzantine=1))
        >>> ledger.found(settings.identity(bytes(32), bytes(32)))
        >>> Settings.of_ledger(ledger) == settings
        True
        """
        if not ledger.founded:
            if asked is None:  # it was stopped before a majority came: what was asked for then is not known
                raise InvalidConfig("the ledger holds no run yet: give the run's options again, or remove the file")
            return asked
        identity = ledger.identity
        if identity.protocol == 1:
            raise InvalidConfig("the ledger holds a run of version 1: it can be verified and replayed, not continued")
        options |= {"semantics": identity.semantics, "parent": identity.parent}
        found = cls(identity.agreement, identity.roster.names, identity.keep_votes, **options)
        if asked is None:
            return found
        asked = replace(asked, semantics=identity.semantics, parent=identity.parent)
        if canonical_rule(found.agreement.rule) == asked.agreement.rule:  # a ledger keeps the spelling it began with
            agreement = asked.agreement.model_copy(update={"rule": found.agreement.rule})
            asked = replace(asked, agreement=agreement)
        for name in ("agreement", "roster", "keep_votes"):
            if getattr(asked, name) != getattr(found, name):
                differs = _difference(found, asked, name)
                raise InvalidConfig(
                    f"the ledger holds another run ({differs}): give its options, or none, or another ledger"
                )
        return asked

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run's rounds."""
        return self.agreement.plan

    @cached_property
    def first(self) -> Roster:
        """The roster before the run is founded, with the keys that are known beforehand."""
        return Roster.of(self.agreement, self.roster, self.keys, self.quorum)

    @cached_property
    def rule(self) -> aggregation.Composition:
        """The rule that aggregates votes. Not for clients: it may be code that the federator names."""
        return aggregation.get_rule(self.agreement.rule, self.semantics)

    @cached_property
    def quorum(self) -> int:
        """The fewest votes that decide a round at first."""
        return self.quorum_of(self.agreement.clients, self.agreement.byzantine)

    def quorum_of(self, clients: int, byzantine: int) -> int:
        """Return the fewest votes that decide a round with so many clients, so many of which may lie.

        By default more than (m + b) / 2 of m invited clients, so that two quorums share an honest client and commits
        become final, where the honest alone can reach it; else as few as the rule allows.

        >>> settings = Settings.of(RunConfig(clients=10, byzantine=2))
        >>> settings.quorum_of(10, 2), settings.quorum_of(10, 4)
        (7, 9)
        """
        invited = self.agreement.invited_of(clients)
        least, final = quorum(self.rule, byzantine, invited), (invited + byzantine) // 2 + 1
        asked = self.agreement.quorum
        if asked is not None and least <= asked <= invited:
            return asked
        if asked is not None and asked < least:
            raise InvalidConfig(f"quorum = {asked}: {self.agreement.rule} needs at least {least} votes")
        return max(least, final) if invited - byzantine >= final else least

    def finality(self, roster: Roster) -> str:
        """Return when commits become final with a roster, in a sentence: for clients that check every round.

        >>> settings = Settings.of(RunConfig(clients=10, byzantine=2))
        >>> settings.finality(settings.first)
        'a commit is final once 7 of 10 invited clients have voted after it: the quorum is 7'
        """
        invited = self.agreement.invited_of(roster.size)
        needed = (invited + roster.byzantine) // 2 + 1
        once = f"a commit is final once {needed} of {invited} invited clients have voted after it"
        if roster.quorum < needed:
            return f"{once}, but the quorum is {roster.quorum}: rounds may be decided that make none final"
        stop = f"; the {roster.byzantine} that may lie can stop the run by staying away"
        return f"{once}: the quorum is {roster.quorum}" + stop * (invited - roster.byzantine < roster.quorum)

    @property
    def founders(self) -> int:
        """How many of the roster must bring the same model to found the run.

        A majority, since fewer than half lie, and so many that every round has a quorum among them: the fewer keys are
        known at the founding, the more votes it takes until a commit is final.

        >>> Settings.of(RunConfig(clients=10, byzantine=2)).founders
        7
        """
        clients = self.agreement.clients
        absent = self.agreement.invited_of(clients) - self.quorum  # of whom a round can do without
        return max(clients // 2 + 1, clients - absent)

    @property
    def vote_bytes(self) -> int:
        """The bytes of a vote's scalars."""
        return 4 * self.plan.scalars

    @cached_property
    def _drawn(self) -> dict[str, Any]:
        return {}  # the last draw: every vote asks for it

    def voters(self, round: int, roster: Roster) -> tuple[str, ...]:  # noqa: A002
        """Return who is invited to a round, drawn by the seed: federator and clients come to the same names."""
        clients = roster.size
        invited = self.agreement.invited_of(clients)
        if invited == clients:
            return roster.names
        last = self._drawn.get("last")
        if last is None or last[0] != round or last[1] is not roster:
            chosen = participants(self.agreement.seed, round, clients, invited, 0.0)
            names = tuple(roster.names[place] for place in map(int, chosen))
            last = round, roster, names, frozenset(names)
            self._drawn["last"] = last
        return last[2]

    def is_invited(self, client: str, round: int, roster: Roster) -> bool:  # noqa: A002
        """Return whether a client is invited to a round."""
        if isinstance(roster, Outline):  # which only a client has that is invited to all rounds
            return True
        if self.voters(round, roster) is roster.names:
            return client in roster.places
        return client in self._drawn["last"][3]

    def patient(self, pace: Sequence[float]) -> float:
        """Return how many seconds a round waits for others after its quorum, if quorums took so long lately.

        >>> Settings.of(RunConfig(clients=4, byzantine=1)).patient([0.5, 0.1, 0.2])
        0.4
        """
        return min(max(FLOOR, self.patience * median(pace)), self.deadline)

    def seconds(self, extension: int) -> float:
        """Return how long a round waits for votes, the first time and after so many extensions."""
        return min(self.deadline * 2.0 ** min(extension, 60), max(self.longest, self.deadline))

    def identity(
        self,
        manifest: bytes,
        base: bytes,
        layout: bytes = b"",
        meaning: Mapping[str, str] | None = None,
        *,
        keys: Mapping[str, bytes] | None = None,
        federator: bytes = b"",
    ) -> Identity:
        """Return the run's identity once its model and the public keys of its parties are known."""
        try:
            known = layout_from(layout) if layout else None
        except InvalidIdentity:  # the digest names the model all the same
            known = None
        roster = Roster.of(self.agreement, self.roster, keys, self.quorum)
        digests = manifest.hex(), base.hex()
        rest = known, self.keep_votes, dict(meaning or {}), federator
        return Identity(self.agreement, roster, *digests, *rest, semantics=self.semantics)

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each client of the roster that the run begins with."""
        return self.first.places

    def invitation(
        self, federator: bytes = b"", certificate: bytes = b"", *, client: str = "", admitted: Sequence[str] = ()
    ) -> Invitation:
        """Return what a client that asks is sent, with the federator's public key and the certificate of that key.

        `admitted` are those who were admitted since the run was founded: their places come after those of the others.
        """
        later = len(self.roster) + admitted.index(client) if client in admitted else -1
        values = {**self._shown, "place": self.places.get(client, later)}
        return Invitation(json.dumps(values, sort_keys=True).encode(), federator, certificate)

    @cached_property
    def _shown(self) -> dict[str, Any]:
        """What every invitation says."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in OWN}
        values["agreement"] = self.agreement.model_dump(mode="json")
        if self.parent is None:
            del values["parent"]
        else:
            values["parent"] = self.parent.fields()
        return values

    @classmethod
    def from_invitation(cls, invitation: Invitation) -> "Settings":
        """Return the settings in an invitation."""
        try:
            values = cast("dict[str, Any]", json.loads(invitation.settings))
            agreement = Agreement(**values.pop("agreement"))
            parent = Parent.of(values.pop("parent", None))
            for name in OWN:
                if name in values:
                    raise InvalidConfig(f"{name} is not for an invitation to say")
            key: dict[str, Any] = {"federator": invitation.federator, "certificate": invitation.certificate}
            return cls(agreement, (), **values, **key, parent=parent)
        except (Cyber0Error, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Refused(f"the federator's invitation cannot be used: {error}") from None


def _difference(found: Settings, asked: Settings, field: str) -> str:
    if field != "agreement":
        return f"{field} is {getattr(found, field)!r}, not {getattr(asked, field)!r}"
    ours, theirs = found.agreement.model_dump(), asked.agreement.model_dump()
    return ", ".join(f"{key} is {ours[key]!r}, not {theirs[key]!r}" for key in ours if ours[key] != theirs[key])
