"""A client without sockets or a clock: it applies commits, votes and evaluates as the federator's messages ask."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from cyber0.errors import Cyber0Error, Refused
from cyber0.network.store import Store, StoredVote
from cyber0.protocol.chain import commit_hash
from cyber0.protocol.identity import Identity, meaning_from
from cyber0.protocol.messages import (
    Bye,
    CatchUp,
    Committed,
    Done,
    Evaluation,
    FromClient,
    FromFederator,
    Hello,
    Rejection,
    RoundOpen,
    Vote,
    Welcome,
)
from cyber0.protocol.settings import Settings
from cyber0.replay.weights import Weights

__all__ = ["Member", "Model"]

Send = Callable[[FromClient], None]


class Model(Protocol):
    """What a member needs of its model and data: `cyber0.network.local_model.LocalModel` is one."""

    @property
    def manifest(self) -> bytes:
        """The digest of its layout."""
        ...

    @property
    def base(self) -> bytes:
        """The digest of its initial weights."""
        ...

    @property
    def layout(self) -> bytes:
        """Its layout, as the JSON that has that digest."""
        ...

    @property
    def meaning(self) -> bytes:
        """What the labels of its task mean: JSON with a digest for each part."""
        ...

    def vote(self, round: int) -> bytes:  # noqa: A002
        """Return the bytes of its vote in a round."""
        ...

    def advance(self, first: int, scalars: bytes) -> None:
        """Apply the commits of consecutive rounds, from round `first` on."""
        ...

    def reset(self) -> None:
        """Go back to the initial weights."""
        ...

    def fingerprint(self) -> int:
        """Return the fingerprint of the weights."""
        ...

    def evaluate(self) -> tuple[float | None, float, int]:
        """Return accuracy (None in a task without classes), mean loss, and on how many samples."""
        ...

    def weights(self) -> Weights | None:
        """Return a copy of the weights, to be stored; None if there are none to store."""
        ...

    def load(self, weights: Weights) -> int:
        """Set the weights to stored ones, and return their fingerprint."""
        ...


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

    `commits` is how many commits it has applied, and `head` the last hash of their chain. `is_over` says that the
    federator has ended the run for it.

    >>> from cyber0.config import RunConfig
    >>> from cyber0.network.stub_model import StubModel
    >>> settings = Settings.of(RunConfig(clients=1, byzantine=0, directions=2, rounds=1))
    >>> member = Member(settings, "client-0", StubModel(2))
    >>> welcome, said = Welcome(member.identity.to_bytes(), round=0), []
    >>> hello = member.hello()
    >>> member.receive([welcome, RoundOpen(0)], said.append)
    >>> member.receive([Committed(0, said[0].scalars), Bye("", finished=True, final=True)], said.append)
    >>> [type(message).__name__ for message in said], member.commits, member.is_over
    (['Vote', 'Done'], 1, True)

    """

    settings: Settings
    name: str
    model: Model
    store: Store = field(default_factory=Store)
    evaluates: bool = False
    snapshot_every: int = 100
    commits: int = field(default=0, init=False)
    bye: Bye | None = field(default=None, init=False)
    evaluation: Evaluation | None = field(default=None, init=False)
    welcomed: bool = field(default=False, init=False)  # on this stream: what came before belongs to an older one

    def __post_init__(self) -> None:
        model, meaning = self.model, meaning_from(self.model.meaning)
        self.identity: Identity = self.settings.identity(model.manifest, model.base, model.layout, meaning)
        self.head = self.identity.digest
        self._knows_run = self._replayed = False
        self._open = self._sent = -1
        self._snapshot_at = 0
        self._restore()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        if self.bye is None or not self.bye.final:
            return False
        return not self.bye.finished or self.commits == self.settings.agreement.rounds

    def hello(self) -> Hello:
        """Return the Hello for a new stream."""
        self.welcomed, self.bye, self._sent, self._open = False, None, -1, -1
        return Hello(
            self.name,
            self.model.manifest,
            self.model.base,
            self.commits,
            self.head if self._knows_run else b"",
            self.identity.digest if self._knows_run else b"",
            self.evaluates,
            self._replayed,
            layout=b"" if self._knows_run else self.model.layout,
            meaning=self.model.meaning,
        )

    def receive(self, messages: Iterable[FromFederator], send: Send) -> None:
        """Apply all commits among the messages, then vote in the newest open round: so a slow client catches up."""
        commits: list[tuple[int, bytes]] = []
        for message in messages:
            if isinstance(message, Committed):
                commits.append((message.round, message.scalars))
                self._open = message.round + 1
            elif isinstance(message, CatchUp):
                commits.append((message.first, message.scalars))
            else:
                self._handle(message, send)
            if not self.welcomed:
                commits.clear()
        if self.welcomed:
            self._advance(commits)
            self._vote(send)
            self._evaluate(send)
            self._finish(send)

    def _handle(self, message: FromFederator, send: Send) -> None:
        match message:
            case Welcome(identity):
                self._on_welcome(identity)
            case RoundOpen(number):
                self._open, self._sent = number, -1
            case Rejection(replay=True):
                self._restart()
                send(self.hello())
            case Bye(replay=replay):
                if replay:
                    self._restart()
                self.bye = self.bye or message  # the first one has the reason
            case _:
                pass

    def _on_welcome(self, identity: bytes) -> None:
        if identity != self.identity.to_bytes():
            raise Refused("the federator welcomes to another run than the one it invited to")
        self.welcomed, self._knows_run, self._replayed = True, True, False

    def _advance(self, commits: list[tuple[int, bytes]]) -> None:
        """Apply the commits that are new; refuse a federator that skips a round."""
        width, new, start = 4 * self.settings.plan.scalars, list[bytes](), self.commits
        for first, scalars in commits:
            here = start + len(new)
            if first > here or len(scalars) % width or (first + len(scalars) // width) > self.settings.agreement.rounds:
                raise Refused(f"the federator sends commits from round {first} on, but this client holds {here}")
            parts = [scalars[at : at + width] for at in range((here - first) * width, len(scalars), width)]
            new += parts
        if not new:
            return
        try:
            self.model.advance(start, b"".join(new))
        except Cyber0Error as error:
            raise Refused(f"a commit from round {start} on cannot be applied: {error}") from error
        for scalars in new:
            self.head = commit_hash(self.head, self.commits, scalars)
            self.commits += 1
        if self.commits - self._snapshot_at >= self.snapshot_every:
            self.snapshot()

    def _vote(self, send: Send) -> None:
        number = self.commits
        due = self._open == number != self._sent and number < self.settings.agreement.rounds
        if not due or self.bye is not None or self.name not in self.settings.voters(number):
            return
        kept = self.store.vote(number)
        if kept is None and number < self.store.newest:
            raise Refused(f"round {number} is open, but this client has voted in round {self.store.newest}")
        if kept is None:
            mark = self.model.fingerprint() if number % self.settings.fingerprint_every == 0 else None
            kept = StoredVote(Vote(number, self.model.vote(number), mark), self.head)
            self.store.save_vote(kept)
        elif kept.head != self.head:
            raise Refused(f"after {number} commits the federator's chain is not the one this client voted on")
        self._sent = number
        send(kept.vote)

    def _evaluate(self, send: Send) -> None:
        last = self.commits == self.settings.agreement.rounds
        due = self.evaluates and (last or self.commits % self.settings.evaluate_every == 0)
        if not due or (self.evaluation is not None and self.evaluation.round == self.commits):
            return
        accuracy, loss, samples = self.model.evaluate()
        self.evaluation = Evaluation(self.commits, accuracy, loss if loss == loss else float("inf"), samples)
        send(self.evaluation)

    def _finish(self, send: Send) -> None:
        if self.bye is None or not self.bye.finished or self.commits < self.settings.agreement.rounds:
            return
        if self._snapshot_at < self.commits:
            self.snapshot()
        send(Done(self.commits, self.model.fingerprint()))

    def snapshot(self) -> None:
        """Store the weights, so that a restart needs only the commits after them."""
        self._snapshot_at = self.commits
        weights = self.model.weights() if self.store.folder is not None else None
        if weights is not None:
            facts = {"run": self.identity.digest.hex(), "commits": str(self.commits), "head": self.head.hex()}
            self.store.save_weights(weights, {**facts, "fingerprint": f"{self.model.fingerprint():016x}"})

    def _restore(self) -> None:
        found = self.store.load_weights()
        if found is None:
            return
        weights, facts = found
        if facts.get("run") != self.identity.digest.hex():
            raise Refused(f"{self.store.folder} holds the state of another run: name another folder by --state")
        if f"{self.model.load(weights):016x}" != facts.get("fingerprint"):
            self.model.reset()  # damaged: the federator has all commits
            return
        self.commits, self.head, self._knows_run = int(facts["commits"]), bytes.fromhex(facts["head"]), True
        self._snapshot_at = self.commits

    def _restart(self) -> None:
        self.store.forget()
        self.model.reset()
        self.commits, self.head, self._snapshot_at, self._replayed = 0, self.identity.digest, 0, True
        self.evaluation, self.welcomed = None, False
