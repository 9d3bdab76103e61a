"""Whether a ledger is what it claims to be: its chains, its votes, every aggregate, its seals.

What is found is a sentence about the first round that does not fit: after it, nothing in the chain can.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from cyber0 import aggregation
from cyber0.errors import Cyber0Error
from cyber0.protocol.chain import Head, Seal, advance, genesis
from cyber0.protocol.decide import admissible, decide
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Ledger, Written
from cyber0.protocol.records import Decision, Verdict, from_wire, to_wire
from cyber0.protocol.signing import PublicKey, is_signed

__all__ = ["Report", "verify"]


@dataclass
class Report:
    """What was checked of a ledger, and what was found.

    >>> Report(Head(0, bytes(32), bytes(32))).sound
    True
    """

    head: Head
    aggregates: int = 0  # rounds whose scalars were computed again from their votes
    signed: int | None = None  # rounds that the signer has signed
    findings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def sound(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify(
    ledger: Ledger,
    *,
    head: bytes | None = None,
    signer: PublicKey | None = None,
    own_rule: bool = False,
    watch: Callable[[int], None] = lambda _: None,
) -> Report:
    """Check a ledger from its identity to its end, and against a known head or a signer's key where one is given.

    A rule that is code of somebody else (`package.module:rule`) runs only where `own_rule` says that it may.

    >>> import numpy as np
    >>> from cyber0.config import Agreement
    >>> from cyber0.parameters import Parameters
    >>> from cyber0.protocol.ledger import Memory
    >>> from cyber0.protocol.records import Ballot
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> ledger = Memory()
    >>> ledger.found(Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros))
    >>> head = ledger.append(Decision(0, to_wire([[1.0]]), (Ballot.of("ann", "counted", to_wire([[2.0]])),)))
    >>> verify(ledger).findings
    ['round 0: its scalars are not what cwtm makes of the counted votes']
    """
    report = Report(genesis(ledger.identity.digest))
    seals = ledger.seals  # first: a federator may append more meanwhile
    heads = _check_rounds(report, ledger, own_rule, watch)
    report.head = heads[-1]
    if report.sound:
        _check_seals(report, seals, heads)
        _check_signer(report, ledger.identity, seals, signer)
        _check_known(report, heads, head)
        _note(report, ledger, own_rule)
    return report


def _check_rounds(report: Report, ledger: Ledger, own_rule: bool, watch: Callable[[int], None]) -> list[Head]:
    """The heads after 0, 1, ... rounds, up to the first that does not fit."""
    imported = ledger.imported
    heads = [replace(report.head, votes=None) if imported else report.head]
    for round, problem in ledger.faults():  # noqa: A001
        report.findings.append(f"round {round}: it {problem}")
        return heads
    judge = _Judge(ledger.identity, ledger.imported, own_rule)
    for written in ledger.written():
        try:
            heads.append(judge.take(heads[-1], written))
        except _Unfit as unfit:
            report.findings.append(f"round {heads[-1].rounds}: {unfit}")
            return heads
        report.aggregates = judge.aggregates
        watch(len(heads) - 1)
    if not 0 <= imported < len(heads):
        report.findings.append(f"round {len(heads) - 1}: it is missing, though {imported} rounds were imported")
    return heads


class _Unfit(Exception):
    """Why a round does not fit."""


class _Judge:
    def __init__(self, identity: Identity, imported: int, own_rule: bool) -> None:
        self.identity, self.imported, self.aggregates = identity, imported, 0
        self.places = {client: place for place, client in enumerate(identity.roster)}
        runs = own_rule or not _is_own(identity)
        self.rule = aggregation.get_rule(identity.agreement.rule) if runs else None
        self.memory = None if self.rule is None else aggregation.begin(self.rule)

    def take(self, head: Head, written: Written) -> Head:
        """The head after a round that fits; else `_Unfit`."""
        decision = written.decision
        if decision.round != head.rounds:
            raise _Unfit("it is missing")
        following = advance(head, decision)
        if written.commit != following.commit or len(decision.scalars) != 4 * self.identity.plan.scalars:
            raise _Unfit("its scalars do not fit the chain")
        if decision.round < self.imported:
            following = self._without_votes(following, written)
        elif written.votes != following.votes:
            raise _Unfit("its votes do not fit the chain")
        else:
            self._judge(decision)
        self._remember(decision.scalars)
        return following

    def _remember(self, scalars: bytes) -> None:
        """Give a rule with memory the round's commit, which is all that its memory may depend on."""
        if self.rule is not None and isinstance(self.rule.rule, aggregation.RuleWithMemory):
            try:
                self.memory = aggregation.after(self.rule, self.memory, from_wire(scalars, self.identity.plan.rows))
            except Cyber0Error as error:
                raise _Unfit(f"what follows it cannot be aggregated: {error}") from None

    def _without_votes(self, following: Head, written: Written) -> Head:
        last = following.rounds == self.imported
        if written.decision.ballots or (written.votes is not None and not last):
            raise _Unfit("it has votes, though it is said to be imported without")
        return replace(following, votes=written.votes)

    def _judge(self, decision: Decision) -> None:
        places = [self.places.get(ballot.client, -1) for ballot in decision.ballots]
        if -1 in places:
            raise _Unfit(f"{decision.ballots[places.index(-1)].client!r} is not in the roster")
        if places != sorted(places):
            raise _Unfit("its ballots are not in the roster's order")
        counted = [ballot for ballot in decision.ballots if ballot.verdict == "counted"]
        if len({ballot.client for ballot in counted}) < len(counted):
            raise _Unfit("a client is counted twice")
        if not {ballot.verdict for ballot in decision.ballots} <= set(get_args(Verdict)):
            raise _Unfit("a verdict is none that there is")
        if len(counted) < (least := 2 * self.identity.agreement.byzantine + 1):
            raise _Unfit(f"{len(counted)} votes are counted: at least {least} must be")
        values = [ballot.values for ballot in counted if ballot.values is not None]
        if self.identity.keep_votes and len(values) < len(counted):
            raise _Unfit("the values of a counted vote are missing, though this run keeps them")
        if len(values) == len(counted) and self.rule is not None:
            self._compute(self.rule, decision.scalars, values)

    def _compute(self, rule: aggregation.Composition, scalars: bytes, values: list[bytes]) -> None:
        if any(len(value) != len(scalars) for value in values):
            raise _Unfit("a vote of the wrong length is counted")
        votes = np.stack([from_wire(value, self.identity.plan.rows) for value in values], axis=1)
        if not admissible(votes).all():
            raise _Unfit("a vote that is not finite is counted")
        try:
            decided = decide(rule, votes, self.identity.agreement.byzantine, self.memory)
        except Cyber0Error as error:
            raise _Unfit(f"its votes cannot be aggregated: {error}") from None
        if to_wire(decided) != scalars:
            raise _Unfit(f"its scalars are not what {self.identity.agreement.rule} makes of the counted votes")
        self.aggregates += 1


