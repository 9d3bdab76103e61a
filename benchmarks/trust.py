"""What it costs that nobody has to believe the federator: signed votes and audits, beside version 1 of the protocol.

    git worktree add ../version-1 8ccf516
    python -m benchmarks.trust ../version-1

Version 1 signed no votes. The versions are played in turns, in processes of their own, with TLS, on one machine; all
clients are thin and share a process. Figures are medians over the turns.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import network
from cyber0.network import keys

Row = dict[str, Any]
COMMAND = "python -m benchmarks.trust ../version-1"
AUDITS = ("version 1", "0", "0.05", "1")
CASES = ((12, 1, 600), (40, 64, 80))
TURNS = 5
COUNTED = 100  # rounds whose bytes are counted, apart: what counts them takes time, too


def once(clients: int, directions: int, rounds: int, audit: str) -> Row:
    """Play a federation with the cyber0 that is imported, and return its rounds a second and bytes."""
    options: Row = {}
    if audit != "version 1":
        from cyber0.network.audits import Audits

        options = {"audits": lambda: Audits(float(audit))}
    setup = network.setup_of(clients, rounds, directions)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        keys.init(folder / "keys")
        for name in setup.roster:
            keys.issue(name, folder / "keys")
        with network.federator(setup, "memory", folder, tls=True) as (port, pipe):
            rate, _ = asyncio.run(network.play(setup, port, folder, tls=True, count=False, **options))
            pipe.recv()
        setup = network.setup_of(clients, COUNTED, directions)
        with network.federator(setup, "memory", folder, tls=True) as (port, pipe):
            _, size = asyncio.run(network.play(setup, port, folder, tls=True, count=True, **options))
            pipe.recv()
    return {"rounds a second": rate, "bytes": size}


def in_turns(before: Path | None, turns: int = TURNS) -> list[Row]:
    """Play all versions in turns."""
    rows: list[Row] = []
    for clients, directions, rounds in CASES:
        found: dict[str, list[Row]] = {}
        for _ in range(turns):
            for audit in AUDITS if before else AUDITS[1:]:
                command = [sys.executable, "-m", "benchmarks.trust", "--once", *map(str, (clients, directions, rounds))]
                path = str(before / "src") if before and audit == "version 1" else os.environ.get("PYTHONPATH", "src")
                environment = {**os.environ, "PYTHONPATH": path}
                said = subprocess.run([*command, audit], env=environment, capture_output=True, text=True, check=True)  # noqa: S603
                found.setdefault(audit, []).append(json.loads(said.stdout))
        rows += [_row(clients, directions, audit, found) for audit in found]
    return rows


def _row(clients: int, directions: int, audit: str, found: dict[str, list[Row]]) -> Row:
    def median(name: str, of: str = audit) -> float:
        return statistics.median(row[name] for row in found[of])

    row: Row = {"clients": clients, "directions": directions, "audit": audit}
    row["rounds a second"], row["bytes per client and round"] = median("rounds a second"), median("bytes")
    if "version 1" in found:
        row["of version 1's rounds"] = row["rounds a second"] / median("rounds a second", "version 1")
        row["bytes more"] = row["bytes per client and round"] - median("bytes", "version 1")
    honest = clients - (clients - 1) // 4
    for cheats in (1, 10):
        row[f"caught, {cheats} rounds"] = 0.0 if audit == "version 1" else _caught(float(audit), cheats, honest)
    return row


def _caught(fraction: float, cheats: int, honest: int) -> float:
    from cyber0.network.audits import detection

    return detection(fraction, cheats, honest)


def main(before: Path | None = None, turns: int = TURNS) -> None:
    from benchmarks.measure import report  # not above: a federator has no torch in its memory

    report("trust", in_turns(before, turns), COMMAND)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        clients, directions, rounds = map(int, sys.argv[2:5])
        sys.stdout.write(json.dumps(once(clients, directions, rounds, sys.argv[5])))
    else:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, int(sys.argv[2]) if len(sys.argv) > 2 else TURNS)
