"""Verify a ledger: its chain, the signature of every vote and link, every aggregate, its seals.

A finding is a sentence about the first round that is wrong; the rounds after it cannot match the chain either.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from cryptography import x509

from cyber0 import aggregation
from cyber0.errors import Cyber0Error
from cyber0.printable import many
from cyber0.protocol.audit import Context, Wrong, check_aggregate, check_ballots, is_final, rule_of
from cyber0.protocol.chain import Head, Seal, advance, done_statement, genesis, link_statement
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Ledger, Written
from cyber0.protocol.ledger import Report as Said
from cyber0.protocol.promise import check_promises
from cyber0.protocol.records import Decision, from_wire
from cyber0.protocol.roster import Roster
from cyber0.protocol.signing import PublicKey, encoded, is_by, is_signed
from cyber0.protocol.trust import uncertified, unpinned

__all__ = ["Report", "verify"]


@dataclass
class Report:
    """What was checked of a ledger, and what is wrong with it."""

    head: Head
    aggregates: int = 0  # rounds whose scalars were computed again from their votes
    votes: int = 0  # that are signed by their clients
    signed: int | None = None  # rounds that the federator has signed
    final: int = 0  # commits that a quorum of clients vouches for
    missing: int = 0  # rounds whose votes are not here, though the run keeps them
    lost: list[tuple[int, int]] = field(
        default_factory=list[tuple[int, int]]
    )  # of them: first and last of each stretch
    authors: str = ""  # by what the keys are known to be those of the clients; empty if they are not
    findings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong, and nothing is missing that this run keeps."""
        return not self.findings and not self.missing

    @property
    def verdict(self) -> str:
        """The result in a sentence: what was proven and what was not."""
        if self.findings:
            return "NOT SOUND"
        if self.missing:
            return f"commits proven, votes missing of {many(self.missing, 'round')}" if self.signed else "votes missing"
        if not self.authors:
            return "internally consistent, authors unproven"
        return f"sound: every number was said by its client, whose key is known by {self.authors}"


def verify(
    ledger: Ledger,
    *,
    head: bytes | None = None,
    signer: PublicKey | None = None,
    authority: x509.Certificate | None = None,
    expect: bytes | None = None,
    own_rule: bool = False,
    watch: Callable[[int], None] = lambda _: None,
) -> Report:
    """Check a ledger from its identity to its end, and report what was checked and what is wrong.

    Args:
        ledger: What to check.
        head: A hash that must be in its chain.
        signer: The key that must have signed it.
        authority: The certificate of the authority that must vouch for the keys of the federator and all clients.
        expect: The digest of the run, which pins the keys of its parties.
        own_rule: Whether a rule that is given as `package.module:rule` may be imported and run.
        watch: A function that is called with the number of rounds checked so far.

    >>> import numpy as np
    >>> from cyber0.config import Agreement
    >>> from cyber0.parameters import Parameters
    >>> from cyber0.protocol.ledger import Memory
    >>> from cyber0.protocol.records import Ballot, to_wire
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> ledger = Memory()
    >>> ledger.found(Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros))
    >>> head = ledger.append(Decision(0, to_wire([[1.0]]), (Ballot.of("ann", "counted", to_wire([[2.0]])),)))
    >>> verify(ledger).findings
    ['round 0: its scalars are not what cwtm makes of the counted votes']

    """
    report = Report(genesis(ledger.identity.digest))
    seals = ledger.seals  # first: a federator may append more meanwhile
    checker = _Checker(report, ledger, own_rule)
    heads = checker.check_rounds(watch)
    report.head = heads[-1]
    if not report.findings:
        _check_seals(report, ledger.identity, seals, heads)
        _check_signer(report, ledger.identity, seals, signer)
        _check_known(report, heads, head)
        _check_expected(report, ledger.identity, checker.rosters, expect)
        _check_authority(report, ledger, checker, authority)
        _check_reports(report, ledger, heads, checker.rosters)
        _check_promises(report, ledger, checker.rosters)
        _note(report, ledger, own_rule)
    return report


