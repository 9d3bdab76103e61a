"""A client's audits: it asks for the ballots of rounds that it picks by its own randomness, and decides them again.

A client that audits every round applies none that it has not found right. One that audits some goes on meanwhile, for a
few rounds. An audit that is not answered stops its voting and accuses nobody; what is wrong becomes evidence.
"""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cyber0 import aggregation
from cyber0.errors import Cyber0Error, InvalidConfig, InvalidEvidence, Refused, RejectedMessage
from cyber0.network.log import Said
from cyber0.protocol import evidence, pages
from cyber0.protocol.audit import Context, Wrong, check_aggregate, check_ballots, is_final, rule_of
from cyber0.protocol.catching_up import Step
from cyber0.protocol.identity import Identity
from cyber0.protocol.messages import Audit, Page
from cyber0.protocol.records import Ballot, Decision, from_wire

__all__ = ["Audits", "Caught", "detection"]

LAG = 8  # rounds that a client may go on for while an audit is under way, unless it audits every round
BALLOTS, ROOM, CHANGES = 4, 2**10, 2**17  # of a client in a round; bytes of one beside its scalars; of changes
WINDOW = 16  # rounds whose ballots are asked for at a time
VOTES = 64  # of its own that it looks for, the last ones


class Caught(Refused):
    """The federator has lied, and signed it: `evidence` is a file that proves it."""

    def __init__(self, text: str, evidence: bytes) -> None:
        super().__init__(text)
        self.evidence = evidence


def detection(fraction: float, rounds: int, clients: int = 1) -> float:
    """Return how probable it is that a federator that cheats in so many rounds is caught by so many auditing clients.

    >>> round(detection(0.05, rounds=10), 3), round(detection(0.05, rounds=10, clients=9), 3)
    (0.401, 0.99)
    """
    return 1.0 - (1.0 - fraction) ** (rounds * clients)


@dataclass
class _Pending:
    """A round that was picked, among those that came with it: only the last of them has a link that is signed."""

    steps: list[Step]
    place: int
    memory: Any
    data: bytearray = field(default_factory=bytearray)
    page: int = 0
    asked: bool = False

    @property
    def step(self) -> Step:
        return self.steps[self.place]


