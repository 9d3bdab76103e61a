"""What a client asks for about its own entry on the roster: to be revoked, or to have a new key."""

import asyncio
from dataclasses import replace
from pathlib import Path

from cryptography import x509

from cyber0.errors import Cyber0Error, InvalidConfig, Refused, RejectedMessage, Unreachable
from cyber0.network.channel import Credentials
from cyber0.network.connect import ClientChannel, connect
from cyber0.network.session import check_federator
from cyber0.network.welcome import check_version
from cyber0.protocol.codec import LIMIT, decode_from_federator, encode
from cyber0.protocol.identity import Identity
from cyber0.protocol.messages import Ask, Bye, Invitation, Request
from cyber0.protocol.roster import Change, changes_to_bytes
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import PrivateKey, private_key, sign

__all__ = ["ask_federator", "run_folder"]


def ask_federator(
    address: str,
    change: Change,
    *,
    key: PrivateKey | None = None,
    state: Path | None = None,
    run: bytes | None = None,
    credentials: Credentials | None = None,
    authority: x509.Certificate | None = None,
    timeout: float = 300.0,
) -> str:
    """Ask a federator for a change of a client's own entry; return which round it is written with, in words.

    Raises `Refused` with the federator's reason, and `Unreachable` if there is no answer in time.

    Args:
        address: HOST:PORT of the federator.
        change: The change, not signed yet.
        key: The client's present key; by default that in its state of the run.
        state: The folder of the client's states, which says which run it is.
        run: The digest of the run, if there is no state.
        credentials: Those of TLS.
        authority: The certificate of the authority that must vouch for the federator's key.
        timeout: Seconds to wait.

    """

    def signed(settings: Settings) -> Change:
        folder = None if run is not None else run_folder(state or Path(), change.name, settings)
        digest = run if run is not None else _run_in(folder or Path()).digest
        own = key or private_key((folder or Path()) / "key.pem")
        return replace(change, signature=sign(own, change.statement(digest)))

    async def ask() -> Bye:
        channel = await connect(address, credentials, limit=LIMIT)
        try:
            channel.put(encode(Ask(client=change.name)))
            invitation = await _answer(channel)
            if isinstance(invitation, Bye):
                return invitation
            check_version(invitation.version)
            check_federator(invitation, authority, channel.federator)
            request = Request(changes_to_bytes([signed(Settings.from_invitation(invitation))]))
            channel.put(encode(request))
            while not isinstance(bye := await _answer(channel), Bye):
                pass
            return bye
        finally:
            channel.channel.abort()

    try:
        bye = asyncio.run(asyncio.wait_for(ask(), timeout))
    except TimeoutError:
        raise Unreachable(f"not written within {timeout:g} seconds: it may still be, when a round is decided") from None
    except (Unreachable, EOFError, RejectedMessage) as error:
        raise Unreachable(f"no federator answers at {address}: {error}") from None
    if not bye.finished:
        raise Refused(f"the federator refuses it: {bye.reason}")
    return bye.reason


async def _answer(channel: ClientChannel) -> Invitation | Bye:
    while received := await channel.read():
        for data in received:
            message = decode_from_federator(data, LIMIT)
            if isinstance(message, Invitation | Bye):
                return message
    raise EOFError(channel.channel.problem or "the stream has ended")


def run_folder(state: Path, name: str, settings: Settings) -> Path:
    """Return the folder in which a client keeps its state of a run.

    >>> from cyber0.config import RunConfig
    >>> run_folder(Path("no/such/state"), "alice", Settings.of(RunConfig()))
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: state = 'no/such/state' holds nothing of alice in this run: ...
    """
    for folder in sorted(state.glob(f"*-{name}")):
        if not (folder / "run.json").exists():
            continue
        try:
            identity = _run_in(folder)
        except Cyber0Error:
            continue
        if (identity.federator, identity.agreement) == (settings.federator, settings.agreement):
            return folder
    raise InvalidConfig(
        f"state = {str(state)!r} holds nothing of {name} in this run: name the folder that it joined with, or give "
        "--expect with the run's digest, and --key"
    )


def _run_in(folder: Path) -> Identity:
    identity, _, roster = (folder / "run.json").read_bytes().partition(b"\n")
    return Identity.from_bytes(identity, roster, outlined=True)