class _Checker:
    def __init__(self, report: Report, ledger: Ledger, own_rule: bool) -> None:
        self.report, self.ledger, self.identity = report, ledger, ledger.identity
        self.imported, self.roster = ledger.imported, ledger.adopted
        self.rosters = [ledger.identity.roster]
        if self.roster != ledger.identity.roster:
            self.rosters.append(self.roster)
        self.relied = list(self.rosters)  # those of which votes were checked, and that it begins with
        self.previous = b""
        self.rule = rule_of(self.identity, own_rule)
        self.memory = None if self.rule is None else aggregation.begin(self.rule)
        self.remembers = self.rule is not None and isinstance(self.rule.rule, aggregation.RuleWithMemory)

    def check_rounds(self, watch: Callable[[int], None]) -> list[Head]:
        """Return the heads after 0, 1, ... rounds, up to the first round that is wrong."""
        report, start = self.report, self.report.head
        heads = [replace(start, link=None) if self.imported else start]
        for number, problem in self.ledger.faults():
            report.findings.append(f"round {number}: it {problem}")
            return heads
        if not self.imported and (self.ledger.anchor is not None or len(self.rosters) > 1):
            report.findings.append("round 0: it has the roster or the link of imported rounds, and none were imported")
            return heads
        for written in self.ledger.written():
            try:
                heads.append(self.check(heads[-1], written))
            except Wrong as wrong:
                report.findings.append(f"round {heads[-1].rounds}: {wrong}")
                return heads
            watch(len(heads) - 1)
        if not 0 <= self.imported < len(heads):
            report.findings.append(
                f"round {len(heads) - 1}: it is missing, though {self.imported} rounds were imported"
            )
        report.missing = (self.imported if self.identity.keep_votes else 0) + sum(b - a + 1 for a, b in report.lost)
        if report.lost and report.lost[-1][1] + 1 == heads[-1].rounds != report.signed and self.identity.signs:
            report.findings.append(f"round {heads[-1].rounds - 1}: the link after it is not signed by the federator")
        return heads

    def check(self, head: Head, written: Written) -> Head:
        """Return the head after a round; raise Wrong if something is wrong with it."""
        decision = written.decision
        if decision.round != head.rounds:
            raise Wrong("it is missing")
        imported = decision.round < self.imported
        roster = self.roster if imported else self._after(decision)
        following = advance(head, decision, roster if self.identity.protocol > 1 else None)
        if written.commit != following.commit or len(decision.scalars) != 4 * self.identity.plan.scalars:
            raise Wrong("its scalars do not match the chain")
        if imported:
            following = self._without_votes(following, written)
        elif written.link != following.link:
            raise Wrong("its votes do not match the chain")
        elif written.ballots not in (b"", decision.ballots_hash):
            raise Wrong("the hash that is kept beside its votes is not theirs")
        elif decision.lost:
            self._note_lost(decision)
        else:
            self._check_round(head, decision)
        self._check_link(following, written)
        self._remember(decision.scalars)
        self.previous, self.roster = head.link or b"", roster
        if following.rounds == self.imported and self.ledger.anchor is not None:
            self.previous = self.ledger.anchor.link
        return following

    def _after(self, decision: Decision) -> Roster:
        try:
            self.roster.check(decision.changes)
            roster = self.roster.after(decision.changes)
        except Cyber0Error as error:
            raise Wrong(f"its changes of the roster cannot be made: {error}") from None
        if roster is not self.roster:
            self.rosters.append(roster)
        return roster

    def _check_round(self, head: Head, decision: Decision) -> None:
        voting = self.roster.enrolled(decision.changes)
        if voting is not self.relied[-1]:
            self.relied.append(voting)
        context = Context(self.identity, voting, head.link or b"", self.previous)
        counted = check_ballots(context, decision)
        if self.identity.signs:
            self.report.votes += len(decision.ballots)
            if is_final(context, len(counted)):
                self.report.final = decision.round
        if self.rule is not None and all(ballot.values is not None for ballot in counted):
            check_aggregate(context, decision, counted, self.rule, self.memory)
            self.report.aggregates += 1

    def _note_lost(self, decision: Decision) -> None:
        """Note a round whose votes are lost: the link shows that its commit is right, not how it was decided."""
        if decision.ballots:
            raise Wrong("it has votes, though they are recorded as lost")
        lost = self.report.lost
        if lost and lost[-1][1] == decision.round - 1:
            lost[-1] = lost[-1][0], decision.round
        else:
            lost.append((decision.round, decision.round))

    def _check_link(self, following: Head, written: Written) -> None:
        """Check the federator's signature of a link, if the link is known.

        Of several rounds that a client gave back only the last may have one, which covers those before it.
        """
        if not self.identity.signs or following.link is None or (written.decision.lost and not written.signature):
            return
        statement = link_statement(self.identity.digest, following.rounds, following.link)
        if not is_by(self.identity.federator, written.signature, statement):
            raise Wrong("the link after it is not signed by the federator")
        self.report.signed = following.rounds

    def _remember(self, scalars: bytes) -> None:
        """Give a rule with memory the round's commit, which is all that its memory may depend on."""
        if self.rule is not None and self.remembers:
            try:
                self.memory = aggregation.after(self.rule, self.memory, from_wire(scalars, self.identity.plan.rows))
            except Cyber0Error as error:
                raise Wrong(f"what follows it cannot be aggregated: {error}") from None

    def _without_votes(self, following: Head, written: Written) -> Head:
        last = following.rounds == self.imported
        if written.decision.ballots or (written.link is not None and not last):
            raise Wrong("it has votes, though it is recorded as imported without them")
        if not last or self.identity.protocol == 1:
            return replace(following, link=written.link)
        anchor = self.ledger.anchor
        if written.link is not None and anchor is None and self.identity.signs:
            raise Wrong("nothing shows that the commits up to it belong to the link after it")
        if anchor is not None and anchor.following(following.commit) != written.link:
            raise Wrong("the commits up to it do not belong to the link after it")
        if self.roster.digest != (self.identity.roster.digest if anchor is None else anchor.roster):
            raise Wrong("the roster after it does not belong to the link after it")
        return replace(following, link=written.link)


