"""A client without sockets or a clock: it follows the chain, votes and evaluates as the federator's messages ask.

It believes the federator nothing that it can check: every link must be signed, lead through what the client has signed
itself, and belong to the run that it was invited to.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from cyber0.errors import Cyber0Error, InvalidIdentity, InvalidParameters, Refused
from cyber0.network.audits import Audits, Caught
from cyber0.network.commit_log import CommitLog
from cyber0.network.consent import Limits
from cyber0.network.log import Said
from cyber0.network.model import Model
from cyber0.network.store import Marks, Store, StoredVote
from cyber0.network.stored_position import position_facts, position_from
from cyber0.network.welcome import check_invited, check_version, identity_of
from cyber0.protocol.catching_up import Forked, Position, Step, follow
from cyber0.protocol.chain import Head, done_statement, vote_statement
from cyber0.protocol.evidence import fork
from cyber0.protocol.identity import Identity, packed_layout
from cyber0.protocol.messages import (
    Audit,
    Bye,
    CatchUp,
    Committed,
    Done,
    Evaluation,
    FromClient,
    FromFederator,
    Hello,
    Page,
    Recall,
    Recalled,
    Rejection,
    RoundOpen,
    Vote,
    Welcome,
)
from cyber0.protocol.outline import Outline
from cyber0.protocol.promise import Promise, promise_statement
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import PrivateKey, encoded, sign

__all__ = ["Member", "Model"]

Send = Callable[[FromClient], None]
AT_ONCE = 256  # rounds that are applied between two looks at how far a client is
STORED = 30.0  # seconds of applying commits after which the weights are stored, so that a restart goes on from there
MAX_REPLAYS = 3  # of one process: a client whose weights are wrong again and again has another problem


@dataclass(eq=False)
class Member:
    """A client of a run: it receives the federator's messages, in order, and sends its own.

    Args:
        settings: Those of the federation.
        name: Its name on the roster.
        model: Its model and data.
        store: Where its votes and weights are kept.
        evaluates: Whether it evaluates the model and sends the result.
        snapshot_every: Rounds from one copy of the weights to the next.
        key: What signs its votes; by default a key of its store's own.
        notice: A function that is called with a sentence when something happens.
        audits: Which rounds it decides again from their ballots; by default none.
        expect: The digest of the only run to take part in.
        limits: What the run may cost it.
        marks: Beside its key, in which runs that has voted; None for a key that is in the store itself.
        promise: What it promises about its privacy, if anything, and the digest of the terms it is for.

    `commits` is how many commits it has applied, and `head` the last link of their chain. `is_over` says that the
    federator has ended the run for it.

    >>> from cyber0.config import RunConfig
    >>> from cyber0.network.stub_model import StubModel
    >>> settings = Settings.of(RunConfig(clients=1, byzantine=0, directions=2, rounds=1))
    >>> member = Member(settings, "client-0", StubModel(2))
    >>> member.hello().commits, member.is_over
    (0, False)

    """

    settings: Settings
    name: str
    model: Model
    store: Store = field(default_factory=Store)
    evaluates: bool = False
    snapshot_every: int = 100
    key: PrivateKey | None = None
    notice: Callable[[str], None] = lambda _: None
    audits: Audits = field(default_factory=lambda: Audits(0))
    expect: bytes | None = None
    limits: Limits = field(default_factory=Limits)
    marks: Marks | None = None
    promise: tuple[Promise, bytes] | None = None
    bye: Bye | None = field(default=None, init=False)
    evaluation: Evaluation | None = field(default=None, init=False)
    welcomed: bool = field(default=False, init=False)  # on this stream: what came before belongs to an older one
    position: Position | None = field(default=None, init=False)  # once it knows the run

    def __post_init__(self) -> None:
        self._key = self.key or self.store.key()
        self._public = encoded(self._key.public_key())
        self._replayed, self._replays, self._told = False, 0, False
        self._open = self._sent = -1
        self._waiting: deque[Committed | CatchUp] = deque()
        self._followed: list[Step] = []  # rounds that are not applied yet
        self._snapshot_at, self._stored = 0, monotonic()
        self._recalled = -1  # the last round from which on it was asked for commits, on this stream
        self._restore()

    @property
    def commits(self) -> int:
        """How many commits it has applied."""
        return 0 if self.position is None else self.position.head.rounds

    @property
    def head(self) -> bytes:
        """The last link of the chain it holds; empty while it knows no run."""
        return b"" if self.position is None else self.position.head.link or b""

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self.settings.agreement.rounds if self.position is None else self.position.roster.last

    @property
    def _is_brief(self) -> bool:
        """Whether an outline of the roster is enough: it checks nobody's votes, and is invited to all rounds."""
        return self.audits.fraction == 0 and self.settings.agreement.participation == 1

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        if self.bye is None or not self.bye.final:
            return False
        return not self.bye.finished or self.commits == self.rounds

    @property
    def waits(self) -> bool:
        """Whether it waits for what the federator is to show before it is done, even after a Bye."""
        return self.audits.holds

    def hello(self) -> Hello:
        """Return the Hello for a new stream."""
        self.welcomed, self.bye, self._sent, self._open, self._recalled = False, None, -1, -1, -1
        self._forget_followed()
        knows = self.position is not None
        last = self.store.vote(self.store.newest) if knows and self.store.newest > self.commits else None
        promise, promised = self._promised()
        return Hello(
            self.name,
            self.model.manifest,
            self.model.base,
            self.commits,
            self.head,
            b"" if self.position is None else self.position.identity.digest,
            self.evaluates,
            self._replayed,
            layout=b"" if knows else packed_layout(self.model.layout),
            brief=self._is_brief,
            meaning=self.model.meaning,
            key=self._public,
            signature=b"" if self.position is None else self.position.signature,
            voted=0 if last is None else last.vote.round,
            voted_link=b"" if last is None else last.link,
            voted_signature=b"" if last is None else last.signature,
            promise=promise,
            promise_signature=promised,
        )

    def _promised(self) -> tuple[bytes, bytes]:
        """Return what it promises about its privacy, and the signature of that."""
        if self.promise is None:
            return b"", b""
        promise, terms = self.promise[0].to_bytes(), self.promise[1]
        return promise, sign(self._key, promise_statement(terms, self.name, promise))

    def _forget_followed(self) -> None:
        """Forget the rounds that are not applied yet: they come again."""
        self._waiting.clear()
        self._followed.clear()

    def receive(self, messages: Iterable[FromFederator], send: Send) -> None:
        """Apply all commits among the messages, then vote in the newest open round: so a slow client catches up."""
        for message in messages:
            if isinstance(message, Committed | CatchUp):
                self._waiting.append(message)
                if isinstance(message, Committed):
                    self._open = message.round + 1
            else:
                self._handle(message, send)
            if not self.welcomed:
                self._waiting.clear()
        if self.welcomed:
            self._advance(send)
            self._vote(send)
            self._evaluate(send)
            self._finish(send)

    def _handle(self, message: FromFederator, send: Send) -> None:
        match message:
            case Welcome() | Page() | Recall():
                for answer in self._answers(message):
                    send(answer)
            case RoundOpen(number):
                self._open, self._sent = number, -1
            case Rejection(replay=True):
                self._restart()
                send(self.hello())
            case Rejection(number, verdict, reason):
                self._note_rejection(number, verdict, reason)
            case Bye(replay=replay):
                if replay:
                    self._restart()
                self.bye = self.bye or message  # the first one has the reason
            case _:
                pass

    def _answers(self, message: Welcome | Page | Recall) -> Sequence[Audit | Hello | Recalled]:
        if isinstance(message, Recall):
            return self._on_recall(message.first)
        return self._on_welcome(message) if isinstance(message, Welcome) else self._on_page(message)

    def _on_recall(self, first: int) -> list[Recalled]:
        """Show the federator commits that it has lost; on one stream, each of them once."""
        if first <= self._recalled:
            return []
        self._recalled = first
        return [Recalled(first) if self.position is None else self._log(self.position.identity).recalled(first)]

    def _log(self, identity: Identity) -> CommitLog:
        return self.store.commits(4 * identity.plan.scalars, self.notice)

    def _note_rejection(self, number: int, verdict: str, reason: str) -> None:
        """Say that a vote does not count, where this client can do something about it."""
        if verdict == "late":
            text = f"the vote for round {number} came too late, and does not count: this client or its network is slow"
        else:
            text = f"the vote for round {number} does not count ({verdict}: {reason})"
        self.notice(Said(text, "warning"))

    def _on_page(self, page: Page) -> list[Audit]:
        return self.audits.receive(page) if self.welcomed else []

    def _on_welcome(self, welcome: Welcome) -> Sequence[Audit | Hello]:
        """Check that the run is the one it was invited to, or that it has been in before, and store which it is."""
        check_version(welcome.version)
        if self.position is None:
            identity = identity_of(welcome)
            self._check_wanted(identity)
            if self.expect not in (None, identity.digest):
                raise Refused(
                    f"the federator welcomes to run {identity.digest.hex()}: this client was told to expect another"
                )
            check_invited(identity, self.settings, self.model)
            self._check_marks(identity)
            self.store.save_run(welcome.identity, welcome.roster)
            self.position = Position.start(identity)
            self.audits.begin(identity, 0)
            self.notice(f"this is run {identity.digest.hex()}: whoever gives that to --expect takes part in no other")
        elif welcome.identity != self.position.identity.to_bytes():
            raise Refused(self._other_run(hashlib.sha256(welcome.identity).digest()))
        elif isinstance(self.position.roster, Outline) and not self._is_brief:
            held = self.commits
            self._know_roster(identity_of(welcome))
            if self.commits < held:
                return [self.hello()]  # what its own log does not tell is to come from the federator
        self.welcomed, self._replayed = True, False
        self._forget_followed()
        self.audits.lost(min(welcome.lost, welcome.round))
        return self.audits.again()

    def _check_wanted(self, identity: Identity) -> None:
        """Refuse an outline of the roster where this client checks votes: nobody's key is in it."""
        if isinstance(identity.roster, Outline) and not self._is_brief:
            raise Refused("the federator does not show who is on the roster: this client cannot check votes")

    def _know_roster(self, identity: Identity) -> None:
        """Take the whole roster in place of an outline, since this client is to check votes by now.

        How that has changed since can be told only by the commits, from the first one on.
        """
        self._check_wanted(identity)
        self.notice("this client audits from now on: it replays all commits, to know who was on the roster")
        self.store.save_run(identity.to_bytes(), identity.roster.to_bytes())
        position = Position.start(identity)
        self._begin_anew(position)
        self._replay_log(position)

    def _begin_anew(self, position: Position) -> None:
        self.store.forget_weights()
        self.model.reset()
        self.position, self._snapshot_at, self.evaluation = position, 0, None
        self.audits.begin(position.identity, 0)

    def _check_marks(self, identity: Identity) -> None:
        """Refuse to vote with a key that has voted in this run, where what it said then is not known."""
        if self.marks is not None and self.marks.has(identity.digest) and self.store.newest < 0:
            raise Refused(
                f"this key has voted in run {identity.digest.hex()}, and its state is not in {self.store.folder}: give "
                "the --state it voted with, or make a new key with cyber0 keys request and ask the operator for "
                "cyber0 rotate"
            )

    def _mark(self, run: bytes) -> None:
        """Note beside the key that it votes in this run: after the vote is stored, and before it is sent."""
        marks, self.marks = self.marks, None  # once
        if marks is not None:
            try:
                marks.add(run)
            except OSError as error:
                self.notice(
                    f"{marks.folder} cannot be written ({error.strerror}): if the state in {self.store.folder} is "
                    "lost, this key could vote twice in one round, which accuses it"
                )

    def _other_run(self, run: bytes) -> str:
        ours = "none" if self.position is None else self.position.identity.digest.hex()[:16]
        return (
            f"the federator welcomes to run {run.hex()[:16]}, but this client takes part in {ours}: to take part in "
            "another run, name another folder by --state"
        )

    def _advance(self, send: Send) -> None:
        """Follow the chain and apply the commits that are new.

        Nothing is applied before the chain has led to a link that the federator has signed, and to the last one that
        this client has; and, where it audits every round, before it has found the rounds right.
        """
        if self._is_applicable:  # what was audited since; first, or one that is always a round behind applies none
            self._apply()
        while self._waiting and not self.audits.holds:
            self._follow(self._waiting.popleft(), send)
            if not self._waiting and self._is_applicable:
                self._apply()

    @property
    def _is_applicable(self) -> bool:
        ends_signed = not self._followed or self._followed[-1].after.head.link is not None
        return not self.audits.holds and ends_signed and self._tip >= self.store.newest

    @property
    def _tip(self) -> int:
        """How many rounds it has followed, whether they are applied or not."""
        return self._followed[-1].after.head.rounds if self._followed else self.commits

    def _follow(self, message: Committed | CatchUp, send: Send) -> None:
        position = self._followed[-1].after if self._followed else self.position
        if position is None:
            return
        signed: dict[int, Head] = {}
        if self.store.newest > position.head.rounds:  # it comes again
            signed = self._signed_heads
        try:
            _, steps = follow(position, message, signed)
        except Forked as forked:
            self._accuse(forked)
            return
        known = self._known(steps)
        self._followed += steps
        for request in self.audits.follow(steps, known):
            send(request)

    def _known(self, steps: list[Step]) -> int:
        """Return how many rounds may be shown without ballots, as those of an imported run are.

        Those up to the last vote: the client has signed their commits. A client that has just come takes what was
        imported before its time.
        """
        begins = self.store.newest < 0 and self.commits == 0 and not any(step.ballots for step in self._followed)
        if not begins or not steps or steps[-1].ballots:
            return self.store.newest
        last = steps[-1].after.head
        if last.link is not None and self.audits.fraction:
            self.notice(f"{last.rounds} rounds were imported without their votes: this client cannot audit them")
        return last.rounds

    def _apply(self) -> None:
        steps, self._followed = self._followed, []
        if not steps:
            return
        try:
            self._take(steps)
        except Cyber0Error as error:
            raise Refused(f"a commit from round {self.commits} on cannot be applied: {error}") from error
        self.limits.check_rounds(self.rounds)
        due = self.commits - self._snapshot_at >= self.snapshot_every or not steps[-1].ballots  # which no log has
        if due and self.head:
            self.snapshot()

    def _take(self, steps: list[Step]) -> None:
        """Apply rounds, a part of them at a time; those that take long are stored on the way, and spoken of."""
        for first in range(0, len(steps), AT_ONCE):
            part = steps[first : first + AT_ONCE]
            self.model.advance(part[0].round, b"".join(step.scalars for step in part))
            self.position = part[-1].after
            self._log(self.position.identity).append(part)
            if len(steps) > AT_ONCE and self.head and monotonic() - self._stored >= STORED:
                self.snapshot()
                self.notice(
                    f"this client has applied {self.commits:,} of {steps[-1].round + 1:,} rounds, and stored that"
                )

    def _accuse(self, forked: Forked) -> None:
        """Stop with evidence, if the federator has signed both of two histories."""
        kept = next((kept for kept in self.store.signed if kept.vote.round == forked.known.rounds), None)
        if kept is None or not kept.signature or not forked.steps[-1].after.signature or self.position is None:
            raise forked
        raise Caught(str(forked), fork(self.position, forked, kept.signature)) from None

    def _vote(self, send: Send) -> None:
        position, number = self.position, self.commits
        due = self._open == number != self._sent and number < self.rounds
        if position is None or not due or self.bye is not None or not position.is_signed:
            return
        if not self.audits.allows(number):
            return
        if not self.settings.is_invited(self.name, number, position.roster) or not self._is_enrolled(position):
            return
        kept = self.store.vote(number)
        if kept is None and number < self.store.newest:
            raise Refused(f"round {number} is open, but this client has voted in round {self.store.newest}")
        if kept is None:
            mark = self.model.fingerprint() if number % self.settings.fingerprint_every == 0 else None
            scalars = self._measured(number)
            if scalars is None:
                self._sent = number  # its privacy budget is spent: it goes on without a vote
                return
            vote, head = Vote(number, scalars, mark), position.head
            kept = StoredVote(vote, head.commit, self.head, position.signature)
            self.store.save_vote(kept)
        elif kept.link != self.head:
            raise Refused(f"after {number} commits the federator's chain is not the one this client voted on")
        self._mark(position.identity.digest)
        self._sent = number
        self.audits.voted(number, hashlib.sha256(kept.vote.scalars).digest())
        send(self.signed(kept.vote))

    def _measured(self, number: int) -> bytes | None:
        begin = monotonic()
        scalars = self.model.vote(number)
        self.limits.check_seconds(number, monotonic() - begin)
        return scalars

    def _is_enrolled(self, position: Position) -> bool:
        """Return whether the chain has no other key of this client, so that its votes count; if it has, say so once."""
        if position.roster.key(self.name) in (b"", self._public):
            return True
        if not self._told:
            self._told = True
            self.notice("the chain does not have this client's key yet: its votes count two rounds after it is written")
        return False

    def signed(self, vote: Vote) -> Vote:
        """Return a vote with its signature, on the link that this client holds."""
        run = b"" if self.position is None else self.position.identity.digest
        statement = vote_statement(run, vote.round, self.head, hashlib.sha256(vote.scalars).digest())
        return Vote(vote.round, vote.scalars, vote.fingerprint, sign(self._key, statement))

    def _evaluate(self, send: Send) -> None:
        last = self.commits == self.rounds
        due = self.evaluates and (last or self.commits % self.settings.evaluate_every == 0)
        if not due or (self.evaluation is not None and self.evaluation.round == self.commits):
            return
        accuracy, loss, samples = self.model.evaluate()
        self.evaluation = Evaluation(self.commits, accuracy, loss if loss == loss else float("inf"), samples)
        send(self.evaluation)

    def _finish(self, send: Send) -> None:
        position = self.position
        if position is None or self.bye is None or not self.bye.finished or self.commits < self.rounds:
            return
        if self._snapshot_at < self.commits:
            self.snapshot()
        mark = self.model.fingerprint()
        statement = done_statement(position.identity.digest, self.commits, self.head, mark)
        send(Done(self.commits, mark, sign(self._key, statement)))

    def snapshot(self) -> None:
        """Store the weights, so that a restart needs only the commits after them; a full disk is no reason to stop."""
        self._snapshot_at = self.commits
        weights = self.model.weights() if self.store.folder is not None else None
        if weights is not None and self.position is not None:
            facts = position_facts(self.position)
            try:
                self.store.save_weights(weights, {**facts, "fingerprint": f"{self.model.fingerprint():016x}"})
            except InvalidParameters as error:
                self.notice(Said(f"{error}: this client goes on, and would replay more after a restart", "warning"))
        self._stored = monotonic()

    def _restore(self) -> None:
        known = self.store.load_run()
        if known is None:
            return
        try:
            identity = Identity.from_bytes(*known, outlined=True)
        except InvalidIdentity as error:
            raise Refused(f"{self.store.folder} is damaged: {error}") from None
        self._check_marks(identity)
        self.position = Position.start(identity)
        self.audits.begin(identity, 0)
        self._load_weights(identity)
        self._replay_log(self.position)

    def _load_weights(self, identity: Identity) -> None:
        found = self.store.load_weights()
        if found is None:
            return
        weights, facts = found
        position = position_from(identity, facts)
        try:
            whole = position is not None and f"{self.model.load(weights):016x}" == facts.get("fingerprint")
        except InvalidParameters:
            whole = False
        if position is None or not whole:
            self.model.reset()  # damaged: the federator has all commits
            return
        self.position, self._snapshot_at = position, position.head.rounds
        self.audits.begin(identity, position.head.rounds)

    def _replay_log(self, position: Position) -> None:
        """Apply the commits after the stored weights that it has applied before, as far as they were kept."""
        log = self._log(position.identity)
        while (held := log.caught_up(position.head.rounds)).scalars:
            try:
                position, steps = follow(position, held, self._signed_heads)
            except Refused:  # damaged: they come again
                return
            self._take(steps)
            self.audits.remember(steps)

    @property
    def _signed_heads(self) -> dict[int, Head]:
        return {kept.vote.round: Head(kept.vote.round, kept.commit, kept.link) for kept in self.store.signed}

    def _restart(self) -> None:
        """Go back to the initial weights and replay the commits, which must lead through all that was signed."""
        self._replays += 1
        if self._replays > MAX_REPLAYS:
            raise Refused(f"the federator asks for a replay for the {self._replays}th time: this client stops")
        self.notice("the federator says that this client's weights are wrong: it replays all commits, and checks them")
        if self.position is not None:
            self._begin_anew(Position.start(self.position.identity))
        self._replayed, self.welcomed = True, False
