"""What a round costs with many clients: a rule's CPU and memory, and the bytes and seconds of each ballot.

    python -m benchmarks.rules_at_scale

Each rule has a process of its own, on one core; a quarter of the clients may lie. Rules that compare every vote with
every other take memory for n x n distances: where a machine has not enough, the row is left out.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.network import Row, resident
from cyber0.aggregation import get_rule
from cyber0.protocol.chain import ballots_hash, vote_statement
from cyber0.protocol.codec import encode
from cyber0.protocol.decide import decide
from cyber0.protocol.messages import Committed, Vote
from cyber0.protocol.pages import to_bytes
from cyber0.protocol.records import Ballot, Decision
from cyber0.protocol.signing import encoded, is_by, new_key, sign

COMMAND = "python -m benchmarks.rules_at_scale"
RULES = ("median", "cwtm", "krum", "nnm+cwtm")
CLIENTS, DIRECTIONS = (1_000, 3_000, 10_000, 100_000, 1_000_000), (8, 64)
PAIRS = 25  # bytes for each pair of clients that krum and nnm take, at most
ENOUGH = 2.0  # seconds of repeating after which the least time is taken


def once(rule: str, clients: int, directions: int) -> Row:
    """Return the least CPU time of deciding a round, and how much memory it took beyond what the process had."""
    votes = np.random.default_rng(0).standard_normal((1, clients, directions)).astype(np.float32)
    byzantine = (clients - 1) // 4
    chosen = get_rule(rule)
    decide(chosen, votes[:, :9], 2)  # loads what it needs
    before = resident()
    spent = least(lambda: decide(chosen, votes, byzantine))
    return {"CPU, s": spent, "MB": resident() - before}


def least(work: Callable[[], Any]) -> float:
    """Return the least seconds of CPU that a work took, of several times."""
    times: list[float] = []
    while not times or sum(times) < ENOUGH:
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def is_room(rule: str, clients: int) -> bool:
    """Return whether there is memory for a row."""
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return rule in ("median", "cwtm") or PAIRS * clients**2 < pages


def rows() -> list[Row]:
    found: list[Row] = []
    for rule in RULES:
        for directions in DIRECTIONS:
            for clients in CLIENTS:
                if not is_room(rule, clients):
                    print(f"{rule} with {clients:,} clients is left out: there is not enough memory")
                    continue
                command = [sys.executable, "-m", "benchmarks.rules_at_scale", rule, str(clients), str(directions)]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)  # noqa: S603
                found.append({"rule": rule, "clients": clients, "directions": directions} | json.loads(said.stdout))
    return found


def per_ballot(directions: int, count: int = 2_000) -> Row:
    """Return what one ballot of a round costs: bytes on the wire, and microseconds of CPU."""
    scalars, key, link = bytes(4 * directions), new_key(), bytes(32)
    statement = vote_statement(link, 0, link, hashlib.sha256(scalars).digest())
    signature, public = sign(key, statement), encoded(key.public_key())
    names = [f"client-{place:07d}" for place in range(count)]

    def ballots() -> tuple[Ballot, ...]:
        return tuple(Ballot.of(name, "counted", scalars, signature=signature) for name in names)

    checked = least(lambda: [is_by(public, signature, statement) for _ in names])
    hashed = least(lambda: ballots_hash(ballots()))
    return {
        "directions": directions,
        "vote, bytes": len(encode(Vote(9_999, scalars, signature=signature))),
        "commit, bytes": len(encode(Committed(9_999, scalars, link, signature))),
        "audited, bytes": len(to_bytes(Decision(9_999, scalars, ballots()))) / count,
        "signature checked, us": checked / count * 1e6,
        "made and hashed, us": hashed / count * 1e6,
    }


def main() -> None:
    from benchmarks.measure import report  # not above: its torch would count as memory

    report("ballots_at_scale", [per_ballot(directions) for directions in (1, *DIRECTIONS)], COMMAND)
    report("rules_at_scale", rows(), COMMAND)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(once(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()
