"""The federator: the round machine with a clock, sockets and a ledger. It has no model.

`cyber0.protocol.machine.step` decides what is to be done; here it is done, in order, over one stream per client.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from cyber0.callbacks import Callbacks, Round
from cyber0.errors import (
    Cyber0Error,
    InvalidConfig,
    InvalidIdentity,
    InvalidRoster,
    InvalidUserCode,
    RejectedMessage,
)
from cyber0.network.channel import Credentials, Peer
from cyber0.network.connection import MAX_MESSAGES, Connection
from cyber0.network.limits import RateLimit
from cyber0.network.log import Level, Said
from cyber0.network.streams import Streams, key_of
from cyber0.network.tally import Tally
from cyber0.network.watch import Watch
from cyber0.protocol.catching_up import catch_up
from cyber0.protocol.chain import Seal, link_statement
from cyber0.protocol.codec import decode_from_client, encode, size_limit
from cyber0.protocol.counting import count
from cyber0.protocol.events import (
    Adopt,
    Alarm,
    Arrived,
    ClientStream,
    Deadline,
    Effect,
    Evaluated,
    Event,
    HangUp,
    Impatience,
    Left,
    Notice,
    Patience,
    Proposed,
    Received,
    Record,
    RecordIdentity,
    RecordPromise,
    Replay,
    Send,
)
from cyber0.protocol.ledger import Ledger, Report
from cyber0.protocol.machine import step, with_proposed
from cyber0.protocol.messages import (
    VERSION,
    Ask,
    Audit,
    Bye,
    Committed,
    Done,
    Evaluation,
    FromClient,
    FromFederator,
    Hello,
    Recalled,
    Request,
    Vote,
)
from cyber0.protocol.pages import BallotPages
from cyber0.protocol.records import from_wire
from cyber0.protocol.roster import Change, changes_from, when
from cyber0.protocol.settings import Settings
from cyber0.protocol.signed import Signatures, done_is_signed
from cyber0.protocol.signing import PrivateKey, encoded, is_by, key_beside, new_key, sign
from cyber0.protocol.sqlite import File
from cyber0.protocol.state import restored

__all__ = ["Federator", "when"]

HELLO_BURST, HELLO_SECONDS = 20, 1.0  # at once, and until one more is answered
AUDIT_BURST, AUDIT_SECONDS = 256, 0.001  # pages of ballots at once, and until one more is sent to a client
Messages = list[tuple[Connection, FromClient]]

PATIENCE = 5.0  # seconds of such pages that a client may have asked for


class Federator:
    """A federator of one run: `start` it, wait until it is `over`, `close` it; or `serve`, which does all three.

    Args:
        settings: Those of the federation.
        ledger: Where the run is recorded; one that holds a run is continued.
        peer_name: A function of a `cyber0.network.channel.Peer` that returns its name, as that of `cyber0.network.keys`
            does by certificates. Without it a client is whoever it says it is.
        key: What signs every link of the chain; by default one beside the ledger, which is made for it.
        certificate: That of the key, in DER, by which clients know whose it is.
        certificates: Those of clients, in DER by name, that are known beforehand: the run is founded with their keys,
            whether they have come or not.
        certified: Whether the key of a client's certificate must be that of its votes.
        linger: Seconds for which latecomers are served after the end. Before that, clients that are there have the time
            of a deadline to report their fingerprints.
        notice: A function that is called with a sentence, a `cyber0.network.log.Said`, when something happens. What
            repeats is counted, and shown at growing intervals.
        watch: What is told of all that happens, for metrics and the live page.
        callbacks: What is called before the first round, after each round and after each evaluation of a client; a
            callback that raises is reported and not called again.

    >>> from cyber0.config import RunConfig
    >>> from cyber0.protocol.ledger import Memory
    >>> async def example():
    ...     federator = Federator(Settings.of(RunConfig(clients=3, byzantine=1)), Memory())
    ...     port = await federator.start("127.0.0.1:0")
    ...     federator.stop("enough")
    ...     await federator.close()
    ...     return port > 0, federator.reason
    >>> asyncio.run(example())
    (True, 'enough')

    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        *,
        peer_name: Callable[[Peer], str] | None = None,
        key: PrivateKey | None = None,
        certificate: bytes = b"",
        certificates: Mapping[str, bytes] | None = None,
        certified: bool = False,
        linger: float = 0.0,
        notice: Callable[[Said], None] = lambda _: None,
        watch: Watch | None = None,
        callbacks: Iterable[Any] = (),
    ) -> None:
        self._certificates = dict(certificates or {})
        settings = replace(settings, keys={name: key_of(shown) for name, shown in self._certificates.items()})
        self.settings, self.ledger, self.linger, self.notice = settings, ledger, linger, notice
        self.key, self.certificate = key or _key_of(ledger), certificate
        self.public = encoded(self.key.public_key())
        if ledger.founded and ledger.identity.federator != self.public:
            raise InvalidConfig(
                f"the ledger is signed with the key {ledger.identity.federator.hex()[:16]}, and this one is "
                f"{self.public.hex()[:16]}: give the key it began with, by --tls or --key"
            )
        self._callbacks, self._news = [Callbacks([each]) for each in callbacks], list[tuple[str, Any]]()
        self.state = restored(settings, ledger, self.public)
        self.tally, self.watch = Tally(self.state.who.members), watch or Watch()
        self.over = asyncio.Event()
        self.reason, self.failure = "", None
        self._limit = size_limit(settings.plan.scalars)
        self._members: tuple[tuple[str, ...], tuple[str, ...]] = (), ()  # of a roster, and those who are new on it
        self._proposals: list[asyncio.Future[int | None]] = []  # to be written with the open round
        self._audits = RateLimit(AUDIT_BURST, AUDIT_SECONDS)
        self._pages = BallotPages(ledger)
        self._signature = b""
        self._hellos = RateLimit(HELLO_BURST, HELLO_SECONDS)
        known = self.tally.clients
        self.streams = Streams(
            *(self._limit, peer_name, certified, known, self._handle_all, self._ended, self.say),
            awaited=lambda: len(self.state.waiting),
        )
        self._alarm: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._deserted = asyncio.Event()  # no client is connected
        self._last: tuple[FromFederator | None, bytes] = None, b""
        self._handlers: dict[type[Effect], Callable[[Any], None]] = {
            Adopt: self._adopt,
            Alarm: self._set_alarm,
            Evaluated: self._evaluated,
            RecordIdentity: self._record_identity,
            RecordPromise: lambda effect: self.ledger.promise(effect.promised),
            HangUp: self._hang_up,
            Notice: self._show_notice,
            Patience: self._set_patience,
            Record: self._record,
            Replay: self._replay,
            Send: self._send,
        }

    async def serve(self, listen: str, credentials: Credentials | None = None) -> None:
        """Serve the run to its end, or until `stop`."""
        await self.start(listen, credentials)
        await self.over.wait()
        await self.close()

    async def start(self, listen: str, credentials: Credentials | None = None) -> int:
        """Listen at HOST:PORT, where port 0 is any free one, and return the port."""
        port = await self.streams.start(listen, credentials, clients=self.state.who.size)
        self._call("before_run")
        if self.state.is_finished:
            self._end()
        return port

    def stop(self, reason: str) -> None:
        """Stop after the current event; the run can be continued from its ledger."""
        self.reason = self.reason or reason
        self.over.set()
        self._settle(None)

    async def close(self) -> None:
        """End all streams, seal the ledger and free the port; raise what went wrong. The ledger stays open."""
        reason = self.reason if self.failure is None else "of an error"  # which one is not for clients to know
        bye = Bye(f"the federator stops: {reason}", finished=self.state.is_finished, final=self.state.is_finished)
        for connection in list(self.streams.open.values()):
            self.streams.dismiss(connection, bye)
        for pending in (self._alarm, self._patience, self._ending):
            if pending is not None:
                pending.cancel()
        try:
            if self.failure is None and self.ledger.founded:
                self.seal()
        except Cyber0Error as error:
            self.failure = error
        await self.streams.close()
        if self.failure is not None:
            raise self.failure

    def sent(self) -> int:
        """Return how many bytes were sent to clients so far."""
        return sum(seen.sent for seen in self.tally.clients.values()) + sum(
            connection.outlet.sent for connection in list(self.streams.open.values())
        )

    def seal(self) -> None:
        """Seal the ledger's head, signed, with the fingerprint that the clients agree on."""
        mark = self.tally.agreed(self.state.who.byzantine + 1) if self.state.is_finished else None
        head = self.ledger.head
        before = next((seal for seal in self.ledger.seals if seal.rounds == head.rounds), None)
        if before is not None and mark is None:
            mark = before.fingerprint  # too few clients came this time: what was reported before is still true
        seal = Seal.of(head, mark)
        self.ledger.seal(replace(seal, signature=sign(self.key, seal.statement(self.ledger.identity.digest))))

    # Streams

    def _ended(self, connection: Connection) -> None:
        if connection.stream is None:
            return
        self._note_deserted()
        if seen := self.tally.clients.get(connection.stream.client):
            seen.sent += connection.outlet.sent
        if connection.outlet.is_full:
            text = f"{connection.stream.client} reads too slowly, and was disconnected: it may come again"
            self.say(text, "warning", connection.stream.client)
        present = self.state.is_current(connection.stream)
        self._step(Left(connection.stream))
        if present and not (self.state.is_finished or self.over.is_set()):
            here = f"{len(self.state.present)} of {len(self.state.who.names)} are here"
            self.say(f"{connection.stream.client} has left: {here}", client=connection.stream.client)

    def _handle_all(self, inbox: list[tuple[Connection, bytes]]) -> None:
        """Handle messages: all are read, then the signatures of all votes are checked, then each has its effects."""
        read = [(connection, message) for connection, data in inbox if (message := self._read(connection, data))]
        while read:
            read = self._handle_first(read)

    def _handle_first(self, read: Messages) -> Messages:
        """Handle messages until links or keys may be others than those that votes were checked by; return the rest."""
        state, signatures, at = self.state, Signatures(self.state), 0
        votes = [self._vote(connection, message, signatures) for connection, message in read]
        while at < len(read):
            if self.state.head is not state.head or self.state.proposed is not state.proposed:
                return read[at:]
            if votes[at] is not None and not self.over.is_set():
                self.state, taken = count(self.state, _votes_from(at, read, votes))
                at += taken
            if at < len(read):
                self._handle(*read[at], votes[at])
                at += 1
        return []

    def _vote(self, connection: Connection, message: FromClient, signatures: Signatures) -> Received | None:
        """Return a vote of a client of the run as an event; None for any other message."""
        stream = connection.stream
        if stream is None or not isinstance(message, Vote) or connection.outlet.is_ended:
            return None
        digest = signatures.of(stream.client, message)
        return Received(stream, message, bool(digest), digest)

    def _read(self, connection: Connection, data: bytes) -> FromClient | None:
        """Return a client's message; None if its stream is over, now or since before."""
        if connection.outlet.is_ended:
            return None
        if connection.is_flood(self.state.round):
            bye = Bye(f"more than {MAX_MESSAGES} messages in round {self.state.round}")
            self.streams.dismiss(connection, bye)
            return None
        if connection.stream is not None and (seen := self.tally.clients.get(connection.stream.client)):
            seen.received += len(data)
        try:
            return decode_from_client(data, self._limit)
        except RejectedMessage as error:
            self.streams.dismiss(connection, Bye(str(error)))
            return None

    def _handle(self, connection: Connection, message: FromClient, vote: Received | None) -> None:
        if connection.outlet.is_ended:
            return
        try:
            self._take(connection, message, vote)
        except RejectedMessage as error:
            self.streams.dismiss(connection, Bye(str(error)))

    def _take(self, connection: Connection, message: FromClient, vote: Received | None) -> None:
        match message:
            case Vote() if vote is not None and self.state.is_current(vote.stream):
                self._step(vote)
            case Ask():
                self._ask(connection, message)
            case Hello():
                self._hello(connection, message)
            case Request():
                self._request(connection, message)
            case Recalled() if connection.stream is not None:
                self._step(Received(connection.stream, message))
            case _ if connection.stream is not None and self.state.is_current(connection.stream):
                self._talk_of(connection, connection.stream, message)
            case _:
                pass

    def _ask(self, connection: Connection, ask: Ask) -> None:
        if ask.version == VERSION:
            client = connection.client or ask.client
            told = self.settings.invitation(self.public, self.certificate, client=client, admitted=self._admitted())
            connection.outlet.put(encode(told))
        else:
            bye = Bye(f"this federator speaks version {VERSION} of the protocol, not {ask.version}", final=True)
            self.streams.dismiss(connection, bye)

    def _admitted(self) -> tuple[str, ...]:
        """Return who was admitted since the run was founded."""
        members = self.state.who.members
        if self._members[0] is not members:
            self._members = members, tuple(name for name in members if name not in self.settings.places)
        return self._members[1]

    def _talk_of(self, connection: Connection, stream: ClientStream, message: FromClient) -> None:
        """Handle what a client says that is part of the run."""
        match message:
            case Done():
                self._done(stream.client, message)
            case Audit():
                self._audit(connection, stream.client, message)
            case Evaluation():
                self._step(Received(stream, message))
            case _:
                pass

    def _done(self, client: str, done: Done) -> None:
        """Keep what a client signs at the end; a quorum of clients makes the last commit final."""
        if done_is_signed(self.state, client, done):
            self.tally.clients[client].fingerprint = done.fingerprint
            self.ledger.report(Report(client, done.round, done.fingerprint, done.signature))

    def _audit(self, connection: Connection, client: str, audit: Audit) -> None:
        """Send a page of the ballots of a round, in its turn; an empty one if they are not here."""
        connection.messages -= 1  # they have a limit of their own
        delay = self._audits.wait(client)
        if delay > PATIENCE:
            self.streams.dismiss(connection, Bye("too many audits: come again later"))
        elif delay:
            asyncio.get_running_loop().call_later(delay, self._send_page, connection, audit)
        else:
            self._send_page(connection, audit)

    def _send_page(self, connection: Connection, audit: Audit) -> None:
        if not connection.outlet.is_ended:
            connection.outlet.put(encode(self._pages.page(audit.round, audit.page)))
            self.watch.pages += 1

    def _request(self, connection: Connection, request: Request) -> None:
        """Take a client's wish about its own entry on the roster, if it is signed with its present key.

        The stream needs no Hello. It ends with the answer, once the change is written.
        """
        try:
            changes = changes_from(request.change)
        except InvalidIdentity as error:
            raise RejectedMessage(str(error)) from None
        asking = changes[0].name if changes else ""
        if not self._hellos.allow(asking if asking in self.tally.clients else ""):
            raise RejectedMessage("too many requests: ask again later")
        run = b"" if self.state.identity is None else self.state.identity.digest
        for change in changes:
            name = connection.client or change.name
            own = change.name == name and change.kind in ("rotate", "revoke")
            if not own or not is_by(self.state.who.key(name), change.signature, change.statement(run)):
                raise RejectedMessage(
                    f"{change.text}: a client can ask for a new key or to be revoked for itself alone, signed with its "
                    "present key"
                )
        try:
            written = self.propose(changes)
        except Cyber0Error as error:
            connection.end(Bye(str(error), final=True))
            return
        written.add_done_callback(lambda done: connection.end(self._answer(changes, done.result())))

    def _answer(self, changes: tuple[Change, ...], number: int | None) -> Bye:
        """Return what ends the stream of a client that asked for changes."""
        if number is None:
            return Bye("the federator stops before it is written: ask again")
        return Bye(when(changes, number, self.state.who.last), finished=True, final=True)

    def propose(self, changes: Iterable[Change], certificate: bytes = b"") -> "asyncio.Future[int | None]":
        """Ask for changes of the roster, as the operator; raise `InvalidRoster` if they cannot be made.

        The future has the round that they are written with, once they are on disk; None if the federator stops before.

        Args:
            changes: All of them are made, or none.
            certificate: That of a new key, in DER, to be kept in the ledger.

        """
        changes = tuple(changes)
        if self.over.is_set():
            raise InvalidRoster("the federator stops: ask again when it is back")
        with_proposed(self.state, changes)
        if certificate:
            self.ledger.certify(certificate)
        written: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._proposals.append(written)
        self._step(Proposed(changes))
        return written

    def _settle(self, number: int | None) -> None:
        """Tell who has proposed changes which round they are written with."""
        proposals, self._proposals = self._proposals, []
        for written in proposals:
            if not written.done():
                written.set_result(number)

    def _hello(self, connection: Connection, hello: Hello) -> None:
        client = connection.client or hello.name
        if not self._hellos.allow(client if client in self.tally.clients else ""):  # strangers share one allowance
            self.streams.dismiss(connection, Bye("too many Hellos: come again later"))
            return
        if connection.key and hello.key != connection.key and hello.version == VERSION:
            self.streams.dismiss(
                connection, Bye("its key is not that of its certificate: sign with that one", final=True)
            )
            return
        if (place := self.state.who.places.get(client)) is not None:
            client = self.state.who.names[place]  # one object, and not two that are equal
        if connection.client is not None:
            connection.client = client
        if connection.key:
            hello = replace(hello, key=connection.key)
        connection.stream = connection.stream or ClientStream(client, connection.number)
        if client in self.tally.clients:
            self.streams.know(connection)
        known = self.ledger.founded and hello.commits <= self.state.round
        head = self.ledger.head_at(hello.commits).link if known else b""
        if connection.certificate:
            self._certificates[client] = connection.certificate
            connection.certificate = b""  # it is kept in the ledger, and takes memory
        self._note_takeover(client, connection)
        self._step(Arrived(connection.stream, hello, head or b""))
        self._certify(client)

    def _note_takeover(self, client: str, connection: Connection) -> None:
        """Say so where streams of one client take each other's place in turn."""
        before = self.state.present.get(client)
        old = None if before is None else self.streams.open.get(before.stream.number)
        if old is None or old is connection or old.outlet.is_ended:
            return
        if said := self.watch.takeovers.seen(client, old.address, connection.address):
            self.say(said, "warning", client)

    def _certify(self, client: str) -> None:
        """Keep the certificate of a client's key in the ledger, once there is a run."""
        if self.ledger.founded and client in self._certificates:
            self.ledger.certify(self._certificates.pop(client))

    # Effects

    def _step(self, event: Event) -> None:
        if self.over.is_set():
            return
        try:
            self.state, effects = step(self.state, event, time.monotonic())
            for effect in effects:
                self._handlers[type(effect)](effect)
        except Exception as error:  # such as a full disk: nothing may be decided after it
            self.failure = error
            self.stop(str(error))
        news, self._news = self._news, []
        for method, what in news:  # after all messages are on their way
            self._call(method, what)
        if self.state.is_finished:
            self._end()

    def _call(self, method: str, *arguments: Any) -> None:
        """Call the callbacks; one that raises stops no federation, and is not called again."""
        for callback in list(self._callbacks):
            try:
                getattr(callback, method)(self, *arguments)
            except InvalidUserCode as error:
                self._callbacks.remove(callback)
                self.say(f"{error}: it is not called again", "error")

    def _send(self, effect: Send) -> None:
        if connection := self.streams.open.get(effect.stream.number):
            connection.outlet.put(self._encoded(effect.message))

    def _record(self, effect: Record) -> None:
        identity = self.ledger.identity
        statement = link_statement(identity.digest, effect.head.rounds, effect.head.link or b"")
        self._signature = sign(self.key, statement)
        self.ledger.append(effect.decision, self._signature)  # on disk when this returns, so that it may be sent
        self._settle(effect.decision.round)
        if effect.decision.changes:
            self.tally.add(self.state.who.members)
        self.tally.record(effect.decision)
        self.watch.decided(effect.decision)
        if self._callbacks:
            ballots = [ballot for ballot in effect.decision.ballots if ballot.verdict != "late"]
            voted = tuple(dict.fromkeys(ballot.client for ballot in ballots))
            counted = tuple(ballot.client for ballot in ballots if ballot.verdict == "counted")
            scalars = from_wire(effect.decision.scalars, self.settings.plan.rows)
            self._news.append(("after_round", Round(effect.decision.round, voted, counted, scalars)))

    def _adopt(self, effect: Adopt) -> None:
        """Write rounds that clients gave back; changes that were proposed meanwhile must be asked for again."""
        self.ledger.append_all(effect.rounds)
        self._settle(None)
        self.tally.add(self.state.who.members)
        if self._ending is not None and not self.state.is_finished:
            self._ending.cancel()
            self._ending = None

    def _set_patience(self, effect: Patience) -> None:
        if self._patience is not None:
            self._patience.cancel()
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(effect.seconds, self._ring, Impatience(effect.round))

    def _set_alarm(self, effect: Alarm) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        event = Deadline(effect.round, effect.extension)
        self._alarm = asyncio.get_running_loop().call_later(effect.seconds, self._ring, event)

    def _ring(self, event: Event) -> None:
        """Step at a time that was set; what came before it is in time."""
        self.streams.flush()
        self._step(event)

    def _replay(self, effect: Replay) -> None:
        if connection := self.streams.open.get(effect.stream.number):
            connection.outlet.put_all(map(encode, catch_up(self.ledger, effect.first, effect.stop)))

    def _record_identity(self, effect: RecordIdentity) -> None:
        self.ledger.found(effect.identity)
        known = [self.certificate] if self.certificate else []
        self.ledger.certify(*known, *self._certificates.values())
        self._certificates.clear()

    def _evaluated(self, effect: Evaluated) -> None:
        self.tally.clients[effect.client].evaluation = effect.evaluation
        self.watch.evaluated(seen.evaluation for seen in self.tally.clients.values())
        self._news.append(("after_evaluation", {"client": effect.client, **asdict(effect.evaluation)}))

    def _hang_up(self, effect: HangUp) -> None:
        if connection := self.streams.open.get(effect.stream.number):
            connection.end(Bye(effect.reason))

    def _show_notice(self, effect: Notice) -> None:
        self.say(effect.text, effect.level, effect.client)

    def _encoded(self, message: FromFederator) -> bytes:
        """Return the bytes of a message. A commit goes to many clients, and is encoded once."""
        if self._last[0] is not message:
            signed = replace(message, signature=self._signature) if isinstance(message, Committed) else message
            self._last = message, encode(signed)
        return self._last[1]

    def say(self, text: str, level: Level = "info", client: str = "") -> None:
        """Give a notice to whoever watches; what repeats is counted."""
        said = self.watch.notice(Said(text, level, client), known=client in self.tally.clients)
        if said is not None:
            self.tally.notices.append(said)
            self.notice(said)

    # The end

    def _end(self) -> None:
        if self._ending is None:
            self._note_deserted()
            self._ending = asyncio.ensure_future(self._wait_for_the_last())

    def _note_deserted(self) -> None:
        if not any(connection.stream for connection in self.streams.open.values()):
            self._deserted.set()
        else:
            self._deserted.clear()

    async def _wait_for_the_last(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), self.settings.deadline)
        await asyncio.sleep(self.linger)
        self.stop(f"all {self.state.who.last} rounds are decided")


def _votes_from(at: int, read: Messages, votes: list[Received | None]) -> Iterator[Received]:
    """Yield votes, up to what is none or comes from a stream that is over."""
    for place in range(at, len(read)):
        vote = votes[place]
        if vote is None or read[place][0].outlet.is_ended:
            return
        yield vote


def _key_of(ledger: Ledger) -> PrivateKey:
    """Return the key that belongs to a ledger: in a file beside it, or a new one for a ledger in memory."""
    if not isinstance(ledger, File):
        return new_key()
    return key_beside(ledger.path.with_name(ledger.path.name + "-key.pem"))
