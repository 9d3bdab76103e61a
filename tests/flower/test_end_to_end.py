"""Flower's real processes on loopback: what they train is the simulator's model, bit for bit, whoever is killed."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from tests.flower.processes import Flower, free_port
from tests.flower.test_app import simulated

from cyber0.cli import app
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild

NAMES = ("ann", "bob", "cy")
SMALL = {"clients": 3, "byzantine": 1, "directions": 4, "batch": 16}


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    with Flower(tmp_path_factory.mktemp("flower")) as made:
        made.link()
        made.executor()
        made.ready()
        with ThreadPoolExecutor(len(NAMES)) as pool:
            list(pool.map(made.register, NAMES))
        for name in NAMES:
            made.node(name, free_port(), state=made.folder / "state", device="cpu", source="embedded", deal="iid")
        yield made


def begun(flower, name, roster=NAMES, **changes):
    """A run of a new app: its ledger, and its number."""
    ledger = flower.folder / f"{name}.sqlite"
    options = [word for key, value in (SMALL | changes).items() for word in (f"--{key}", str(value))]
    written = CliRunner().invoke(app, ["flower", "new", str(flower.folder / name), "--ledger", str(ledger), *options])
    hint = re.search(r"start it with +flwr (.*) SUPERLINK --stream\n", written.stdout)[1]
    started = flower.flwr(*hint.split(), "here", "-c", f'roster="{",".join(roster)}" linger=300')
    assert started.returncode == 0, started.stdout + started.stderr
    return ledger, next(word for word in started.stdout.split() if word.isdigit())


def test_a_node_and_the_superlink_are_killed_and_come_back(flower):
    """No round is decided without a vote of each client, so that the run can end only if the node votes again."""
    changes = {"rounds": 30}
    ledger, run = begun(flower, "killed", **changes, quorum=3)
    reach(flower, ledger, 5)
    flower.kill("cy")
    flower.kill("superlink")
    flower.link()
    flower.ready()
    log = flower.lines(run)
    said = wait_for(log, "the session of cy has failed")  # before that Flower does not let it come back
    flower.again("cy")
    said += "".join(log)
    commits, mark = simulated(SMALL | changes)
    with File(ledger, read_only=True) as kept:
        assert [decision.scalars for decision in kept.decisions()] == commits
        assert kept.identity.roster.names == NAMES
        assert verify(kept).findings == []
        assert all({ballot.client for ballot in decision.ballots} == set(NAMES) for decision in kept.decisions())
        assert kept.seals[-1].fingerprint == rebuild(kept, base(kept.identity, None)[1]) == mark
    assert said.count("a session is opened for cy") == 2
    assert f"fingerprint {mark:016x}, reported by 3 of 3 clients" in said


def reach(flower, ledger, rounds):
    """Let them go on until so many rounds are decided."""
    for _ in range(6000):
        if ledger.exists():
            with File(ledger, read_only=True) as kept:
                if kept.founded and kept.head.rounds >= rounds:
                    return
        flower.pause(0.02)
    pytest.fail(f"round {rounds} is not reached")


def wait_for(log, text):
    """The log up to a line with this text."""
    said = ""
    for line in log:
        said += line
        if text in line:
            return said
    pytest.fail(f"the run ended without {text!r}:\n{said}")
