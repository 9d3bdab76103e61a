"""The app that is written is a run's configuration; the federator in a ServerApp is as any other."""

import json
import logging
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig, InvalidKeys, InvalidLedger, Refused, UnknownName
from cyber0.flower.federator_thread import FederatorThread
from cyber0.flower.run_config import read
from cyber0.network.private_data import PrivacyOptions
from cyber0.privacy.budget import Budget
from cyber0.protocol.promise import Promise
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild
from cyber0.simulation import Simulation

pytest.importorskip("flwr")

from cyber0.flower.dispatch import Report, SessionInfo
from cyber0.flower.session import run_session

SMALL = {"clients": 3, "byzantine": 1, "directions": 4, "batch": 16, "rounds": 6}


def simulated(keys):
    """The commits and the fingerprint of the `sequential` simulator."""
    simulation = Simulation(RunConfig(**keys, source="embedded", engine="sequential", device="cpu", partition="iid"))
    commits = [played.aggregate.tobytes() for played in simulation.play()]
    return commits, simulation.parameters.fingerprint()


def served(folder, **changes):
    return FederatorThread(*read({**SMALL, "ledger": str(folder / "run.sqlite"), "linger": 60, **changes}))


def invite(federator, name):
    return SessionInfo(federator.address, federator.authority, federator.tokens.issue(name), name)


def play(federator, folder, **config):
    """Every client of the roster, in a thread each; their reports. `config` is of some of them, by name."""
    own = {"state": str(folder / "state"), "device": "cpu", "source": "embedded", "deal": "iid"}
    roster = federator.settings.roster
    with ThreadPoolExecutor(len(roster)) as pool:
        return list(pool.map(lambda name: run_session(invite(federator, name), own | config.get(name, {})), roster))


def test_sessions_are_the_sequential_simulation(tmp_path):
    with served(tmp_path, roster="ann,bob,cy") as federator:
        reports = play(federator, tmp_path)
    commits, mark = simulated(SMALL)
    assert reports == [Report(6, mark)] * 3
    with File(tmp_path / "run.sqlite", read_only=True) as ledger:
        assert [decision.scalars for decision in ledger.decisions()] == commits
        assert rebuild(ledger, base(ledger.identity, None)[1]) == mark
        assert verify(ledger).findings == []
        assert ledger.identity.roster.names == ("ann", "bob", "cy")


def test_a_node_with_epsilon_spends_the_budget_that_join_spends(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    private = {"epsilon": 8, "clip": 5.0, "dataset": "scans"}
    with served(tmp_path, roster="ann,bob,cy") as federator:
        reports = play(federator, tmp_path, bob=private)
    assert len(set(reports)) == 1
    lines = (tmp_path / "home" / "cyber0" / "budgets" / "scans.jsonl").read_text().splitlines()
    charged = [entry["round"] for entry in map(json.loads, lines) if "run" in entry]
    assert sorted(set(charged)) == list(range(6))
    with File(tmp_path / "run.sqlite", read_only=True) as ledger:
        [promise] = ledger.promises
        assert promise.client == "bob"
        assert Promise.from_bytes(promise.promise).clip == 5.0
    joined = PrivacyOptions(8.0, dataset="scans")
    assert joined.folder / "scans.jsonl" == tmp_path / "home" / "cyber0" / "budgets" / "scans.jsonl"


def test_an_error_of_a_private_node_stays_in_its_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    options = PrivacyOptions(8.0, dataset="scans")
    with Budget(options.folder, "scans", epsilon=8.0, delta=1e-5, samples=1500, digest="ab"):
        pass
    own = {"state": str(tmp_path / "state"), "device": "cpu", "source": "embedded", "deal": "iid"}
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        with served(tmp_path) as federator, pytest.raises(Refused, match=r"^this node has ended its session") as told:
            run_session(invite(federator, "client-0"), own | {"epsilon": 8.0, "dataset": "scans"})
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert told.value.__cause__ is None
    assert not any(digit in str(told.value) for digit in "0123456789")
    assert "the data 'scans' have changed since their budget was opened: 1,500 samples then" in caplog.text


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"epsilon": 0.0}, InvalidConfig, "epsilon = 0.0"),
        ({"epsilon": "8"}, InvalidConfig, "epsilon = '8': it must be of type float"),
        ({"epsilon": 8.0, "delta": 1.0}, InvalidConfig, "delta = 1"),
        ({"clip": 5.0}, InvalidConfig, "clip = 5.0 is for private votes: give epsilon with it"),
        ({"epsilom": 8.0}, UnknownName, "did you mean 'epsilon'"),
    ],
)
def test_privacy_that_makes_no_sense_sends_nothing(keys, error, message):
    with pytest.raises(error, match=message):
        run_session(SessionInfo("127.0.0.1:1", b"", "", "ann"), keys)


