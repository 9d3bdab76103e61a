"""The ClientApp: on a session message this node becomes a client of the run, until its end."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cyber0.flower.dispatch import ACTION, Report, SessionInfo
from cyber0.flower.run_config import typed
from cyber0.network.session import run_client
from cyber0.network.tokens import token_credentials

__all__ = ["client_app", "run_session"]

GIVE_UP = 60.0  # seconds without a federator: then the node is free, and may be sent another session
OWN: dict[str, type] = {
    **dict.fromkeys(("data", "source", "model", "deal", "device", "state", "attack"), str),
    "give_up": float,
}


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

    The node's own config says where its data are and on which device it computes.

    >>> run_session(SessionInfo("127.0.0.1:1", b"", "", "alice"), {"give_up": "soon"})
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: give_up = 'soon': it must be of type float
    """
    own = {key: typed(key, node_config[key], kind) for key, kind in OWN.items() if key in node_config}
    credentials = token_credentials(info.authority, info.token)
    state = Path(own.pop("state", None) or _home() / "cyber0").expanduser()
    data = Path(own.pop("data")).expanduser() if "data" in own else None
    options: dict[str, Any] = {"give_up": GIVE_UP, **own}
    outcome = run_client(info.address, info.name, credentials=credentials, data=data, state=state, **options)
    return Report(outcome.rounds, outcome.fingerprint)


def _home() -> Path:
    """Return Flower's folder on this machine."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").expanduser()
