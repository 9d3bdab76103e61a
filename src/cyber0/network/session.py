"""A client's side of the stream: it connects, asks, says Hello, and reconnects whenever the stream breaks."""

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509

from cyber0.errors import InvalidConfig, InvalidEvidence, InvalidParameters, Refused, RejectedMessage, Unreachable
from cyber0.extras import require
from cyber0.network.audits import Audits, Caught
from cyber0.network.channel import Credentials
from cyber0.network.connect import ClientChannel, connect
from cyber0.network.consent import Limits, terms
from cyber0.network.handshake import speaks_tls
from cyber0.network.liars import Liar
from cyber0.network.log import Level, Said, counting
from cyber0.network.member import Member
from cyber0.network.model import Model
from cyber0.network.store import Marks, Store, inherit_key
from cyber0.network.welcome import check_version
from cyber0.printable import printable
from cyber0.protocol.arrival import TAKEN
from cyber0.protocol.codec import LIMIT, decode_from_federator, encode, size_limit
from cyber0.protocol.evidence import judge, with_certificates
from cyber0.protocol.messages import Ask, Bye, FromClient, Invitation
from cyber0.protocol.promise import terms_digest
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import PrivateKey, PublicKey, decoded, encoded
from cyber0.protocol.trust import read_certificate, vouched
from cyber0.threads import limit_threads

if TYPE_CHECKING:
    from cyber0.network.private_data import PrivacyOptions  # which needs torch

__all__ = ["Outcome", "attend", "run_client"]

FIRST, LONGEST = 0.1, 10.0  # seconds from one attempt to the next
GRACE = 5.0  # seconds for the last messages to arrive
OTHER_FEDERATOR = (
    "what answers shows another certificate than that of the federator whose run it offers: connect to the federator "
    "itself, and to nothing that decrypts in between"
)

