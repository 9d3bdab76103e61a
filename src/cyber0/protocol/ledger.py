"""The record of a run: its identity, then every round with its votes, each chained to the one before by hashes.

A ledger of version 1 is read, verified and replayed; rounds are appended in version 2 only.

`Ledger` is the interface; `Memory` keeps one in memory, `cyber0.protocol.sqlite.File` on disk.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from cyber0.errors import InvalidLedger
from cyber0.protocol.chain import Anchor, Head, Seal, advance, commit_hashes, genesis
from cyber0.protocol.identity import Identity
from cyber0.protocol.records import Ballot, Decision, Promised
from cyber0.protocol.roster import Change, Roster

__all__ = ["ExportedRun", "Ledger", "Memory", "Report", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """A round as a ledger holds it: what was decided, the hash of the commits and the link after it, its signature.

    `ballots` is the hash of its ballots, where that is kept beside them.
    """

    decision: Decision
    commit: bytes
    link: bytes | None
    signature: bytes = b""
    ballots: bytes = b""


@dataclass(frozen=True, slots=True)
class Linked:
    """What the link after a round is made of, without its ballots: these are many, and their hash is enough.

    `signature` is the federator's, of the link; `lost` says whether the ballots are lost.
    """

    round: int
    scalars: bytes
    ballots: bytes
    changes: tuple[Change, ...]
    signature: bytes
    lost: bool = False

    @classmethod
    def of(cls, written: Written) -> "Linked":
        """Return the same of a round with its ballots."""
        decision = written.decision
        content = decision.scalars, decision.ballots_hash, decision.changes
        return cls(decision.round, *content, written.signature, bool(decision.lost))


@dataclass(frozen=True, slots=True)
class Report:
    """What a client signs after the last round: the rounds it holds, and the fingerprint of its weights."""

    client: str
    rounds: int
    fingerprint: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run without its votes: all that is needed to rebuild its model, or to continue it.

    Args:
        identity: Of the run.
        scalars: Those of all rounds, one after another.
        link: The last link of its chain, if it is known.
        seal: The last seal.
        anchor: What the last link was made of, by which the commits fit it.
        signature: The federator's, of the last link.
        roster: The roster after the last round, if it is not the first one any more.
        reports: What clients signed at the end.
        certificates: Of the federator and of clients, in DER.

    >>> import numpy as np
    >>> from cyber0.config import Agreement
    >>> from cyber0.parameters import Parameters
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> identity = Identity.of(Agreement(clients=1, byzantine=0, directions=2), ["ann"], zeros)
    >>> run = ExportedRun(identity, scalars=bytes(3 * 8))
    >>> run.rounds, run.head.rounds
    (3, 3)

    """

    identity: Identity
    scalars: bytes
    link: bytes | None = None
    seal: Seal | None = None
    anchor: Anchor | None = None
    signature: bytes = b""
    roster: Roster | None = None
    reports: tuple[Report, ...] = ()
    certificates: tuple[bytes, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return len(self.scalars) // (4 * self.identity.plan.scalars)

    @property
    def hashes(self) -> list[bytes]:
        """The chain of commits: a hash for each round."""
        return commit_hashes(self.identity.digest, self.scalars, 4 * self.identity.plan.scalars)

    @property
    def head(self) -> Head:
        """Its last round and hashes."""
        return Head(self.rounds, self.hashes[-1] if self.rounds else self.identity.digest, self.link)


class Ledger(Protocol):
    """The interface of a ledger. An appended round is kept for good when `append` returns."""

    @property
    def identity(self) -> Identity:
        """The run's identity; an error if no run was begun."""
        ...

    @property
    def founded(self) -> bool:
        """Whether there is an identity."""
        ...

    @property
    def imported(self) -> int:
        """How many rounds came without their votes."""
        ...

    @property
    def head(self) -> Head:
        """The number of rounds, the last hash of the commits, and the last link."""
        ...

    @property
    def roster(self) -> Roster:
        """The roster of the next round."""
        ...

    def found(self, identity: Identity) -> None:
        """Begin a run; a ledger holds one run."""
        ...

    def adopt(self, run: ExportedRun) -> None:
        """Begin with a run that has been played elsewhere, without its votes."""
        ...

    def append(self, decision: Decision, signature: bytes = b"") -> Head:
        """Write the next round, with the signature of its link, durably; any other round is refused."""
        ...

    def append_all(self, decisions: Iterable[tuple[Decision, bytes]]) -> Head:
        """Write the next rounds with their signatures, all of them or none."""
        ...

    @property
    def lost(self) -> int:
        """How many rounds there were when the votes of some were lost last; 0 if none are."""
        ...

    def decisions(self, start: int = 0, stop: int | None = None) -> Iterator[Decision]:
        """Yield the rounds from `start` to `stop - 1`."""
        ...

    def written(self, start: int = 0, stop: int | None = None) -> Iterator[Written]:
        """Yield the same rounds with their hashes as they were written, which may be wrong."""
        ...

    def linked(self, start: int = 0, stop: int | None = None) -> Iterator[Linked]:
        """Yield what the links after the same rounds are made of, in little time however many ballots they have."""
        ...

    def commits(self, start: int = 0, stop: int | None = None) -> bytes:
        """Return the scalars of the rounds from `start` to `stop - 1`, one after another."""
        ...

    def changed(self) -> list[tuple[int, tuple[Change, ...]]]:
        """Return the rounds with which changes of the roster are written, and those changes."""
        ...

    def head_at(self, rounds: int) -> Head:
        """Return the head after so many rounds."""
        ...

    def seal(self, seal: Seal) -> None:
        """Write a seal; another one on the same head is replaced."""
        ...

    @property
    def seals(self) -> list[Seal]:
        """The seals, by rounds."""
        ...

    def report(self, report: Report) -> None:
        """Write what a client signed at the end; another one of the same client is replaced."""
        ...

    @property
    def reports(self) -> list[Report]:
        """What clients signed at the end."""
        ...

    def certify(self, *certificates: bytes) -> None:
        """Keep certificates, in DER, by which the authority of keys can be checked."""
        ...

    @property
    def certificates(self) -> list[bytes]:
        """The certificates, in DER."""
        ...

    def promise(self, promised: Promised) -> None:
        """Keep what a client has promised, unless that is what it promised last."""
        ...

    @property
    def promises(self) -> list[Promised]:
        """What clients have promised about their privacy, in the order of rounds."""
        ...

    @property
    def adopted(self) -> Roster:
        """The roster after the rounds that were imported; the first one where none were."""
        ...

    @property
    def anchor(self) -> Anchor | None:
        """Of a run that was imported: what the link after the last imported round was made of, if that is known."""
        ...

    def faults(self) -> list[tuple[int, str]]:
        """Return the rounds whose rows no federator would have written so, and why; they were changed afterwards."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


def prepared(identity: Identity, head: Head, decision: Decision) -> Decision:
    """Return a decision as it is to be written; one that is not the next, or does not fit the run, is refused."""
    if decision.round != head.rounds:
        raise InvalidLedger(f"round {decision.round} cannot be appended: the next one is {head.rounds}")
    if identity.protocol == 1:
        raise InvalidLedger("this run is of version 1: it can be verified, replayed and exported, but not continued")
    if head.link is None:
        raise InvalidLedger("this run was imported without the last link of its chain: it cannot be continued")
    if len(decision.scalars) != 4 * identity.plan.scalars:
        raise InvalidLedger(
            f"round {decision.round} has {len(decision.scalars)} bytes of scalars, not {4 * identity.plan.scalars}"
        )
    if identity.keep_votes:
        return decision
    return replace(decision, ballots=tuple(map(Ballot.without_values, decision.ballots)))


def check_seal(seal: Seal, head: Head) -> None:
    """Refuse a seal on another head."""
    if seal.commit != head.commit or head.link not in (None, seal.link):
        raise InvalidLedger(f"the seal on {seal.rounds} rounds does not match the ledger")


class Memory:
    """A ledger in memory, which is lost with the process.

    >>> import numpy as np
    >>> from cyber0.config import Agreement
    >>> from cyber0.parameters import Parameters
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> ledger = Memory()
    >>> ledger.found(Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros))
    >>> ledger.append(Decision(0, bytes(4), ())).rounds
    1
    """

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._imported = 0
        self._written: list[Written] = []
        self._seals: dict[int, Seal] = {}
        self._roster: Roster | None = None
        self._adopted: Roster | None = None
        self._anchor: Anchor | None = None
        self._reports: dict[str, Report] = {}
        self._certificates: dict[bytes, None] = {}
        self._promises: list[Promised] = []

    @property
    def identity(self) -> Identity:
        """As in `Ledger`."""
        if self._identity is None:
            raise InvalidLedger("the ledger holds no run yet")
        return self._identity

    @property
    def founded(self) -> bool:
        """As in `Ledger`."""
        return self._identity is not None

    @property
    def imported(self) -> int:
        """As in `Ledger`."""
        return self._imported

    @property
    def head(self) -> Head:
        """As in `Ledger`."""
        return self.head_at(len(self._written))

    @property
    def roster(self) -> Roster:
        """As in `Ledger`."""
        return self._roster or self.identity.roster

    def found(self, identity: Identity) -> None:
        """As in `Ledger`."""
        if self._identity is not None:
            raise InvalidLedger("the ledger holds a run already")
        self._identity = identity

    def adopt(self, run: ExportedRun) -> None:
        """As in `Ledger`."""
        self.found(run.identity)
        self._written.extend(imported_rounds(run))
        self._imported, self._anchor = run.rounds, run.anchor
        self._roster = self._adopted = run.roster
        self._reports = {report.client: report for report in run.reports}
        self._certificates = dict.fromkeys(run.certificates)
        if run.seal is not None:
            self._seals[run.seal.rounds] = run.seal

    def append(self, decision: Decision, signature: bytes = b"") -> Head:
        """As in `Ledger`."""
        decision = prepared(self.identity, self.head, decision)
        roster = self.roster.after(decision.changes)
        head = advance(self.head, decision, roster)
        self._written.append(Written(decision, head.commit, head.link, signature, decision.ballots_hash))
        self._roster = roster
        return head

    def append_all(self, decisions: Iterable[tuple[Decision, bytes]]) -> Head:
        """As in `Ledger`."""
        for decision, signature in decisions:
            self.append(decision, signature)
        return self.head

    @property
    def lost(self) -> int:
        """As in `Ledger`."""
        return max((written.decision.round + 1 for written in self._written if written.decision.lost), default=0)

    def decisions(self, start: int = 0, stop: int | None = None) -> Iterator[Decision]:
        """As in `Ledger`."""
        return (written.decision for written in self.written(start, stop))

    def written(self, start: int = 0, stop: int | None = None) -> Iterator[Written]:
        """As in `Ledger`."""
        return iter(self._written[start:stop])

    def linked(self, start: int = 0, stop: int | None = None) -> Iterator[Linked]:
        """As in `Ledger`."""
        return map(Linked.of, self.written(start, stop))

    def commits(self, start: int = 0, stop: int | None = None) -> bytes:
        """As in `Ledger`."""
        return b"".join(decision.scalars for decision in self.decisions(start, stop))

    def changed(self) -> list[tuple[int, tuple[Change, ...]]]:
        """As in `Ledger`."""
        return [(decision.round, decision.changes) for decision in self.decisions() if decision.changes]

    def head_at(self, rounds: int) -> Head:
        """As in `Ledger`."""
        if not 0 <= rounds <= len(self._written):
            raise InvalidLedger(f"round {rounds}: the ledger has {len(self._written)} rounds")
        if rounds == 0:
            return genesis(self.identity.digest)
        last = self._written[rounds - 1]
        return Head(rounds, last.commit, last.link)

    def seal(self, seal: Seal) -> None:
        """As in `Ledger`."""
        check_seal(seal, self.head_at(seal.rounds))
        self._seals[seal.rounds] = seal

    @property
    def seals(self) -> list[Seal]:
        """As in `Ledger`."""
        return [self._seals[rounds] for rounds in sorted(self._seals)]

    def report(self, report: Report) -> None:
        """As in `Ledger`."""
        self._reports[report.client] = report

    @property
    def reports(self) -> list[Report]:
        """As in `Ledger`."""
        return [self._reports[client] for client in sorted(self._reports)]

    def certify(self, *certificates: bytes) -> None:
        """As in `Ledger`."""
        self._certificates.update(dict.fromkeys(certificates))

    @property
    def certificates(self) -> list[bytes]:
        """As in `Ledger`."""
        return list(self._certificates)

    def promise(self, promised: Promised) -> None:
        """As in `Ledger`."""
        if is_news(promised, self.promises):
            self._promises.append(promised)

    @property
    def promises(self) -> list[Promised]:
        """As in `Ledger`."""
        return sorted(self._promises, key=lambda each: (each.round, each.client))

    @property
    def adopted(self) -> Roster:
        """As in `Ledger`."""
        return self._adopted or self.identity.roster

    @property
    def anchor(self) -> Anchor | None:
        """As in `Ledger`."""
        return self._anchor

    def faults(self) -> list[tuple[int, str]]:
        """As in `Ledger`."""
        return []

    def close(self) -> None:
        """As in `Ledger`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def imported_rounds(run: ExportedRun) -> Iterator[Written]:
    """Yield the rounds of a run as a ledger writes them; only the last has a link, and its signature."""
    width, last = 4 * run.identity.plan.scalars, run.rounds - 1
    for round, commit in enumerate(run.hashes):  # noqa: A001
        decision = Decision(round, run.scalars[round * width : (round + 1) * width], ())
        if round == last:
            yield Written(decision, commit, run.link, run.signature)
        else:
            yield Written(decision, commit, None)


def is_news(promised: Promised, known: list[Promised]) -> bool:
    """Return whether a client promises something else than it did last."""
    last = next((each for each in reversed(known) if each.client == promised.client), None)
    return last is None or last.promise != promised.promise