def _is_own(identity: Identity) -> bool:
    """Whether the rule is code that is not of this package."""
    return ":" in identity.agreement.rule


def _check_seals(report: Report, seals: list[Seal], heads: list[Head]) -> None:
    for seal in seals:
        if not 0 <= seal.rounds < len(heads):
            report.findings.append(
                f"round {len(heads) - 1}: it is missing, for a seal speaks of {seal.rounds} rounds: the tail is cut off"
            )
        elif seal.commit != heads[seal.rounds].commit or heads[seal.rounds].votes not in (None, seal.votes):
            report.findings.append(f"round {max(seal.rounds - 1, 0)}: the seal after it speaks of another history")


def _check_signer(report: Report, identity: Identity, seals: list[Seal], signer: PublicKey | None) -> None:
    if signer is None:
        return
    for seal in seals:
        if is_signed(seal, identity.digest, signer):
            report.signed = seal.rounds
        elif seal.signature is not None:
            report.findings.append(f"round {max(seal.rounds - 1, 0)}: the seal after it is not signed by this signer")
    if report.signed is None and report.sound:
        report.findings.append("nothing in it is signed: it cannot be told from another history by this signer")


def _check_known(report: Report, heads: list[Head], known: bytes | None) -> None:
    if known is None:
        return
    for head in reversed(heads):
        if known in (head.commit, head.votes):
            after = report.head.rounds - head.rounds
            report.notes.append(
                f"the known head is that after {head.rounds} rounds" + (f"; {after} follow" * (after > 0))
            )
            return
    report.findings.append(f"the known head {known.hex()} is not in its chain: the tail was rewritten or cut off")


def _note(report: Report, ledger: Ledger, own_rule: bool) -> None:
    unchecked = report.head.rounds - report.aggregates
    if ledger.imported:
        report.notes.append(f"{ledger.imported} rounds were imported without their votes")
    if unchecked and _is_own(ledger.identity) and not own_rule:
        report.notes.append(f"rule {ledger.identity.agreement.rule} is code of somebody: it was not run")
    if unchecked:
        report.notes.append(f"the aggregates of {unchecked} rounds were not checked: their votes' values are not here")
    if report.signed is not None and report.signed < report.head.rounds:
        report.notes.append(f"{report.head.rounds - report.signed} rounds came after the last signature")