def _check_seals(report: Report, identity: Identity, seals: list[Seal], heads: list[Head]) -> None:
    for seal in seals:
        if not 0 <= seal.rounds < len(heads):
            report.findings.append(
                f"round {len(heads) - 1}: it is missing, "
                f"for there is a seal on {seal.rounds} rounds: the tail was cut off"
            )
        elif seal.commit != heads[seal.rounds].commit or heads[seal.rounds].link not in (None, seal.link):
            report.findings.append(f"round {max(seal.rounds - 1, 0)}: the seal after it is on another history")
        elif identity.signs and not _is_signed(seal, identity):
            report.findings.append(f"round {max(seal.rounds - 1, 0)}: the seal after it is not signed by the federator")


def _is_signed(seal: Seal, identity: Identity) -> bool:
    return is_by(identity.federator, seal.signature or b"", seal.statement(identity.digest))


def _check_signer(report: Report, identity: Identity, seals: list[Seal], signer: PublicKey | None) -> None:
    if signer is None:
        return
    if identity.signs:
        if encoded(signer) != identity.federator:
            report.findings.append(
                f"the federator of this run has the key {identity.federator.hex()[:16]}, not that of this signer, "
                f"{encoded(signer).hex()[:16]}"
            )
        return
    for seal in seals:
        if seal.signature is not None and is_signed(signer, seal.signature, seal.statement(identity.digest)):
            report.signed = seal.rounds
        elif seal.signature is not None:
            report.findings.append(f"round {max(seal.rounds - 1, 0)}: the seal after it is not signed by this signer")
    if report.signed is None and not report.findings:
        report.findings.append("nothing in it is signed, so that this signer does not vouch for any of it")


def _check_known(report: Report, heads: list[Head], known: bytes | None) -> None:
    if known is None:
        return
    for head in reversed(heads):
        if known in (head.commit, head.link):
            after = report.head.rounds - head.rounds
            report.notes.append(
                f"the known head is that after {head.rounds} rounds" + (f"; {after} follow" * (after > 0))
            )
            return
    report.findings.append(f"the known head {known.hex()} is not in its chain: the tail was rewritten or cut off")


def _check_expected(report: Report, identity: Identity, rosters: list[Roster], expect: bytes | None) -> None:
    if expect is None:
        return
    if expect != identity.digest:
        report.findings.append(f"this is the run {identity.digest.hex()}, not the expected {expect.hex()}")
    elif later := unpinned(identity, rosters):
        report.notes.append(f"the run's digest does not cover the keys of {', '.join(later)}: they were written later")
    elif identity.signs:
        report.authors = "the run's digest"


def _check_authority(report: Report, ledger: Ledger, checker: _Checker, authority: x509.Certificate | None) -> None:
    """Check that the authority vouches for all keys that something in the record rests on.

    A certificate comes with its client. That of a key which came and went in rounds whose votes are lost, is lost, too.
    """
    if authority is None:
        return
    identity = ledger.identity
    if not identity.signs:
        report.findings.append("its votes are not signed, so that this authority vouches for none of them")
        return
    doubtful = uncertified(identity, checker.rosters, ledger.certificates, authority)
    relied = {("", identity.federator)}
    for roster in (*checker.relied, *_present(checker.rosters)) if doubtful else ():
        relied.update(zip(roster.names, roster.keys, strict=True))
    report.findings += [text for entry, text in doubtful.items() if entry in relied][:1]
    report.notes += [
        f"{text}, by which no vote that is here was signed" for entry, text in doubtful.items() if entry not in relied
    ]
    if not report.findings:
        report.authors = "the authority's certificates"


