"""The ClientApp: on a session message this node becomes a client of the run, until its end."""

import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cyber0.errors import InvalidConfig, Refused, UnknownName
from cyber0.flower.dispatch import ACTION, Report, SessionInfo
from cyber0.flower.run_config import typed
from cyber0.network.private_data import PrivacyOptions
from cyber0.network.session import run_client
from cyber0.network.tokens import token_credentials

__all__ = ["client_app", "run_session"]

GIVE_UP = 60.0  # seconds without a federator: then the node is free, and may be sent another session
OWN: dict[str, type] = {
    **dict.fromkeys(("data", "source", "model", "deal", "device", "stream", "state", "attack"), str),
    "give_up": float,
}
PRIVACY: dict[str, type] = {"epsilon": float, "delta": float, "clip": float, "dataset": str, "accept_changed": bool}
KNOWN = OWN | PRIVACY


def client_app() -> ClientApp:
    """Return the ClientApp of an app folder, as `cyber0 flower new` writes it."""
    app = ClientApp()

    @app.query(ACTION)
    def session(message: Message, context: Context) -> Message:  # pyright: ignore[reportUnusedFunction]
        report = run_session(SessionInfo.read(message.content), context.node_config)
        return Message(report.record(), reply_to=message)

    return app


def run_session(info: SessionInfo, node_config: Mapping[str, Any]) -> Report:
    """Take part in a run as the client that the session names, and return the node's report.

    The node's own config says where its data are, on which device it computes, and whether its votes are private.

    >>> run_session(SessionInfo("127.0.0.1:1", b"", "", "alice"), {"give_up": "soon"})
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: give_up = 'soon': it must be of type float
    """
    _refuse_misspelt(node_config)
    own = {key: typed(key, node_config[key], kind) for key, kind in KNOWN.items() if key in node_config}
    privacy = _privacy({key: own.pop(key) for key in PRIVACY if key in own})
    credentials = token_credentials(info.authority, info.token)
    state = Path(own.pop("state", None) or _home() / "cyber0").expanduser()
    data = Path(own.pop("data")).expanduser() if "data" in own else None
    options: dict[str, Any] = {"give_up": GIVE_UP, "privacy": privacy, "notice": logging.getLogger("flwr").info, **own}
    with nullcontext() if privacy is None else _kept_here():
        outcome = run_client(info.address, info.name, credentials=credentials, data=data, state=state, **options)
    return Report(outcome.rounds, outcome.fingerprint)


def _refuse_misspelt(node_config: Mapping[str, Any]) -> None:
    """Refuse a key that is nearly one of ours: other apps have keys of their own, but an `epsilom` must not be lost.

    >>> _refuse_misspelt({"partition-id": 0, "epsilom": 8.0})
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown key 'epsilom': use one of ... (did you mean 'epsilon'?)
    """
    for key in node_config:
        if key not in KNOWN and get_close_matches(key, KNOWN, n=1, cutoff=0.75):
            raise UnknownName("key", key, KNOWN)


def _privacy(given: dict[str, Any]) -> PrivacyOptions | None:
    """Return what the node wants of its privacy; None if it wants none.

    >>> _privacy({"clip": 5.0})
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: clip = 5.0 is for private votes: give epsilon with it
    """
    if given and "epsilon" not in given:
        key, value = next(iter(given.items()))
        raise InvalidConfig(f"{key} = {value!r} is for private votes: give epsilon with it")
    return PrivacyOptions(**given) if given else None


@contextmanager
def _kept_here() -> Generator[None]:
    """Keep an error in the node's log: Flower sends its text to the ServerApp, and it may tell of private data.

    >>> with _kept_here():
    ...     int("Alice is ill")
    Traceback (most recent call last):
    cyber0.errors.Refused: this node has ended its session, and its data are private: its own log says why
    """
    try:
        yield
    except Exception as error:
        logging.getLogger("flwr").error("the session has ended: %s", error)
        raise Refused("this node has ended its session, and its data are private: its own log says why") from None


def _home() -> Path:
    """Return Flower's folder on this machine."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").expanduser()
