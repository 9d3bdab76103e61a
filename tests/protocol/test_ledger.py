import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import processes
from tests.protocol.ledgers import append, decisions, fill, identity

from cyber0.errors import InvalidLedger
from cyber0.protocol.catching_up import catch_up
from cyber0.protocol.chain import Seal, advance, genesis, link_statement
from cyber0.protocol.export import exported_run
from cyber0.protocol.ledger import Linked, Memory
from cyber0.protocol.records import Ballot
from cyber0.protocol.signing import is_by
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify


@pytest.fixture(params=["memory", "file"])
def ledger(request, tmp_path):
    with Memory() if request.param == "memory" else File(tmp_path / "run.ledger") as opened:
        yield opened


class TestEveryLedger:
    """The laws of a ledger, on each of the two."""

    def test_it_gives_back_what_was_appended(self, ledger):
        run = identity()
        head = fill(ledger, run, 20)
        played = list(decisions(run, 20))
        assert head.rounds == 20
        assert ledger.identity == run
        assert list(ledger.decisions()) == played
        assert list(ledger.decisions(3, 7)) == played[3:7]
        assert ledger.commits(3, 7) == b"".join(decision.scalars for decision in played[3:7])
        assert ledger.commits() == b"".join(decision.scalars for decision in played)

    def test_each_round_is_chained_to_the_one_before(self, ledger):
        run = identity()
        fill(ledger, run, 9)
        expected = genesis(run.digest)
        for written in ledger.written():
            expected = advance(expected, written.decision, run.roster)
            assert (written.commit, written.link) == (expected.commit, expected.link)
            statement = link_statement(run.digest, expected.rounds, expected.link)
            assert is_by(run.federator, written.signature, statement)
            assert ledger.head_at(expected.rounds) == expected
        assert ledger.head == expected

    def test_only_the_next_round_is_appended(self, ledger):
        run = identity()
        first, second, third = decisions(run, 3)
        ledger.found(run)
        for wrong in (second, third, replace(first, round=-1)):
            with pytest.raises(InvalidLedger, match="the next one is 0"):
                ledger.append(wrong)
        ledger.append(first)
        with pytest.raises(InvalidLedger, match="round 0 cannot be appended: the next one is 1"):
            ledger.append(first)
        with pytest.raises(InvalidLedger, match="has 4 bytes of scalars, not 12"):
            ledger.append(replace(second, scalars=bytes(4)))
        assert ledger.append(second).rounds == 2

    def test_it_holds_one_run(self, ledger):
        assert not ledger.founded
        with pytest.raises(InvalidLedger, match="no run yet"):
            _ = ledger.identity
        ledger.found(identity())
        assert ledger.founded
        with pytest.raises(InvalidLedger, match="a run already"):
            ledger.found(identity())
        assert ledger.head == genesis(identity().digest)

    def test_votes_that_are_not_kept_are_chained_all_the_same(self, ledger):
        run = identity(keep_votes=False)
        head = fill(ledger, run, 5)
        assert all(ballot.values is None for decision in ledger.decisions() for ballot in decision.ballots)
        expected = genesis(run.digest)
        for decision in decisions(run, 5):
            expected = advance(expected, decision, run.roster)
        assert head == expected

    def test_seals(self, ledger):
        head = fill(ledger, identity(), 5)
        seals = [Seal.of(ledger.head_at(2), fingerprint=2**64 - 1), Seal.of(head, signature=b"signature")]
        for seal in seals:
            ledger.seal(seal)
        assert ledger.seals == seals
        with pytest.raises(InvalidLedger, match="does not match"):
            ledger.seal(replace(seals[0], commit=bytes(32)))
        with pytest.raises(InvalidLedger, match="round"):
            ledger.seal(replace(seals[0], rounds=6))

    def test_a_run_without_its_votes_can_be_continued(self, ledger):
        run, whole = identity(), Memory()
        fill(whole, run, 10)
        ledger.adopt(exported_run(whole, 6))
        assert ledger.imported == 6
        for decision in list(decisions(run, 10))[6:]:
            append(ledger, decision)
        assert ledger.head == whole.head
        assert ledger.commits() == whole.commits()

    def test_a_run_whose_votes_are_unknown_cannot_be_continued(self, ledger):
        run, whole = identity(), Memory()
        fill(whole, run, 3)
        ledger.adopt(replace(exported_run(whole), link=None))
        with pytest.raises(InvalidLedger, match="cannot be continued"):
            ledger.append(replace(next(decisions(run, 1)), round=3))


