"""What a federation is set up with: by whoever starts it, by the ledger that continues it, and as clients are told."""

import json
from dataclasses import dataclass
from typing import Any, cast

from cyber0.config import RunConfig, merged
from cyber0.errors import Cyber0Error, InvalidConfig, InvalidIdentity, Refused
from cyber0.protocol.identity import Identity, layout_from
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.machine import Founded, State, begin, resume
from cyber0.protocol.messages import Invitation
from cyber0.protocol.terms import Terms
from cyber0.tasks.batches import participants

__all__ = ["Setup"]


@dataclass(frozen=True)
class Setup:
    """A federation's run, its roster, how long a round waits, and how often weights are compared.

    >>> setup = Setup.of(RunConfig(clients=3, byzantine=1, directions=2))
    >>> setup.roster
    ('client-0', 'client-1', 'client-2')
    >>> Setup.invited(setup.invitation()) == setup
    True
    """

    config: RunConfig
    roster: tuple[str, ...]
    keep_votes: bool = True
    deadline: float = 60.0
    fingerprint_every: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.deadline < float("inf"):
            raise InvalidConfig(f"deadline = {self.deadline!r}: a round waits for more than 0 seconds")
        if type(self.fingerprint_every) is not int or self.fingerprint_every < 1:
            raise InvalidConfig(f"fingerprint_every = {self.fingerprint_every!r} must be at least 1")

    @classmethod
    def of(cls, config: RunConfig, roster: tuple[str, ...] | None = None, **options: Any) -> "Setup":
        """A setup by a recipe: what is of one machine or of a simulation is left out of it, or refused.

        >>> Setup.of(RunConfig(dropout=0.1))
        Traceback (most recent call last):
        cyber0.errors.InvalidConfig: dropout = 0.1 is of a simulation: in a federation clients fail by themselves
        """
        names = roster or tuple(f"client-{number}" for number in range(config.clients))
        if len(names) != config.clients:
            raise InvalidConfig(f"the roster names {len(names)} clients, but clients = {config.clients}")
        _refuse_simulated(config)
        return cls(config.model_copy(update={"data": None, "device": "auto", "engine": "batched"}), names, **options)

    @classmethod
    def resumed(cls, ledger: Ledger, **options: Any) -> "Setup":
        """The setup of the run in a ledger.

        >>> from cyber0.protocol.ledger import Memory
        >>> ledger, setup = Memory(), Setup.of(RunConfig(clients=3, byzantine=1))
        >>> ledger.found(setup.identity(bytes(32), bytes(32)))
        >>> Setup.resumed(ledger) == setup
        True
        """
        identity = ledger.identity
        return cls(identity.config, identity.roster, identity.keep_votes, **options)

    def identity(self, manifest: bytes, base: bytes, layout: bytes = b"") -> Identity:
        """The run's identity once its model is known."""
        try:
            known = layout_from(layout) if layout else None
        except InvalidIdentity:  # the digest names the model all the same
            known = None
        return Identity(self.config, self.roster, manifest.hex(), base.hex(), known, self.keep_votes)

    def voters(self, round: int) -> tuple[str, ...]:  # noqa: A002
        """Who is invited to a round, drawn by the seed: federator and clients come to the same names."""
        config = self.config
        chosen = participants(config.seed, round, config.clients, config.invited, 0.0)
        return tuple(self.roster[place] for place in map(int, chosen))

    @property
    def terms(self) -> Terms:
        """What the round machine is told."""
        config = self.config
        return Terms(
            self.roster,
            config.byzantine,
            config.plan,
            config.rule,
            config.rounds,
            identity=lambda manifest, base, layout: self.identity(manifest, base, layout).to_bytes(),
            deadline=self.deadline,
            invited=None if config.invited == config.clients else self.voters,
            fingerprint_every=self.fingerprint_every,
        )

    def state(self, ledger: Ledger) -> State:
        """The round machine where the ledger leaves it."""
        if not ledger.founded:
            return begin(self.terms)
        identity = ledger.identity
        founded = Founded(bytes.fromhex(identity.manifest), bytes.fromhex(identity.base), identity.to_bytes())
        return resume(self.terms, founded, ledger.head.rounds)

    def invitation(self) -> Invitation:
        """What a client that asks is told."""
        fields = {**self.__dict__, "config": self.config.model_dump(mode="json"), "roster": list(self.roster)}
        return Invitation(json.dumps(fields, sort_keys=True).encode())

    @classmethod
    def invited(cls, invitation: Invitation) -> "Setup":
        """The setup that an invitation tells of."""
        try:
            fields = cast("dict[str, Any]", json.loads(invitation.terms))
            config, roster = merged(fields.pop("config"), {}), tuple(map(str, fields.pop("roster")))
            return cls(config, roster, **fields)
        except (Cyber0Error, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Refused(f"the federator's invitation cannot be used: {error}") from None


def _refuse_simulated(config: RunConfig) -> None:
    if config.algorithm != "cyber0":
        raise InvalidConfig(f"algorithm = {config.algorithm!r}: a federation trains by cyber0")
    if config.dropout > 0:
        raise InvalidConfig(
            f"dropout = {config.dropout} is of a simulation: in a federation clients fail by themselves"
        )
    if config.attack != "none":
        raise InvalidConfig(
            f"attack = {config.attack!r} is of a simulation: a liar of a federation joins with --attack"
        )
