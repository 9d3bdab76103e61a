"""The ServerApp: Flower says who is online, each node gets a session, and the rounds travel on cyber0's own streams."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cyber0.errors import Disagreement
from cyber0.flower.assignment import Assignment, Node
from cyber0.flower.dispatch import Dispatch, Report, SessionInfo
from cyber0.flower.federator_thread import FederatorThread
from cyber0.flower.run_config import read

__all__ = ["agreed", "serve", "server_app"]

POLL_SECONDS = 1.0  # between two queries of Flower


def server_app() -> ServerApp:
    """Return the ServerApp of an app folder, as `cyber0 flower new` writes it."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # pyright: ignore[reportUnusedFunction]
        serve(grid, context.run_config, logging.getLogger("flwr").info)

    return app


def serve(grid: Grid, run_config: Mapping[str, Any], notice: Callable[[str], None]) -> None:
    """Serve the run of a run config to its end, and report the result."""
    settings, serving = read(run_config)
    clients = settings.agreement.clients
    with FederatorThread(settings, serving, notice) as federator:
        notice(f"the federator of {clients} clients is at {federator.address}, its ledger is {serving.path}")
        assignment = Assignment(settings.roster, named=bool(serving.names))

        def new_session(name: str) -> SessionInfo:
            return SessionInfo(federator.address, federator.authority, federator.tokens.issue(name), name)

        dispatch = Dispatch(grid, new_session, notice)
        while not federator.is_over and len(dispatch.reports) < clients:
            _poll(grid, assignment, dispatch, notice)
            time.sleep(POLL_SECONDS)
    reports = _final_reports(federator) | dispatch.reports
    mark = agreed(reports, settings.agreement.byzantine, notice)
    notice(f"{settings.agreement.rounds} rounds, head {federator.head}")
    notice(f"fingerprint {mark:016x}, reported by {len(reports)} of {clients} clients")


def agreed(reports: Mapping[str, Report], byzantine: int, notice: Callable[[str], None]) -> int:
    """Return the fingerprint that most clients report, and more than may lie; those with another are named.

    >>> agreed({"ann": Report(5, 7), "bob": Report(5, 7), "cy": Report(5, 8)}, byzantine=1, notice=print)
    cy reports the fingerprint 0000000000000008, most report 0000000000000007
    7
    >>> agreed({"ann": Report(5, 7), "bob": Report(5, 8)}, byzantine=0, notice=print)
    Traceback (most recent call last):
    cyber0.errors.Disagreement: the clients agree on no fingerprint: ann 0000000000000007, bob 0000000000000008
    """
    counts = Counter(report.fingerprint for report in reports.values())
    mark, count = counts.most_common(1)[0] if counts else (0, 0)
    if count <= byzantine or 2 * count <= len(reports):
        said = ", ".join(f"{name} {report.fingerprint:016x}" for name, report in sorted(reports.items()))
        raise Disagreement(f"the clients agree on no fingerprint: {said or 'none has reported'}")
    for name, report in sorted(reports.items()):
        if report.fingerprint != mark:
            notice(f"{name} reports the fingerprint {report.fingerprint:016x}, most report {mark:016x}")
    return mark


def _final_reports(federator: FederatorThread) -> dict[str, Report]:
    """Return what clients reported on their own streams: a reply by Flower may come too late."""
    rounds, clients = federator.settings.agreement.rounds, federator.tally.clients.items()
    return {name: Report(rounds, seen.fingerprint) for name, seen in clients if seen.fingerprint is not None}


def _poll(grid: Grid, assignment: Assignment, sessions: Dispatch, notice: Callable[[str], None]) -> None:
    """Ask Flower who is online and who has replied; the streams go on while Flower does not answer."""
    try:
        nodes = [Node(info.node_id, info.name, info.last_activated_at) for info in grid.get_nodes()]
        sessions.expect(assignment.changed(nodes))
        sessions.collect()
        sessions.renew({name: node for name, node in assignment.places.items() if node in nodes})
    except httpx.HTTPError as error:
        notice(f"Flower does not answer, the rounds go on: {error}")
