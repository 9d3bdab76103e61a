"""What a client consents to: the terms of a run in words, and limits of the client's own.

A federator chooses the run, not what it may cost the client's machine: what goes beyond a limit is refused before any
memory is allocated for it.
"""

from dataclasses import dataclass

from cyber0.errors import InvalidConfig, Refused
from cyber0.network.audits import detection
from cyber0.printable import many
from cyber0.protocol.codec import encode
from cyber0.protocol.messages import Committed, Vote
from cyber0.protocol.outline import Outline
from cyber0.protocol.promise import Promise
from cyber0.protocol.settings import Settings

__all__ = ["Limits", "terms"]

DIRECTIONS = 2**16  # that a client measures in a round, by default
ROUNDS = 10**6
SECONDS = 3600.0
CHEATS = (1, 10, 100)  # rounds


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may cost a client at most.

    Args:
        memory: GiB for model and data; by default what the machine has free.
        seconds: That a round may take, of the client's own work; one that takes longer is its last.
        directions: Directions that are measured in a round, over all local epochs.
        rounds: Of the run.

    >>> Limits(seconds=0)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: max seconds = 0: it must be above 0

    """

    memory: float | None = None
    seconds: float = SECONDS
    directions: int = DIRECTIONS
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        for name in ("memory", "seconds", "directions", "rounds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidConfig(f"max {name} = {value}: it must be above 0")

    @property
    def bytes(self) -> int | None:
        """The limit of memory in bytes."""
        return None if self.memory is None else int(self.memory * 2**30)

    def check(self, settings: Settings) -> None:
        """Refuse a run that measures along too many directions, or lasts too many rounds.

        >>> from cyber0.config import RunConfig
        >>> Limits().check(Settings.of(RunConfig(directions=1024, local_epochs=1000)))
        Traceback (most recent call last):
        cyber0.errors.Refused: directions = 1,024 x local_epochs = 1,000: a round would measure along 1,024,000 \
directions, and this client allows 65,536 (--max-directions)
        """
        agreement = settings.agreement
        measured = agreement.directions * agreement.local_epochs
        if measured > self.directions:
            raise Refused(
                f"directions = {agreement.directions:,} x local_epochs = {agreement.local_epochs:,}: a round would "
                f"measure along {measured:,} directions, and this client allows {self.directions:,} (--max-directions)"
            )
        self.check_rounds(agreement.rounds)

    def check_rounds(self, rounds: int) -> None:
        """Refuse a run of so many rounds, which may have been extended.

        >>> Limits(rounds=100).check_rounds(101)
        Traceback (most recent call last):
        cyber0.errors.Refused: rounds = 101: this client takes part in at most 100 (--max-rounds)
        """
        if rounds > self.rounds:
            raise Refused(f"rounds = {rounds:,}: this client takes part in at most {self.rounds:,} (--max-rounds)")

    def check_seconds(self, round: int, seconds: float) -> None:  # noqa: A002
        """Stop after a round that has taken too long.

        >>> Limits(seconds=60).check_seconds(7, 90.0)
        Traceback (most recent call last):
        cyber0.errors.Refused: round 7 took 90.0 seconds on this machine, and this client allows 60 (--max-seconds)
        """
        if seconds > self.seconds:
            raise Refused(
                f"round {round} took {seconds:,.1f} seconds on this machine, and this client allows "
                f"{self.seconds:,g} (--max-seconds)"
            )

    def check_batch(self, settings: Settings, free: int | None) -> None:
        """Refuse a batch whose samples could not even be numbered in the memory that there is, before data are read.

        Args:
            settings: Of the run.
            free: Bytes on this machine; None where the system does not tell.

        >>> from cyber0.config import RunConfig
        >>> Limits(memory=4).check_batch(Settings.of(RunConfig(batch=2_000_000_000)), free=2**40)
        Traceback (most recent call last):
        cyber0.errors.Refused: batch = 2,000,000,000 x local_epochs = 1: the numbers of a round's samples alone need \
89.4 GiB, and this client allows 4.0 GiB (--max-memory)

        """
        from cyber0.tasks.memory import DRAWN, readable

        agreement = settings.agreement
        need = DRAWN * agreement.batch * agreement.local_epochs
        most = min((each for each in (free, self.bytes) if each is not None), default=need)
        if need > most:
            raise Refused(
                f"batch = {agreement.batch:,} x local_epochs = {agreement.local_epochs:,}: the numbers of a round's "
                f"samples alone need {readable(need)}, and this client allows {readable(most)} (--max-memory)"
            )


def terms(
    settings: Settings,
    parameters: int | None,
    audit: float,
    *,
    secure: bool,
    own_code: bool = False,
    promise: Promise | None = None,
) -> list[str]:
    """Return the terms of a run in lines, as a client sees them before it votes.

    Args:
        settings: Of the run.
        parameters: How many its model has, if that is known.
        audit: The fraction of rounds that the client audits.
        secure: Whether what is sent is encrypted.
        own_code: Whether a rule that is code may be imported to learn its quorum.
        promise: What the client promises about its privacy, if anything.

    >>> from cyber0.config import RunConfig
    >>> settings = Settings.of(RunConfig(clients=10, byzantine=2, rule="cwtm", rounds=100))
    >>> for line in terms(settings, 7850, 0.05, secure=True):
    ...     print(line)
    the terms of this run:
      task          mnist, 7,850 parameters
      step          64 directions, sphere, 1 local epoch, batch 64, mu 0.001, lr 0.01, constant, plain steps
      rounds        100, about 694 bytes each, 69,400 in all
      decided by    cwtm, of 10 clients 2 may lie, 7 votes decide a round
      finality      a commit is final once 7 of 10 invited clients have voted after it: the quorum is 7; for clients \
