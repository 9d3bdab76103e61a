"""A client that comes late applies what was decided; killed on the way, it goes on from what it has stored."""

import os
import signal

from safetensors import safe_open
from tests.network.parties import Parties, participate, recipe

from cyber0.network import member
from cyber0.network.local_model import LocalModel
from cyber0.protocol.sqlite import File
from cyber0.replay import base, rebuild

STOPS = 12


def participate_slowly(port, name, result, options, log, stops):
    """Apply three rounds at a time and store each part; where `stops`, be killed after some of them."""
    member.AT_ONCE, member.STORED = 3, 0.0
    advance = LocalModel.advance

    def watched(self, first, scalars):
        with log.open("a") as file:
            file.write(f"{first}\n")
        if stops and first >= STOPS:
            os.kill(os.getpid(), signal.SIGKILL)
        advance(self, first, scalars)

    LocalModel.advance = watched
    participate(port, name, result, options)


def test_a_late_client_that_is_killed_goes_on(tmp_path):
    config = recipe(rounds=30)
    *early, late = [f"client-{place}" for place in range(config.clients)]
    with Parties(tmp_path, config, linger=600.0, deadline=1.0) as parties:
        parties.federator()
        for name in early:
            parties.client(name)
        parties.wait(*early)
        options = {"state": tmp_path / "state", "source": "embedded", "deal": parties.deal, "snapshot_every": 1000}
        shared = parties.port, late, tmp_path / f"{late}.json", options
        logs = [tmp_path / "first", tmp_path / "second"]
        parties._start(late, participate_slowly, *shared, logs[0], True)
        assert parties.processes[late].wait(60) == -signal.SIGKILL
        (stored,) = (tmp_path / "state").glob(f"*-{late}/weights.safetensors")
        with safe_open(stored, "numpy") as weights:
            assert weights.metadata()["commits"] == str(STOPS)
        parties._start(late, participate_slowly, *shared, logs[1], False)
        parties.wait(late)
        parties.stop()
        marks = {parties.outcome(name)["fingerprint"] for name in (*early, late)}
    assert logs[0].read_text().split() == ["0", "3", "6", "9", "12"]
    assert logs[1].read_text().split()[0] == "12"
    with File(parties.ledger, read_only=True) as ledger:
        assert marks == {rebuild(ledger, base(ledger.identity, None)[1])}
