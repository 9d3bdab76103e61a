"""What it costs a client to keep its commits, and a federator to get them back."""

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.ledger import FEDERATOR, KEYS
from benchmarks.measure import Row, report
from cyber0.config import RunConfig
from cyber0.network.commit_log import CommitLog
from cyber0.protocol.catching_up import CHUNK, Position, Step, follow
from cyber0.protocol.chain import Anchor, Head, commit_hash, link_statement
from cyber0.protocol.events import Adopt, Arrived, ClientStream, Received
from cyber0.protocol.identity import Identity
from cyber0.protocol.machine import resume, step
from cyber0.protocol.messages import Committed, Hello
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, sign
from cyber0.protocol.sqlite import File

COMMAND = "python -m benchmarks.recovery"
ROUNDS, LOST, CLIENTS = 1_000_000, 100_000, 4


def run(directions: int) -> tuple[Settings, Identity]:
    """Return the settings and the identity of a run with so many numbers to a round."""
    names = tuple(KEYS)[:CLIENTS]
    config = RunConfig(clients=CLIENTS, byzantine=1, directions=directions, rounds=2 * ROUNDS)
    settings = Settings(config.agreement, names)
    keys = {name: encoded(KEYS[name].public_key()) for name in names}
    return settings, settings.identity(bytes(32), bytes(32), keys=keys, federator=encoded(FEDERATOR.public_key()))


def kept(directions: int) -> Row:
    """Append a million rounds to a log, one at a time, as a client does."""
    width = 4 * directions
    at = Position.start(run(directions)[1])
    one = Step(at, bytes(width), bytes(32), (), replace(at, head=Head(1, bytes(32), bytes(32)), signature=bytes(64)))
    with TemporaryDirectory() as folder:
        log, seconds = CommitLog(Path(folder), width), 0.0
        for number in range(ROUNDS):
            there = replace(one, before=replace(at, head=Head(number, bytes(32), bytes(32))))
            begin = time.perf_counter()
            log.append([there])
            seconds += time.perf_counter() - begin
        size = (Path(folder) / "commits").stat().st_size
        log.close()
        begin = time.perf_counter()
        CommitLog(Path(folder), width).close()
        opened = time.perf_counter() - begin
    return {
        "directions": directions,
        "rounds": ROUNDS,
        "megabytes": round(size / 1e6, 1),
        "microseconds_a_round": round(1e6 * seconds / ROUNDS, 1),
        "milliseconds_to_open": round(1e3 * opened, 2),
    }


def given_back(directions: int) -> Row:
    """Let a federator that has lost all rounds of a run take them back from one client, on disk."""
    settings, identity = run(directions)
    position = Position.start(identity)
    with TemporaryDirectory() as folder:
        (Path(folder) / "client").mkdir()
        log = CommitLog(Path(folder) / "client", 4 * directions)
        for number in range(LOST):
            position = _followed(position, number, bytes(4 * directions), log)
        begin = time.perf_counter()
        with File(Path(folder) / "run.ledger") as ledger:
            ledger.found(identity)
            _recover(settings, identity, ledger, position, log)
            assert ledger.head == position.head
        seconds = time.perf_counter() - begin
        log.close()
    return {"directions": directions, "rounds": LOST, "seconds": round(seconds, 1), "chunk": CHUNK}


def _followed(position: Position, number: int, scalars: bytes, log: CommitLog) -> Position:
    bare = Committed(number, scalars, bytes(32))
    head = _head(position, bare)
    statement = link_statement(position.identity.digest, head.rounds, head.link or b"")
    position, steps = follow(position, replace(bare, signature=sign(FEDERATOR, statement)))
    log.append(steps)
    return position


def _head(position: Position, message: Committed) -> Head:
    commit = commit_hash(position.head.commit, message.round, message.scalars)
    link = Anchor(position.head.link or b"", message.ballots, position.roster.digest).following(commit)
    return Head(message.round + 1, commit, link)


def _recover(settings: Settings, identity: Identity, ledger: File, position: Position, log: CommitLog) -> None:
    name = settings.roster[0]
    stream, facts = ClientStream(name), (position.head.rounds, position.head.link or b"", identity.digest)
    hello = Hello(name, bytes(32), bytes(32), *facts, key=identity.roster.keys[0], signature=position.signature)
    state, _ = step(resume(settings, identity), Arrived(stream, hello))
    while state.asked is not None:
        state, effects = step(state, Received(stream, log.recalled(state.round)))
        for effect in effects:
            if isinstance(effect, Adopt):
                ledger.append_all(effect.rounds)


def main() -> None:
    """Measure, print and write the results."""
    report("recovery_log", [kept(directions) for directions in (1, 8, 64)], COMMAND)
    report("recovery_given_back", [given_back(8)], COMMAND)


if __name__ == "__main__":
    main()
