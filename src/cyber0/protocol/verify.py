"""Verify a ledger: its chains, its votes, every aggregate, its seals.

A finding is a sentence about the first round that is wrong; the rounds after it cannot match the chain either.
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
    """What was checked of a ledger, and what is wrong with it."""

    head: Head
    aggregates: int = 0  # rounds whose scalars were computed again from their votes
    signed: int | None = None  # rounds that the signer has signed
    findings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify(
    ledger: Ledger,
    *,
    head: bytes | None = None,
    signer: PublicKey | None = None,
    own_rule: bool = False,
    watch: Callable[[int], None] = lambda _: None,
) -> Report:
    """Check a ledger from its identity to its end, and report what was checked and what is wrong.

    Args:
        ledger: What to check.
        head: A hash that must be in one of its chains.
        signer: The key that must have signed it.
        own_rule: Whether a rule that is given as `package.module:rule` may be imported and run.
        watch: A function that is called with the number of rounds checked so far.

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
    """Return the heads after 0, 1, ... rounds, up to the first round that is wrong."""
    imported = ledger.imported
    heads = [replace(report.head, votes=None) if imported else report.head]
    for round, problem in ledger.faults():  # noqa: A001
        report.findings.append(f"round {round}: it {problem}")
        return heads
    checker = _Checker(ledger.identity, ledger.imported, own_rule)
    for written in ledger.written():
        try:
            heads.append(checker.check(heads[-1], written))
        except _Wrong as wrong:
            report.findings.append(f"round {heads[-1].rounds}: {wrong}")
            return heads
        report.aggregates = checker.aggregates
        watch(len(heads) - 1)
    if not 0 <= imported < len(heads):
        report.findings.append(f"round {len(heads) - 1}: it is missing, though {imported} rounds were imported")
    return heads


class _Wrong(Exception):
    """What is wrong with a round."""


class _Checker:
    def __init__(self, identity: Identity, imported: int, own_rule: bool) -> None:
        self.identity, self.imported, self.aggregates = identity, imported, 0
        self.places = {client: place for place, client in enumerate(identity.roster)}
        runs = own_rule or not _is_own(identity)
        self.rule = aggregation.get_rule(identity.agreement.rule) if runs else None
        self.memory = None if self.rule is None else aggregation.begin(self.rule)

    def check(self, head: Head, written: Written) -> Head:
        """Return the head after a round; raise _Wrong if something is wrong with it."""
        decision = written.decision
        if decision.round != head.rounds:
            raise _Wrong("it is missing")
        following = advance(head, decision)
        if written.commit != following.commit or len(decision.scalars) != 4 * self.identity.plan.scalars:
            raise _Wrong("its scalars do not match the chain")
        if decision.round < self.imported:
            following = self._without_votes(following, written)
        elif written.votes != following.votes:
            raise _Wrong("its votes do not match the chain")
        else:
            self._check_ballots(decision)
        self._remember(decision.scalars)
        return following

    def _remember(self, scalars: bytes) -> None:
        """Give a rule with memory the round's commit, which is all that its memory may depend on."""
        if self.rule is not None and isinstance(self.rule.rule, aggregation.RuleWithMemory):
            try:
                self.memory = aggregation.after(self.rule, self.memory, from_wire(scalars, self.identity.plan.rows))
            except Cyber0Error as error:
                raise _Wrong(f"what follows it cannot be aggregated: {error}") from None

    def _without_votes(self, following: Head, written: Written) -> Head:
        last = following.rounds == self.imported
        if written.decision.ballots or (written.votes is not None and not last):
            raise _Wrong("it has votes, though it is recorded as imported without them")
        return replace(following, votes=written.votes)

    def _check_ballots(self, decision: Decision) -> None:
        places = [self.places.get(ballot.client, -1) for ballot in decision.ballots]
        if -1 in places:
            raise _Wrong(f"{decision.ballots[places.index(-1)].client!r} is not on the roster")
        if places != sorted(places):
            raise _Wrong("its ballots are not in the roster's order")
        counted = [ballot for ballot in decision.ballots if ballot.verdict == "counted"]
        if len({ballot.client for ballot in counted}) < len(counted):
            raise _Wrong("a client is counted twice")
        if not {ballot.verdict for ballot in decision.ballots} <= set(get_args(Verdict)):
            raise _Wrong(f"a ballot has an unknown verdict: the verdicts are {', '.join(get_args(Verdict))}")
        if len(counted) < (least := 2 * self.identity.agreement.byzantine + 1):
            raise _Wrong(f"{len(counted)} votes are counted: at least {least} must be")
        values = [ballot.values for ballot in counted if ballot.values is not None]
        if self.identity.keep_votes and len(values) < len(counted):
            raise _Wrong("the values of a counted vote are missing, though this run keeps them")
        if len(values) == len(counted) and self.rule is not None:
            self._check_aggregate(self.rule, decision.scalars, values)

    def _check_aggregate(self, rule: aggregation.Composition, scalars: bytes, values: list[bytes]) -> None:
        if any(len(value) != len(scalars) for value in values):
            raise _Wrong("a vote of the wrong length is counted")
        votes = np.stack([from_wire(value, self.identity.plan.rows) for value in values], axis=1)
        if not admissible(votes).all():
            raise _Wrong("a vote that is not finite is counted")
        try:
            decided = decide(rule, votes, self.identity.agreement.byzantine, self.memory)
        except Cyber0Error as error:
            raise _Wrong(f"its votes cannot be aggregated: {error}") from None
        if to_wire(decided) != scalars:
            raise _Wrong(f"its scalars are not what {self.identity.agreement.rule} makes of the counted votes")
        self.aggregates += 1


def _is_own(identity: Identity) -> bool:
    """Return whether the rule is code of the user's."""
    return ":" in identity.agreement.rule


def _check_seals(report: Report, seals: list[Seal], heads: list[Head]) -> None:
    for seal in seals:
        if not 0 <= seal.rounds < len(heads):
            report.findings.append(
                f"round {len(heads) - 1}: it is missing, "
                f"for there is a seal on {seal.rounds} rounds: the tail was cut off"
            )
        elif seal.commit != heads[seal.rounds].commit or heads[seal.rounds].votes not in (None, seal.votes):
            report.findings.append(f"round {max(seal.rounds - 1, 0)}: the seal after it is on another history")


def _check_signer(report: Report, identity: Identity, seals: list[Seal], signer: PublicKey | None) -> None:
    if signer is None:
        return
    for seal in seals:
        if is_signed(seal, identity.digest, signer):
            report.signed = seal.rounds
        elif seal.signature is not None:
            report.findings.append(f"round {max(seal.rounds - 1, 0)}: the seal after it is not signed by this signer")
    if report.signed is None and report.sound:
        report.findings.append("nothing in it is signed, so that this signer does not vouch for any of it")


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
        report.notes.append(
            f"the rule {ledger.identity.agreement.rule} is code, and was not run: say --own-rule if it is yours"
        )
    if unchecked:
        report.notes.append(f"the aggregates of {unchecked} rounds were not checked: their votes' values are not here")
    if report.signed is not None and report.signed < report.head.rounds:
        report.notes.append(f"{report.head.rounds - report.signed} rounds came after the last signature")