@settings(max_examples=20)
@given(rounds=st.integers(0, 12), cut=st.integers(0, 12), seed=st.integers(0, 99))
def test_both_ledgers_hold_the_same(tmp_path_factory, rounds, cut, seed):
    """However often a file is closed and opened again."""
    run, memory = identity(), Memory()
    path = tmp_path_factory.mktemp("ledger") / "run.ledger"
    memory.found(run)
    with File(path) as file:
        file.found(run)
        for decision in decisions(run, min(rounds, cut), seed=seed):
            append(file, decision)
    with File(path) as file:
        for decision in decisions(run, rounds, seed=seed):
            append(memory, decision)
            if decision.round >= cut:
                append(file, decision)
    with File(path, read_only=True) as file:
        assert file.head == memory.head
        assert list(file.written()) == list(memory.written())
        assert list(file.linked()) == list(memory.linked()) == list(map(Linked.of, memory.written()))


@pytest.mark.parametrize("dropped", [("hashes",), ("hashes", "lost", "settings")])
def test_a_ledger_of_before_is_read_as_it_is_and_continued_with_what_came_since(tmp_path, dropped):
    run, path, whole = identity(), tmp_path / "run.ledger", Memory()
    fill(whole, run, 6)
    with File(path) as file:
        fill(file, run, 4)
    with closing(sqlite3.connect(path)) as connection:
        for table in dropped:
            connection.execute(f"DROP TABLE {table}")
    with File(path, read_only=True) as file:
        assert list(file.linked()) == list(whole.linked(0, 4))
    with File(path) as file:
        for decision in list(decisions(run, 6))[4:]:
            append(file, decision)
        assert list(file.linked()) == list(whole.linked())
        assert list(file.linked(2, 5)) == list(whole.linked(2, 5))
        assert [bool(written.ballots) for written in file.written()] == [False] * 4 + [True] * 2
        assert verify(file).sound


def test_a_client_that_comes_late_costs_no_look_at_ballots(tmp_path, monkeypatch):
    """There are as many of them in each round as clients."""
    run, whole = identity(), Memory()
    fill(whole, run, 5)
    with File(tmp_path / "run.ledger") as file:
        fill(file, run, 5)
        expected = list(catch_up(whole, 1, 5))
        monkeypatch.setattr("cyber0.protocol.sqlite.ballot_from", lambda _: pytest.fail("a ballot was read"))
        assert list(catch_up(file, 1, 5)) == expected


APPEND = """
import sys
from itertools import islice
from tests import processes
from tests.protocol.ledgers import append, decisions, identity
from cyber0.protocol.sqlite import File
with File(sys.argv[1]) as ledger:
    if not ledger.founded:
        ledger.found(identity())
    for decision in islice(decisions(identity(), 4000), ledger.head.rounds, None):
        append(ledger, decision)
        sys.stdout.write(f"{decision.round}\\n")
        sys.stdout.flush()
"""


def start(path):
    return processes.Popen(["-c", APPEND, path], stdout=subprocess.PIPE)


@pytest.mark.parametrize("after", [1, 2, 37, 150])
def test_no_appended_round_is_lost_when_the_process_is_killed(tmp_path, after):
    path, told = tmp_path / "run.ledger", -1
    for _ in range(2):  # killed, continued, killed again
        with start(path) as process:
            for _ in range(after):
                told = int(process.stdout.readline())
            process.kill()
            told = max([told, *map(int, process.stdout.read().split())])
        assert process.returncode == -signal.SIGKILL
        with File(path, read_only=True) as ledger:
            assert ledger.head.rounds > told
            assert list(ledger.decisions()) == list(decisions(identity(), ledger.head.rounds))


def test_a_second_federator_is_refused_and_readers_are_not(tmp_path):
    path = tmp_path / "run.ledger"
    with start(path) as process:
        first = int(process.stdout.readline())
        with pytest.raises(InvalidLedger, match=r"run\.ledger is in use by another federator"):
            File(path)
        (tmp_path / "other name").symlink_to(path)
        with pytest.raises(InvalidLedger, match="in use by another federator"):
            File(tmp_path / "other name")
        with File(path, read_only=True) as ledger:
            assert ledger.head.rounds > first
            assert len(list(ledger.decisions(0, 1))) == 1
        process.kill()
    with File(path) as ledger:  # the lock went with the process
        assert ledger.head.rounds > first


