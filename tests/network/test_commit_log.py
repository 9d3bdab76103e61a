"""A client's log of its commits: what a crash, a full disk or a bad disk leaves of it is right."""

import os
import random
import resource
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.protocol.ledgers import PUBLIC
from tests.protocol.test_recovery import RUN, log_of, played

from cyber0.network import commit_log
from cyber0.network.commit_log import FIXED, HEAD, CommitLog
from cyber0.protocol.catching_up import Position, follow
from cyber0.protocol.messages import CatchUp
from cyber0.protocol.roster import Change

WIDTH, ROUNDS = 4 * RUN.plan.scalars, 20
CHANGES = {3: (Change("admit", "fay", PUBLIC["fay"]),), 12: (Change("extend", number=120),)}
WHOLE = played(ROUNDS, CHANGES)


@pytest.fixture
def opened(tmp_path):
    """A function that opens the log in a folder; all that it opened is closed at the end."""
    with ExitStack() as stack:

        def open_log(notice=lambda _: None):
            log = CommitLog(tmp_path, WIDTH, notice)
            stack.callback(log.close)
            return log

        yield open_log


def followed(log, position=None, most=2**18):
    """Where one gets by what a log shows from a round on."""
    position = position or Position.start(RUN)
    while (held := log.recalled(position.head.rounds, most)).scalars:
        position, _ = follow(position, CatchUp(held.first, held.scalars, held.ballots, held.signature, held.changes))
    return position


@pytest.mark.parametrize("most", [1, 100, 10**6])
@pytest.mark.parametrize("chunk", [1, 300, 10**6])
def test_what_was_kept_comes_back(tmp_path, opened, chunk, most):
    log_of(WHOLE, chunk=chunk, log=opened()).close()
    log = opened()
    assert (log.first, log.end) == (0, ROUNDS)
    assert followed(log, most=most).head == WHOLE.head
    assert (tmp_path / "commits").stat().st_size == HEAD + ROUNDS * (FIXED + WIDTH)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_torn_or_damaged_is_cut_off_and_comes_again(tmp_path, opened, seed):
    rng = random.Random(seed)  # noqa: S311
    log_of(WHOLE, chunk=1, log=opened()).close()
    path = tmp_path / rng.choice(("commits", "commits", "changes"))
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    if rng.random() < 0.5:
        del data[at:]
    else:
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    log = opened()
    reached = followed(log)
    assert reached.head == WHOLE.head_at(reached.head.rounds)
    log_of(WHOLE, log=log).close()  # they come again
    assert followed(opened()).head == WHOLE.head


def test_other_rounds_in_the_place_of_those_it_had(tmp_path, opened):
    log = log_of(WHOLE, log=opened())
    size = (tmp_path / "commits").stat().st_size
    log_of(WHOLE, 7, log=log)  # the same again change nothing
    assert (log.end, (tmp_path / "commits").stat().st_size) == (ROUNDS, size)
    other = played(ROUNDS)  # without changes of the roster: another chain from round 3 on
    log_of(other, 9, log=log)
    assert log.end == 9
    assert followed(log).head == other.head_at(9)


def test_a_gap_begins_it_anew(opened):
    steps = []
    log_of(WHOLE, chunk=1, log=type("Kept", (), {"append": lambda _, more: steps.extend(more)})())
    log = opened()
    log.append(steps[:4])
    log.append(steps[9:])
    assert (log.first, log.end) == (9, ROUNDS)
    assert not log.recalled(3).scalars
    assert followed(log, position=steps[8].after).head == WHOLE.head
    log.append([replace(steps[0], ballots=b"")])  # of imported rounds the ledger itself has all that there is
    assert (log.first, log.end) == (9, ROUNDS)


def test_in_memory_only_the_last_ones_are_kept(monkeypatch):
    monkeypatch.setattr(commit_log, "MEMORY", 10 * (FIXED + WIDTH))
    log = log_of(WHOLE, chunk=1)
    assert 0 < log.first < log.end == ROUNDS
    assert (log.end - log.first) <= 10
    assert log.recalled(log.first).scalars == WHOLE.commits(log.first)


def test_a_full_disk_is_said_once_and_stops_nothing(opened):
    said = []
    log = opened(said.append)
    pid = os.fork()
    if pid == 0:  # no file of the child may grow further
        resource.setrlimit(resource.RLIMIT_FSIZE, (HEAD + 5 * (FIXED + WIDTH) + 9, resource.RLIM_INFINITY))
        log_of(WHOLE, chunk=1, log=log)
        right = len(said) == 1 and "commits cannot be written" in said[0] and log.recalled(0).scalars
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    reached = followed(opened())
    assert reached.head == WHOLE.head_at(reached.head.rounds)
    assert reached.head.rounds == 5
