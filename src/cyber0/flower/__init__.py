"""Federations on Flower, which admits nodes and delivers the app; the rounds travel on cyber0's own streams.

`cyber0 flower new` writes an app whose two files call these two functions.
"""

from typing import Any

from cyber0.extras import require

__all__ = ["client_app", "server_app"]


def server_app() -> Any:
    """Return a Flower ServerApp that runs the federator of the run in its run config."""
    require("flwr", extra="flower")
    from cyber0.flower.server import server_app as made

    return made()


def client_app() -> Any:
    """Return a Flower ClientApp that takes part in the run whose session it is sent."""
    require("flwr", extra="flower")
    from cyber0.flower.session import client_app as made

    return made()