def _present(rosters: list[Roster]) -> tuple[Roster, Roster]:
    """Return the roster after the last round, and what it is with the changes that are pending."""
    return rosters[-1], rosters[-1].in_force()


def _check_promises(report: Report, ledger: Ledger, rosters: list[Roster]) -> None:
    """Check what clients promised about their privacy. Whether they kept it cannot be seen from outside."""
    promised = ledger.promises
    report.findings += check_promises(promised, ledger.identity, [*rosters, rosters[-1].in_force()])
    if promised:
        clients = many(len({each.client for each in promised}), "client has", "clients have")
        report.notes.append(f"{clients} signed promises of privacy; that they keep them cannot be checked")


def _check_reports(report: Report, ledger: Ledger, heads: list[Head], rosters: list[Roster]) -> None:
    """Check what clients signed at the end; a quorum of those that hold the last link makes its last commit final.

    A key that a client has no longer signs for nothing: the authority may not vouch for it (see `_check_authority`).
    """
    identity, last = ledger.identity, rosters[-1].in_force()
    if not identity.signs:
        return
    marks: dict[int, set[str]] = {}
    for said in ledger.reports:
        if not 0 <= said.rounds < len(heads):
            report.findings.append(f"{said.client} reports {said.rounds} rounds, and {len(heads) - 1} are here")
            return
        if not _is_reported(said, identity, heads[said.rounds], (*rosters, last)):
            report.findings.append(f"the report of {said.client} on {said.rounds} rounds is not signed by it")
            return
        at_the_end = said.rounds == len(heads) - 1 and said.client in last.places
        if at_the_end and _is_reported(said, identity, heads[-1], _present(rosters)):
            marks.setdefault(said.fingerprint, set()).add(said.client)
    for mark, clients in marks.items():
        if is_final(Context(identity, rosters[-1], b""), len(clients), of_all=True):
            report.final = len(heads) - 1
            number = many(len(clients), "client")
            report.notes.append(f"{number} signed that they hold the weights {mark:016x} after it")


def _is_reported(said: Said, identity: Identity, head: Head, rosters: Iterable[Roster]) -> bool:
    if head.link is None:  # of imported rounds
        return True
    statement = done_statement(identity.digest, said.rounds, head.link, said.fingerprint)
    return any(is_by(key, said.signature, statement) for key in {roster.key(said.client) for roster in rosters})


def _note(report: Report, ledger: Ledger, own_rule: bool) -> None:
    identity, unchecked = ledger.identity, report.head.rounds - report.aggregates
    if identity.parent is not None:
        report.notes.append(f"{identity.parent.text}: it was made on purpose, by cyber0 ledger fork")
    if ledger.imported:
        report.notes.append(f"{many(ledger.imported, 'round was', 'rounds were')} imported without their votes")
    _note_lost(report)
    if unchecked and ":" in identity.agreement.rule and not own_rule:
        report.notes.append(
            f"the rule {identity.agreement.rule} is code, and was not run: say --own-rule if it is yours"
        )
    if unchecked:
        rounds = many(unchecked, "round")
        report.notes.append(f"the aggregates of {rounds} were not checked: their votes' values are not here")
    if identity.protocol == 1 and report.signed is not None and report.signed < report.head.rounds:
        report.notes.append(f"{many(report.head.rounds - report.signed, 'round')} came after the last signature")
    if identity.signs:
        rest = report.head.rounds - report.final
        later = f"; {many(rest, 'after them is', 'after them are')} not yet" if rest > 0 else ""
        report.notes.append(f"{many(report.final, 'commit is', 'commits are')} final{later}")
    else:
        report.notes.append("its votes are not signed: who cast them is not proven")
    if report.authors:
        report.notes.append("not proven: that the authority invented no client, and that no vote was left out")


def _note_lost(report: Report) -> None:
    if not report.lost:
        return
    stretches = [f"{first}" if first == last else f"{first} to {last}" for first, last in report.lost]
    number = sum(last - first + 1 for first, last in report.lost)
    report.notes.append(
        f"the votes of {many(number, 'round')} are lost, and their commits were given back by clients: rounds "
        f"{', '.join(stretches)}"
    )