class Audits:
    """The audits of one client.

    Args:
        fraction: How often a round is picked: from 0, never, to 1, every round before the next vote.
        budget: Bytes per second that pages may take; a round that would take more is not picked, unless all are.
        own_code: Whether a rule that the run names as `package.module:object` may be imported and run.
        accepts_lost: Whether to go on where the federator has lost the votes of a round, though all are to be audited.
        notice: A function that is called with a sentence when something happens.
        keep: A function that stores evidence about another client, and returns where it is, in words.
        rng: What picks; by default the operating system's randomness, which a federator cannot foresee.
        now: A clock, in seconds.

    """

    def __init__(
        self,
        fraction: float = 0.05,
        budget: float = 2.0**20,
        *,
        own_code: bool = False,
        accepts_lost: bool = False,
        notice: Callable[[str], None] = lambda _: None,
        keep: Callable[[bytes], str] | None = None,
        rng: random.Random | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= fraction <= 1:
            raise InvalidConfig(f"audit = {fraction}: it must be from 0 (never) to 1 (every round)")
        if not budget > 0:
            raise InvalidConfig(f"audit budget = {budget}: it must be above 0 bytes per second")
        self.fraction, self.budget, self.own_code, self.notice = fraction, budget, own_code, notice
        self.audited, self.missing, self.final = 0, 0, 0  # rounds that were right, own votes not found, final commits
        self.unaudited = 0  # rounds that were picked, and whose votes are lost
        self.received = 0  # bytes
        self.accepts_lost, self._lost = accepts_lost, 0
        self._rng, self._now = rng or random.SystemRandom(), now
        self._since, self._spent = now(), 0.0
        self.keep = keep
        self._accused: set[str] = set()
        self._pending: dict[int, _Pending] = {}
        self._owed: set[int] = set()  # rounds that were picked, and not shown before the client had to begin anew
        self._votes: dict[int, bytes] = {}
        self._rule: aggregation.Composition | None = None
        self._memory: Any = None
        self._has_memory = False
        self._remembers = -1  # the round before which the memory is known
        self._commits = bytearray()  # of a rule with memory, for evidence

    def begin(self, identity: Identity, rounds: int) -> None:
        """Get ready for a run of which the client holds so many rounds; a client that begins anew does so again.

        Rounds that were picked and not shown stay picked, so that a replay gets around no audit.
        """
        self._owed |= self._pending.keys()
        self._pending.clear()
        try:
            self._rule = rule_of(identity, self.own_code) if self.fraction else None
        except Cyber0Error as error:
            self._rule = None
            self.notice(
                f"the rule {identity.agreement.rule} is not known here: audits do not compute it again: {error}"
            )
        self._memory = None if self._rule is None else aggregation.begin(self._rule)
        self._has_memory = self._rule is not None and isinstance(self._rule.rule, aggregation.RuleWithMemory)
        self._commits.clear()
        self._remembers = 0 if rounds == 0 else -1

    def lost(self, rounds: int) -> None:
        """Take note that the federator has lost votes of some of the first rounds; what it loses later is no excuse."""
        if rounds > self._lost and self.fraction:
            text = f"the federator was restored from a backup, and has lost votes of rounds before {rounds}"
            self.notice(Said(f"{text}: this client cannot audit those", "warning"))
        self._lost = rounds

    def remember(self, steps: list[Step]) -> None:
        """Take rounds that the client has applied in an earlier life: they are not picked again."""
        for step in steps:
            self._remember(step)

    def voted(self, round: int, digest: bytes) -> None:  # noqa: A002
        """Remember a vote of the client's own, by its digest, to look for it."""
        self._votes[round] = digest
        self._votes.pop(round - VOTES, None)

    def follow(self, steps: list[Step], known: int = 0) -> list[Audit]:
        """Take rounds that the client has followed, and return what to ask for.

        Args:
            steps: The rounds.
            known: How many rounds may be shown as imported, without ballots; others could be lies that cannot be seen.

        """
        self._rewind(steps)
        for place, step in enumerate(steps):
            if (step.ballots or step.round >= known) and self._picks(step):
                if not step.ballots:
                    raise Refused(f"round {step.round} is shown without its ballots, and this client audits it")
                self._pending[step.round] = _Pending(steps, place, self._memory)
            self._remember(step)
        return self._ask()

    @property
    def holds(self) -> bool:
        """Whether the client must not apply what it has followed: it audits every round, and is not done."""
        return self.fraction == 1 and bool(self._pending)

    def again(self) -> list[Audit]:
        """Return what to ask for on a new stream: what was not answered, unless the rounds come again themselves."""
        if self.fraction == 1:
            self._pending.clear()
        for pending in self._pending.values():
            pending.data.clear()
            pending.page, pending.asked = 0, False
        return self._ask()

    def _ask(self) -> list[Audit]:
        """Return what to ask for next, so that not too many answers are awaited."""
        waiting = sum(pending.asked for pending in islice(self._pending.values(), WINDOW))
        asked: list[Audit] = []
        for number, pending in islice(self._pending.items(), WINDOW):
            if not pending.asked and waiting < WINDOW:
                pending.asked = True
                asked.append(Audit(number))
                waiting += 1
        return asked

    def allows(self, round: int) -> bool:  # noqa: A002
        """Return whether the client may vote in a round: not while an audit is open for too long."""
        return all(round - number <= LAG for number in self._pending)

    def receive(self, page: Page) -> list[Audit]:
        """Take a page, and return what to ask for next; raise `Caught` if the round is not right."""
        pending = self._pending.get(page.round)
        if pending is None or page.page != pending.page:
            return []
        self.received += len(page.data)
        self._spent += len(page.data)
        if not page.data and page.round < self._lost:
            return self._give_up(page.round)
        if not page.data:
            self.notice(f"the federator shows no ballots of round {page.round}: this client does not vote on")
            return []
        pending.data += page.data
        if len(pending.data) > (most := _most(pending.step)):
            raise Refused(f"the ballots of round {page.round} have more than {most:,} bytes")
        if not page.last:
            pending.page += 1
            return [Audit(page.round, pending.page)]
        self._check(pending)
        del self._pending[page.round]
        return self._ask()

    def _give_up(self, round: int) -> list[Audit]:  # noqa: A002
        """Go on without an audit, loudly: the federator said beforehand that it has lost votes of such rounds."""
        text = f"the federator has lost the votes of round {round}, which this client audits"
        if self.fraction >= 1 and not self.accepts_lost:
            raise Refused(f"{text} as all others: it may have cheated there; to go on all the same, say --accept-lost")
        self.unaudited += 1
        self._owed.discard(round)
        del self._pending[round]
        number = f"{self.unaudited} rounds" if self.unaudited > 1 else "1 round"
        self.notice(Said(f"{text}: {number} could not be audited so far", "warning"))
        return self._ask()

    def _picks(self, step: Step) -> bool:
        if not step.before.identity.keep_votes:
            return False
        if self.fraction >= 1 or step.round in self._owed:
            return True
        if self._rng.random() >= self.fraction:
            return False
        allowed = (self._now() - self._since + 1.0) * self.budget
        return self._spent <= allowed

    def _rewind(self, steps: list[Step]) -> None:
        """Let a rule with memory forget rounds that come again: they were followed before, and not applied."""
        if self._rule is None or not steps or steps[0].round >= self._remembers:
            return
        first, rows = steps[0], steps[0].before.identity.plan.rows
        del self._commits[first.round * len(first.scalars) :]
        self._memory, self._remembers = aggregation.begin(self._rule), first.round
        for at in range(0, len(self._commits), len(first.scalars)):
            commit = from_wire(bytes(self._commits[at : at + len(first.scalars)]), rows)
            self._memory = aggregation.after(self._rule, self._memory, commit)

    def _remember(self, step: Step) -> None:
        """Give a rule with memory the round's commit, from which its memory follows."""
        if self._rule is None or not self._has_memory or self._remembers != step.round:
            return
        rows = step.before.identity.plan.rows
        self._memory = aggregation.after(self._rule, self._memory, from_wire(step.scalars, rows))
        self._commits += step.scalars
        self._remembers += 1

    def _check(self, pending: _Pending) -> None:
        step, before = pending.step, pending.step.before
        try:
            decision = pages.from_pages(step.round, bytes(pending.data))
        except RejectedMessage as error:
            raise Refused(f"an audit of round {step.round} was answered with nonsense: {error}") from None
        if decision.scalars != step.scalars or decision.changes != step.changes:
            raise Refused(f"an audit of round {step.round} was answered with another round")
        if decision.ballots_hash != step.ballots:
            raise Refused(f"an audit of round {step.round} was answered with ballots that are not those of its link")
        previous = before.anchor.link if before.anchor else b""
        voting = before.roster.enrolled(step.changes)
        context = Context(before.identity, voting, before.head.link or b"", previous)
        try:
            counted = check_ballots(context, decision)
            if self._rule is not None and self._knows(step):
                check_aggregate(context, decision, counted, self._rule, pending.memory)
        except Wrong as wrong:
            raise self._caught(pending, decision, wrong) from None
        self.audited += 1
        self._owed.discard(step.round)
        if is_final(context, len(counted)):
            self.final = max(self.final, step.round)
        self._find(step.round, decision)
        self._accuse(pending, decision)

    def _knows(self, step: Step) -> bool:
        """Return whether what the rule remembers before a round is known: always, for one without memory."""
        return not self._has_memory or 0 <= step.round < self._remembers

    def _caught(self, pending: _Pending, decision: Decision, wrong: Wrong) -> Refused:
        step = pending.step
        if not wrong.accuses:
            return Refused(f"an audit of round {step.round} was not answered as it must be: {wrong}")
        commits = bytes(self._commits[: len(step.scalars) * step.round])
        proof = evidence.decision(pending.steps[pending.place :], decision, commits)
        return Caught(f"the federator has signed round {step.round}, and {wrong}", proof)

    def _accuse(self, pending: _Pending, decision: Decision) -> None:
        """Keep evidence about clients that cast two different votes in a round, once for each, and go on."""
        before, cast = pending.step.before, dict[str, dict[bytes, Ballot]]()
        for ballot in decision.ballots:
            if ballot.verdict == "equivocation" and ballot.client not in self._accused:
                cast.setdefault(ballot.client, {})[ballot.digest] = ballot
        for client, ballots in cast.items():
            votes = [(before.head.link or b"", ballot) for ballot in list(ballots.values())[:2]]
            steps = [] if before.signature or before.head.rounds == 0 else pending.steps[pending.place :]
            proof = evidence.equivocation(before, decision.round, client, votes, steps)
            with suppress(InvalidEvidence):  # such as of a client whose key is written with this very round
                evidence.judge(proof)
                self._accused.add(client)
                kept = "" if self.keep is None else f"; {self.keep(proof)}"
                self.notice(f"{client} has signed two different votes in round {decision.round}{kept}")

    def _find(self, round: int, decision: Decision) -> None:  # noqa: A002
        """Look for the client's own vote; one that is missing is told, and accuses nobody."""
        digest = self._votes.get(round)
        if digest is not None and all(ballot.digest != digest for ballot in decision.ballots):
            self.missing += 1
            self.notice(f"this client's vote of round {round} is not among its ballots: it was late, or left out")


def _most(step: Step) -> int:
    """Return how many bytes the ballots of a round may have: more would only use up what audits may take."""
    return len(step.before.roster.names) * BALLOTS * (len(step.scalars) + ROOM) + CHANGES