def test_a_reader_that_comes_while_a_ledger_is_founded_finds_a_ledger(tmp_path, monkeypatch):
    path, ask = tmp_path / "run.ledger", File._all
    with File(path) as ledger:

        def slowly(self, query, values=()):
            answer = ask(self, query, values)
            if "user_version" in query and not ledger.founded:
                fill(ledger, identity(), 1)
            return answer

        monkeypatch.setattr(File, "_all", slowly)
        with File(path, read_only=True) as reader:
            assert ledger.head.rounds == 1
            assert reader.head.rounds == 1


def test_reading_leaves_nothing_beside_a_closed_ledger(tmp_path):
    path = tmp_path / "run.ledger"
    with File(path) as ledger:
        fill(ledger, identity(), 3)
    before, content = set(tmp_path.iterdir()), path.read_bytes()
    assert before <= {path, path.with_name("run.ledger-lock")}
    with File(path, read_only=True) as ledger:
        assert len(list(ledger.decisions())) == 3
        with pytest.raises(InvalidLedger, match="cannot be written"):
            ledger.append(list(decisions(identity(), 4))[-1])
        assert set(tmp_path.iterdir()) == before
    assert set(tmp_path.iterdir()) == before
    assert path.read_bytes() == content


def other_database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE something (else_ TEXT)")
    connection.close()


def newer_ledger(path):
    with File(path) as ledger:
        ledger.found(identity())
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 3")
    connection.close()


def cut_short(path):
    with File(path) as ledger:
        fill(ledger, identity(), 30)
    os.truncate(path, 5000)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("Dear diary, " * 100), "is not a ledger"),
        (other_database, "is a database, but not a ledger"),
        (newer_ledger, "is a ledger of version 3: this cyber0 knows versions 1 and 2"),
        (cut_short, "malformed|not a ledger"),
        (Path.mkdir, "is a folder, not a ledger"),
    ],
)
def test_what_is_not_a_ledger_is_refused_and_left_alone(tmp_path, make, message, read_only):
    path = tmp_path / "file"
    make(path)
    content = path.read_bytes() if path.is_file() else None
    with pytest.raises(InvalidLedger, match=message), File(path, read_only=read_only) as ledger:
        list(ledger.decisions())
    assert (path.read_bytes() if path.is_file() else None) == content


def test_a_ledger_that_is_not_there(tmp_path):
    with pytest.raises(InvalidLedger, match="there is no ledger"):
        File(tmp_path / "no.ledger", read_only=True)
    with pytest.raises(InvalidLedger, match="there is no folder"):
        File(tmp_path / "no" / "run.ledger")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_ledger(tmp_path):
    path = tmp_path / "run.ledger"
    with File(path) as ledger:
        fill(ledger, identity(), 3)
    path.chmod(0o444)
    with pytest.raises(InvalidLedger, match="is read-only: a federator must be able to write it"):
        File(path)
    with File(path, read_only=True) as ledger:
        assert ledger.head.rounds == 3


def test_a_file_that_was_only_begun_can_be_founded(tmp_path):
    path = tmp_path / "run.ledger"
    path.touch()
    with File(path) as ledger:
        assert not ledger.founded
    with File(path, read_only=True) as ledger, pytest.raises(InvalidLedger, match="holds no run yet"):
        _ = ledger.identity
    with File(path) as ledger:
        assert fill(ledger, identity(), 1).rounds == 1


def test_counts_of_verdicts(tmp_path):
    with File(tmp_path / "run.ledger") as ledger:
        fill(ledger, identity(), 6)
        counts = ledger.counts()
    assert counts["ann"] == {"counted": 5, "rejected": 1}
    assert counts["cy"] == {"counted": 6}
    assert counts["émile"] == {"counted": 5, "late": 1}
    assert list(counts) == list(identity().roster.names)


def test_a_ballot_without_values_keeps_its_digest(tmp_path):
    ballot = Ballot.of("ann", "rejected", b"nonsense", "too long").without_values()
    run = identity()
    with File(tmp_path / "run.ledger") as ledger:
        ledger.found(run)
        ledger.append(replace(next(decisions(run, 1)), ballots=(ballot,)))
        assert next(ledger.decisions()).ballots == (ballot,)
