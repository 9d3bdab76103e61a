"""What a ledger costs: durable rounds a second, sizes, and the time to rebuild a model.

Replaying many commits in one pass is compared with applying them one by one; a round that is on disk before it is told
with weaker promises, which a ledger does not make: to know their price.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measure import Row, report
from cyber0.config import RunConfig
from cyber0.directions import Family
from cyber0.parameters import Parameters
from cyber0.plan import Plan
from cyber0.protocol import export
from cyber0.protocol.chain import advance, genesis, link_statement, vote_statement
from cyber0.protocol.identity import Identity
from cyber0.protocol.records import Ballot, Decision
from cyber0.protocol.signing import encoded, new_key, sign
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import rebuild

COMMAND = "python -m benchmarks.ledger"
ROUNDS = 20_000
KEYS = {f"client-{number}": new_key() for number in range(40)}
FEDERATOR = new_key()


def spent(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def replaying() -> list[Row]:
    """One pass for all commits against one pass for each, on the same commits and from the same weights."""
    cases: list[tuple[int, int, int, Family]] = [
        (10_000_000, 1, 200, "gaussian"),
        (10_000_000, 1, 200, "rademacher"),
        (7850, 64, 400, "sphere"),
        (7850, 64, 400, "gaussian"),
    ]
    return [_replayed(*case) for case in cases]


def _replayed(size: int, directions: int, rounds: int, family: Family) -> Row:
    plan = Plan(0, directions, 1, "unbiased", 1e-3, 1e-3, family)
    times = [_once(plan, size, rounds, repeat) for repeat in range(3)]
    slow, fast = np.median(times, axis=0).tolist()
    return {
        "parameters": size,
        "directions": directions,
        "family": family,
        "rounds": rounds,
        "one by one, ms a round": slow / rounds * 1e3,
        "in one pass, ms a round": fast / rounds * 1e3,
        "times faster": slow / fast,
        "million coordinates a second": size * directions * rounds / fast / 1e6,
    }


def _once(plan: Plan, size: int, rounds: int, repeat: int) -> tuple[float, float]:
    scalars = np.random.default_rng(repeat).normal(size=(rounds, 1, plan.directions))
    first = 2 * repeat * rounds  # other directions each time: the lengths of spheres are remembered
    one, many = (Parameters({"w": np.zeros(size, dtype=np.float32)}) for _ in range(2))
    slow = spent(lambda: [one.apply(plan.commit(first + t, row)) for t, row in enumerate(scalars)])
    fast = spent(lambda: many.apply_all(plan.commit(first + rounds + t, row) for t, row in enumerate(scalars)))
    return slow, fast


def identity(clients: int, directions: int, *, keep_votes: bool) -> Identity:
    options: dict[str, Any] = {
        "clients": clients,
        "byzantine": clients // 4,
        "directions": directions,
        "rounds": ROUNDS,
    }
    config = RunConfig(**options)
    weights, roster = Parameters({"w": np.zeros(7850, dtype=np.float32)}), list(KEYS)[:clients]
    public = {name: encoded(key.public_key()) for name, key in KEYS.items()}
    parties: dict[str, Any] = {"keys": public, "federator": encoded(FEDERATOR.public_key())}
    return Identity.of(config, roster, weights, keep_votes=keep_votes, **parties)


def decisions(run: Identity, rounds: int) -> Iterator[tuple[Decision, bytes]]:
    """Rounds in which all clients vote the same, so that every rule decides for it; each with its link's signature."""
    rng, head = np.random.default_rng(0), genesis(run.digest)
    for t in range(rounds):
        vote = rng.normal(size=run.plan.scalars).astype("<f4").tobytes()
        statement = vote_statement(run.digest, t, head.link or b"", hashlib.sha256(vote).digest())
        names = run.roster.names
        ballots = [Ballot.of(name, "counted", vote, signature=sign(KEYS[name], statement)) for name in names]
        decision = Decision(t, vote, tuple(ballots))
        head = advance(head, decision, run.roster)
        yield decision, sign(FEDERATOR, link_statement(run.digest, head.rounds, head.link or b""))


def durable() -> list[Row]:
    """Rounds of 40 votes a second, by what is promised when `append` returns."""
    run, rows = identity(40, 64, keep_votes=True), list[Row]()
    played = list(decisions(run, 400))
    for promise, synchronous, batch in [
        ("each round is on disk: what a ledger does (FULL)", "FULL", 1),
        ("ten rounds share a transaction: up to 9 are lost when the process is killed", "FULL", 10),
        ("a hundred do: up to 99 are lost", "FULL", 100),
        ("rounds since the last checkpoint are lost in a power cut (NORMAL)", "NORMAL", 1),
        ("a power cut may destroy the file (OFF)", "OFF", 1),
    ]:
        with TemporaryDirectory() as folder, File(Path(folder) / "run.ledger", synchronous=synchronous) as ledger:
            ledger.found(run)
            seconds = _append(ledger, played, batch)
        rows.append({"what is promised": promise, "rounds a second": len(played) / seconds})
    return rows


def _append(ledger: File, played: list[tuple[Decision, bytes]], batch: int) -> float:
    parts = [played[first : first + batch] for first in range(0, len(played), batch)]
    return spent(lambda: [ledger.append_all(part) for part in parts])


def whole_runs() -> list[Row]:
    """20,000 rounds: sizes, and the time to verify and to replay them."""
    return [_whole(*case) for case in [(40, 64, True), (40, 64, False), (8, 1, True)]]


def _whole(clients: int, directions: int, keep_votes: bool) -> Row:
    run = identity(clients, directions, keep_votes=keep_votes)
    weights = Parameters({"w": np.zeros(7850, dtype=np.float32)})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.ledger"
        with File(path, synchronous="OFF") as ledger:
            ledger.found(run)
            ledger.append_all(decisions(run, ROUNDS))
        with File(path, read_only=True) as ledger:
            return {
                "clients": clients,
                "directions": directions,
                "votes kept": keep_votes,
                "ledger, MB": path.stat().st_size / 1e6,
                "export, MB": len(export.to_bytes(export.exported_run(ledger))) / 1e6,
                "verify, s": spent(lambda: verify(ledger)),
                "replay (d = 7850, sphere), s": spent(lambda: rebuild(ledger, weights)),
            }


def main() -> None:
    report("ledger_replay_cpu", replaying(), COMMAND)
    report("ledger_durable", durable(), COMMAND)
    report("ledger_20000_rounds", whole_runs(), COMMAND)


if __name__ == "__main__":
    main()