Make = Callable[[Settings], "Member | Liar"]
Watch = Callable[["Member | Liar"], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended for a client: its rounds, its fingerprint, its last evaluation, the hash of its chain.

    `unaudited` is how many rounds it picked to audit, whose votes the federator has lost. `epsilon` is what its data
    set has spent of its privacy in all runs, if it is private.
    """

    rounds: int
    fingerprint: int
    accuracy: float | None
    loss: float | None
    reason: str
    head: bytes = b""
    unaudited: int = 0
    epsilon: float | None = None


def run_client(
    address: str,
    name: str,
    *,
    credentials: Credentials | None = None,
    key: PrivateKey | None = None,
    authority: x509.Certificate | None = None,
    task: Any = None,
    data: Path | None = None,
    source: str = "auto",
    model: str | None = None,
    device: str = "auto",
    stream: str | None = None,
    state: Path | None = None,
    deal: str | None = None,
    index: int | None = None,
    own_code: bool = False,
    evaluates: bool = False,
    privacy: "PrivacyOptions | None" = None,
    audit: float = 0.05,
    audit_budget: float = 2.0**20,
    accept_lost: bool = False,
    expect: bytes | None = None,
    limits: Limits | None = None,
    marks: Path | None = None,
    attack: str | None = None,
    snapshot_every: int = 100,
    give_up: float | None = None,
    watch: Watch = lambda _: None,
    notice: Callable[[Said], None] = lambda _: None,
    out: Path | None = None,
    threads: Callable[[int], int | None] = lambda _: None,
) -> Outcome:
    """Take part in the run that is served at an address, to its end. Blocks; needs torch.

    Raises `Refused` if the federator refuses the client, and `Unreachable` if none answers for `give_up` seconds.

    Args:
        address: HOST:PORT of the federator.
        name: The client's name on the roster.
        credentials: Those of TLS; without them the stream is not encrypted.
        key: What signs its votes: that of its certificate, if it has one. By default one that is made in its state.
        authority: The certificate of the authority that must vouch for the federator's key.
        task: A `cyber0.tasks.task.Task` to train instead of the one that the run names.
        data: The folder of the task's data.
        source: Where the data come from, as for `cyber0 join`.
        model: The language model on this machine; by default as the run says.
        device: Where to compute.
        stream: How much of the device's memory weights that are not trained may take, as 8GiB; by default all of it.
        state: A folder in which each run gets one of its own, by which a client continues after a crash.
        deal: A partition, such as "iid", to train on the share that it deals this client instead of on all data.
        index: Which share; by default that of the client's place on the roster.
        own_code: Whether a task that the run names as `package.module:object` may be imported.
        evaluates: Whether to evaluate on the task's test samples and send the result.
        privacy: The privacy budget of its data; by default its votes are not private.
        audit: How many rounds to decide again from their ballots: from 0, none, to 1, each before the next vote.
        audit_budget: Bytes per second that this may take, unless every round is audited.
        accept_lost: Whether to go on where the federator has lost the votes of a round, though every one is audited.
        expect: The digest of the only run to take part in.
        limits: What the run may cost this machine; by default what stops the absurd.
        marks: A folder beside the key, with a file for each run that it has voted in.
        attack: A lie to tell, for tests.
        snapshot_every: Rounds from one copy of the weights to the next.
        give_up: Seconds to look for a federator; by default for ever.
        watch: A function that is called with the member whenever it has done something.
        notice: A function that is called with a sentence, a `cyber0.network.log.Said`, when something happens. What
            repeats is counted, and shown at growing intervals.
        out: A safetensors file for the trained weights.
        threads: A function of how many clients the run has, that says how many threads to compute on; None: as it is.

    >>> run_client("127.0.0.1:1", "alice", give_up=0.1)
    Traceback (most recent call last):
    cyber0.errors.Unreachable: no federator answers at 127.0.0.1:1: ...

    """
    _check_silence(privacy, evaluates=evaluates)
    held: list[Member] = []
    opened = ExitStack()  # the budget of its data
    allowed = limits or Limits()

    say = counting(notice)

    def make(settings: Settings) -> Member | Liar:
        _check_name(name, settings)
        if task is None and not own_code:
            refuse_code(settings.agreement.task)
        allowed.check(settings)
        require("torch", extra="train")
        _allot(threads(settings.agreement.clients))
        from cyber0.network.local_model import LocalModel, load_task
        from cyber0.network.private_data import check_terms
        from cyber0.tasks import memory

        check_terms(settings.agreement, privacy)
        allowed.check_batch(settings, memory.available())
        with memory.at_most(allowed.bytes):
            chosen = task or load_task(settings.agreement, data, source, model)
            place = settings.place if index is None else index
            trained = LocalModel(settings.agreement, place, chosen, device, deal, privacy, say, stream)
        opened.callback(trained.close)
        terms_known = state_digest(settings, trained)
        promise = trained.promise(terms_known)
        shown: dict[str, Any] = {"secure": credentials is not None, "own_code": own_code, "promise": promise}
        for text in terms(settings, trained.parameters.size, audit, **shown):
            say(text)
        say(_training_on(trained.samples, len(chosen.dataset.train_labels), deal))
        folder = None if state is None else state / f"{terms_known.hex()[:16]}-{name}"
        _refuse_liar(folder, settings.federator, own_code)
        if folder is not None and settings.parent is not None:
            inherit_key(folder, settings.parent.run)
        store = Store(folder)

        def keep(proof: bytes) -> str:
            return store.save_evidence(with_certificates(proof, [settings.certificate]))

        audits = Audits(audit, audit_budget, own_code=own_code, accepts_lost=accept_lost, notice=say, keep=keep)
        options: dict[str, Any] = {
            "expect": expect,
            "limits": allowed,
            "marks": None if marks is None else Marks(marks),
            "promise": None if promise is None else (promise, terms_known),
        }
        member = Member(*(settings, name, trained, store, evaluates, snapshot_every, key, say, audits), **options)
        held.append(member)
        return member if attack is None else Liar(member, attack)

    try:
        options: dict[str, Any] = {"authority": authority, "give_up": give_up, "watch": watch, "notice": say}
        asyncio.run(attend(address, make, name, credentials=credentials, **options))
        return _outcome(held[0], out)
    except Caught as caught:
        proof = with_certificates(caught.evidence, [held[0].settings.certificate])
        raise Refused(f"{caught}; {held[0].store.save_evidence(proof)}") from None
    finally:
        for member in held:
            member.store.close()
        opened.close()


def _allot(threads: int | None) -> None:
    """Compute on so many threads; None: on as many as before."""
    if threads is not None:
        limit_threads(threads)
        require("torch", extra="train").set_num_threads(threads)


def _check_silence(privacy: Any, *, evaluates: bool) -> None:
    if evaluates and privacy is not None:
        raise InvalidConfig("evaluates = True tells what the privacy budget does not cover: leave one of them out")


def _check_name(name: str, settings: Settings) -> None:
    if settings.place < 0:
        raise Refused(f"{name!r} is not on the roster: ask the federation's operator which name to join by")
    if Path(name).name != name:  # it becomes the name of a folder, and may come from the federator
        raise Refused(f"name = {name!r} cannot name a folder")


def _refuse_liar(folder: Path | None, federator: bytes, own_rule: bool) -> None:
    """Refuse a federator of which evidence was stored: whatever restarts a client does not make it vote for a liar."""
    for path in sorted(folder.glob("evidence-*.json")) if folder else []:
        with suppress(InvalidEvidence):
            found = judge(path.read_bytes(), own_rule)
            if found.party == "the federator" and found.key == federator:
                raise Refused(f"the federator has lied, as {path} proves: {found.text}; to go on, move that file away")


def state_digest(settings: Settings, model: Model) -> bytes:
    """Return a digest of what a client knows of a run before it says Hello; its state of that run is kept under it."""
    parts = model.manifest, model.base, model.meaning, settings.federator
    return terms_digest(settings.agreement, *parts, settings.parent)


def refuse_code(task: str) -> None:
    """Refuse a task that is code: a federator is not trusted to choose what runs on this machine.

    >>> refuse_code("os:getcwd")
    Traceback (most recent call last):
    cyber0.errors.Refused: task = 'os:getcwd' is code that would be imported here: say --own-code if it is yours
    """
    if ":" in task:
        raise Refused(f"task = {task!r} is code that would be imported here: say --own-code if it is yours")


def check_federator(invitation: Invitation, authority: x509.Certificate | None, shown: bytes) -> None:
    """Refuse a federator for whose key the authority does not vouch, or another than has shown its certificate.

    `shown` is that certificate, in DER: whoever passes on what another federator of the same authority says would read
    the votes of a client that talks to it.
    """
    if decoded(invitation.federator) is None:
        raise Refused("the federator's invitation has no public key by which its chain could be checked")
    if authority is not None and ("", invitation.federator) not in vouched([invitation.certificate], authority):
        raise Refused("the federator signs with a key for which the authority in ca.pem does not vouch")
    if authority is not None and is_another(shown, invitation.federator):
        raise Refused(OTHER_FEDERATOR)


def is_another(shown: bytes, key: bytes) -> bool:
    """Return whether a certificate, in DER, is another's than that of a key; there is none without TLS."""
    if not shown:
        return False
    found = read_certificate(shown).public_key()
    return not isinstance(found, PublicKey) or encoded(found) != key


def _training_on(samples: int, held: int, deal: str | None) -> str:
    if deal is None:
        return f"training on all {samples:,} samples of this client's data"
    return (
        f"training on {samples:,} of {held:,} samples, the share that {deal} deals this client: for trying things out"
    )


def _outcome(member: Member, out: Path | None) -> Outcome:
    weights = member.model.weights()
    if out is not None and weights is not None:
        try:
            weights.write(out)
        except InvalidParameters as error:
            if kept := member.store.file_of(member.model.fingerprint()):
                error.add_note(f"the same weights are in {kept}")
            raise
    accuracy, loss = (None, None) if member.evaluation is None else (member.evaluation.accuracy, member.evaluation.loss)
    reason = "" if member.bye is None else member.bye.reason
    found = member.commits, member.model.fingerprint(), accuracy, loss, reason, member.head
    private = getattr(member.model, "private", None)
    epsilon = None if private is None else private.budget.spent()
    return Outcome(*found, unaudited=member.audits.unaudited, epsilon=epsilon)


async def attend(
    address: str,
    make: Make,
    name: str = "",
    *,
    credentials: Credentials | None = None,
    authority: x509.Certificate | None = None,
    give_up: float | None = None,
    watch: Watch = lambda _: None,
    notice: Callable[[str], None] = lambda _: None,
    threaded: bool = True,
) -> "Member | Liar":
    """Attend a run to its end, with the member that `make` returns for its settings; reconnect after every break.

    The member works in a thread of its own, so that the stream stays alive meanwhile, unless `threaded` is false.

    >>> asyncio.run(attend("127.0.0.1:1", make=lambda settings: None, give_up=0.1))
    Traceback (most recent call last):
    cyber0.errors.Unreachable: no federator answers at 127.0.0.1:1: ...
    """
    with ThreadPoolExecutor(1, thread_name_prefix="member") as pool:
        session = _Session(address, make, name, credentials, authority, watch, pool if threaded else None)
        since, pause = time.monotonic(), FIRST
        while True:
            problem = await session.once()
            if session.member is not None and session.member.is_over:
                return _finished(session.member)
            if session.was_welcomed:
                since, pause = time.monotonic(), pause if session.was_replaced else FIRST
            elif session.member is None and credentials is None and await asyncio.to_thread(speaks_tls, address):
                problem = f"{problem}: what answers there speaks TLS, so give --tls DIR (see cyber0 keys)"
            if give_up is not None and time.monotonic() - since >= give_up:
                raise Unreachable(f"no federator answers at {address}: {problem}")
            notice(Said(*session.complaint(problem)))
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
            pause = min(2 * pause, LONGEST)


def _finished(member: "Member | Liar") -> "Member | Liar":
    bye = member.bye
    if bye is not None and not bye.finished:
        raise Refused(f"the federator refuses this client: {printable(bye.reason)}")
    return member


class _Session:
    def __init__(
        self,
        address: str,
        make: Make,
        name: str,
        credentials: Credentials | None,
        authority: x509.Certificate | None,
        watch: Watch,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self.address, self.make, self.name = address, make, name
        self.credentials, self.authority = credentials, authority
        self.watch, self.pool = watch, pool
        self.member: Any = None
        self.was_welcomed = False
        self._limit, self._federator = LIMIT, b""

    @property
    def was_replaced(self) -> bool:
        """Whether the stream ended since another one of the same name was opened."""
        bye = None if self.member is None else self.member.bye
        return bye is not None and bye.reason == TAKEN

    def complaint(self, problem: str) -> tuple[str, Level]:
        """Return what to say of a stream that has ended, and how loud."""
        if self.was_replaced:
            return "another process joins by the same name, and took this one's place: stop one of them", "warning"
        return f"waiting for a federator at {self.address}: {problem}", "info"

    async def once(self) -> str:
        """Use one stream from its beginning to its end, and return why it ended."""
        self.was_welcomed = False
        try:
            channel = await connect(self.address, self.credentials, limit=max(self._limit, 2**22))
        except Unreachable as error:
            return printable(str(error))
        try:
            return await self._talk(channel)
        except (RejectedMessage, EOFError) as error:
            said = str(error) if isinstance(error, EOFError) else ""
            return printable(said or channel.channel.problem) or "the stream has ended"
        finally:
            channel.channel.abort()

    async def _talk(self, channel: ClientChannel) -> str:
        member = self.member or await self._invited(channel)
        if self.authority is not None and is_another(channel.federator, self._federator):
            raise EOFError(OTHER_FEDERATOR)
        channel.put(encode(member.hello()))
        self.watch(member)
        await self._work(member, channel)
        if member.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await channel.end()
        return (
            (printable(channel.channel.problem) or "the stream has ended")
            if member.bye is None
            else printable(member.bye.reason)
        )

    async def _invited(self, channel: ClientChannel) -> "Member | Liar":
        channel.put(encode(Ask(client=self.name)))
        for data in await channel.read():
            message = decode_from_federator(data, self._limit)
            if isinstance(message, Bye):
                if message.final:
                    raise Refused(f"the federator refuses this client: {printable(message.reason)}")
                raise EOFError(message.reason)
            if isinstance(message, Invitation):
                break
            raise EOFError
        else:
            raise EOFError
        check_version(message.version)
        settings = Settings.from_invitation(message)
        check_federator(message, self.authority, channel.federator)
        self._federator = message.federator
        self._limit = size_limit(settings.plan.scalars, settings.agreement.clients)
        self.member = await self._in_thread(self.make, settings)
        return self.member

    async def _work(self, member: "Member | Liar", channel: ClientChannel) -> None:
        loop = asyncio.get_running_loop()

        def send(message: FromClient | bytes) -> None:
            data = message if isinstance(message, bytes) else encode(message)
            if self.pool is None:
                channel.put(data)
            else:
                loop.call_soon_threadsafe(channel.put, data)

        while (member.bye is None or member.waits) and not channel.is_full:
            data = await channel.read()
            messages = [decode_from_federator(each, self._limit) for each in data]
            await self._in_thread(member.receive, messages, send)
            self.was_welcomed = self.was_welcomed or member.welcomed
            self.watch(member)
            if not data:
                return

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if self.pool is None:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *arguments)