def test_an_old_token_and_a_guessed_one_are_refused(tmp_path):
    with served(tmp_path) as federator:
        old = invite(federator, "client-0")
        new = invite(federator, "client-0")
        for token in (old.token, "guessed"):
            with pytest.raises(Refused, match="is not valid, or no longer"):
                run_session(SessionInfo(new.address, new.authority, token, "client-0"), {"device": "cpu"})


def test_a_token_is_good_for_its_own_name_alone(tmp_path):
    with served(tmp_path) as federator:
        mine = invite(federator, "client-0")
        other = SessionInfo(mine.address, mine.authority, mine.token, "client-1")
        with pytest.raises(Refused, match="calls itself 'client-1'"):
            run_session(other, {"state": str(tmp_path / "state")})


def test_a_ledger_goes_on_with_its_own_run_alone(tmp_path):
    with served(tmp_path) as federator:
        first = play(federator, tmp_path)
    with served(tmp_path) as federator:
        assert play(federator, tmp_path / "elsewhere") == first
    with pytest.raises(InvalidConfig, match="holds another run"), served(tmp_path, lr=0.5):
        pass


def test_a_ledger_is_served_once(tmp_path):
    with (
        served(tmp_path),
        pytest.raises((InvalidLedger, InvalidConfig)),
        served(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"rouds": 3}, UnknownName, "did you mean 'rounds'"),
        ({"rounds": 0}, InvalidConfig, "rounds = 0"),
        ({"port": 70000}, InvalidConfig, "port = 70000"),
        ({"port": "8443"}, InvalidConfig, "port = '8443'"),
        ({"linger": -1.0}, InvalidConfig, "linger = -1.0"),
        ({"address": "host:80"}, InvalidKeys, "host = 'host:80'"),
        ({"data": "/srv/mnist"}, InvalidConfig, "is for simulations or for one machine"),
    ],
)
def test_a_bad_run_config_is_a_sentence(keys, error, message):
    with pytest.raises(error, match=message):
        read(keys)


@pytest.mark.parametrize(
    ("address", "listen", "place"),
    [
        ("127.0.0.1", "127.0.0.1:0", "127.0.0.1:7"),
        ("[::1]", "[::1]:0", "[::1]:7"),
        ("::1", "[::1]:0", "[::1]:7"),
        ("federator.example.org", "[::]:0", "federator.example.org:7"),
    ],
)
def test_only_a_federator_for_other_machines_is_reached_from_them(address, listen, place):
    _, serving = read({"address": address})
    assert (serving.listen, serving.address_at(7)) == (listen, place)


def test_a_bad_roster_is_a_sentence():
    with pytest.raises(InvalidKeys, match="use up to 64 letters"):
        read({"roster": "ann,bob & cy"})


def test_the_app_that_is_written_is_the_run(tmp_path):
    folder = tmp_path / "My digits"
    words = ["flower", "new", str(folder), "--clients", "4", "--byzantine", "1", "--lr", "0.5"]
    assert CliRunner().invoke(app, words).exit_code == 0
    written = tomllib.loads((folder / "pyproject.toml").read_text())
    assert written["project"]["name"] == "my-digits"
    settings, _ = read(written["tool"]["flwr"]["app"]["config"])
    assert settings.agreement == Agreement(clients=4, byzantine=1, lr=0.5)
    again = CliRunner().invoke(app, words)
    assert "exists and is not empty" in str(again.exception)