that check every round, and this one checks only a part of the rounds
      audits        0.05 of the rounds: cheating in 1 round is caught with probability 5.0%, in 10 40.1%, in 100 99.4%
      privacy       WARNING: votes are readable by the federator, by every client that audits and by whoever has the \
ledger, and are not private

    """
    named = {
        "task": _task(settings, parameters),
        "step": _step(settings),
        "rounds": _cost(settings),
        **({} if settings.parent is None else {"parent": settings.parent.text}),
        "decided by": _decision(settings, own_code),
        "finality": _finality(settings, audit, own_code),
        "audits": _audits(audit, settings.keep_votes),
        "privacy": _privacy(settings, secure, promise),
    }
    return ["the terms of this run:", *(f"  {name:13} {text}" for name, text in named.items())]


def _task(settings: Settings, parameters: int | None) -> str:
    agreement = settings.agreement
    model = [] if agreement.model is None else [f"the model {agreement.model}"]
    size = [] if parameters is None else [f"{parameters:,} parameters"]
    part = [] if agreement.train == "all" else [f"of which {agreement.train} is trained"]
    blocks = [] if agreement.blocks == 1 else [f"one of {agreement.blocks:,} blocks in each round"]
    objective = [] if agreement.objective == "plain" else [f"objective {agreement.objective}"]
    precision = [] if agreement.precision == "float32" else [agreement.precision]
    return ", ".join([agreement.task, *model, *part, *size, *blocks, *objective, *precision])


def _step(settings: Settings) -> str:
    agreement = settings.agreement
    epochs = f"{agreement.local_epochs:,} local epoch"
    if agreement.local_epochs > 1:
        epochs += f"s, {agreement.scheme}"
    batch = f"batch {agreement.batch:,}" if agreement.batch else "all samples"
    return (
        f"{agreement.directions:,} directions, {agreement.family}, {epochs}, {batch}, "
        f"mu {agreement.mu:g}, lr {agreement.lr:g}, {agreement.schedule}, {agreement.step_rule} steps"
    )


def _cost(settings: Settings) -> str:
    rounds, scalars = settings.agreement.rounds, bytes(settings.vote_bytes)
    each = len(encode(Vote(rounds, scalars, None, bytes(64))))
    each += len(encode(Committed(rounds, scalars, bytes(32), bytes(64))))
    return f"{rounds:,}, about {each:,} bytes each, {rounds * each:,} in all"


def _decision(settings: Settings, own_code: bool) -> str:
    agreement, quorum = settings.agreement, _quorum(settings, own_code)
    votes = "as many votes decide a round as the federator says"
    if quorum is not None:
        votes = f"{many(quorum, 'vote decides', 'votes decide')} a round"
    invited = agreement.invited_of(agreement.clients)
    drawn = "" if invited == agreement.clients else f", {invited} are invited to each round"
    return f"{agreement.rule}, of {agreement.clients:,} clients {agreement.byzantine:,} may lie{drawn}, {votes}"


def _quorum(settings: Settings, own_code: bool) -> int | None:
    """Return how many votes decide a round; None if only code that is not to be run could tell."""
    if ":" in settings.agreement.rule and not own_code:
        return settings.agreement.quorum
    return settings.quorum


def _finality(settings: Settings, audit: float, own_code: bool) -> str:
    quorum = _quorum(settings, own_code)
    if not settings.keep_votes:
        return "none that this client can check: the federator keeps no votes"
    if quorum is None:
        return "not known: only the rule's code could tell how many votes decide a round"
    agreement = settings.agreement
    outline = Outline((), (), agreement.byzantine, quorum, agreement.rounds, many=agreement.clients)
    once = settings.finality(outline)
    checks = "every round" if audit >= 1 else "only a part of the rounds" if audit > 0 else "none"
    return f"{once}; for clients that check every round, and this one checks {checks}"


def _audits(audit: float, keep_votes: bool) -> str:
    if audit <= 0 or not keep_votes:
        return "none: this client believes the federator what it makes of the votes"
    if audit >= 1:
        return "every round, before the next vote: whatever the federator signs and the rules do not give is caught"
    first, *more = (f"{_number(rounds)} {detection(audit, rounds):.1%}" for rounds in CHEATS)
    first = first.replace("1 round ", "1 round is caught with probability ")
    return f"{audit:g} of the rounds: cheating in {', in '.join([first, *more])}"


def _number(rounds: int) -> str:
    return "1 round" if rounds == 1 else str(rounds)


def _privacy(settings: Settings, secure: bool, promise: Promise | None) -> str:
    if promise is not None:
        return f"votes are noised before they leave ({promise.text}), against whoever reads them"
    network = "" if secure else "; without TLS also by whoever sees the network"
    if settings.keep_votes:
        return (
            "WARNING: votes are readable by the federator, by every client that audits and by whoever has the ledger, "
            f"and are not private{network}"
        )
    return f"votes are readable by the federator, which keeps only their digests, and are not private{network}"
