"""The two commands of a federation, as people use them."""

import os
import signal
import subprocess
import sys

import pytest
from tests import processes
from tests.network.parties import free_port
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.errors import InputError
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "safetensors", "mlxtend", "pandas", "matplotlib"}:
            raise ImportError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Block())
from cyber0.cli import main
main()
"""
RUN = ["--clients", "3", "--byzantine", "1", "--directions", "4"]

DATA = ["--source", "embedded", "--deal", "dirichlet(alpha=0.1)"]


def command(*arguments, blocked=False, fresh=True):
    start = ["-c", BLOCK] if blocked else ["-m", "cyber0"]
    words = [*start, *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    if fresh:
        return subprocess.Popen([sys.executable, *words], text=True, **options)
    return processes.Popen(words, **options)


def join(address, name, folder, *more, fresh=True):
    words = ("join", address, "--name", name, "--state", folder / "state", "--device", "cpu", *DATA, *more)
    return command(*words, fresh=fresh)


def until(process, text):
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was not said")


def test_a_federator_without_torch_stops_and_is_continued_from_its_ledger_alone(tmp_path):
    ledger, address = tmp_path / "run.ledger", f"127.0.0.1:{free_port()}"
    serve = ["serve", "--ledger", ledger, "--listen", address]
    federator = command(*serve, *RUN, "--rounds", "150", blocked=True)
    clients = [join(address, f"client-{number}", tmp_path, "--evaluate", fresh=number == 0) for number in range(3)]
    until(federator, "a commit is final once 3 of 3 invited clients have voted after it: the quorum is 3")
    until(federator, "client-2 is here")
    federator.send_signal(signal.SIGTERM)
    out, _ = federator.communicate()
    assert federator.returncode == 0, out
    with File(ledger, read_only=True) as file:
        rounds = file.head.rounds
        assert 0 <= file.seals[-1].rounds == rounds < 150
    assert f"{rounds} of 150 rounds are kept in {ledger}; go on by cyber0 serve --ledger {ledger}" in out
    federator = command(*serve, blocked=True)
    outs = [client.communicate()[0] for client in clients]
    assert [client.returncode for client in clients] == [0, 0, 0], outs
    out, _ = federator.communicate()
    assert federator.returncode == 0, out
    with File(ledger, read_only=True) as file:
        mark = f"{rebuild(file, base(file.identity, None)[1]):016x}"
        assert verify(file).findings == []
    assert mark in out
    assert all(mark in said and "accuracy" in said for said in outs)
    other = command(*serve, "--rounds", "7", fresh=False)
    assert "the ledger holds another run" in other.communicate()[0]
    assert other.returncode == 1


def test_a_stranger_is_told_so_in_a_sentence(tmp_path):
    ledger, address = tmp_path / "run.ledger", f"127.0.0.1:{free_port()}"
    federator = command("serve", "--ledger", ledger, "--listen", address, *RUN, fresh=False)
    until(federator, "listening at")
    eve = join(address, "eve", tmp_path, fresh=False)
    out, _ = eve.communicate()
    assert eve.returncode == 3
    assert out == "cyber0: 'eve' is not on the roster: ask the federation's operator which name to join by\n"
    federator.send_signal(signal.SIGINT)
    federator.communicate()
    assert federator.returncode == 130


def test_a_ledger_without_a_run_is_not_taken_for_the_default_one(tmp_path):
    File(tmp_path / "run.ledger").close()
    result = CliRunner().invoke(app, ["serve", "--ledger", str(tmp_path / "run.ledger"), "--listen", "127.0.0.1:0"])
    assert isinstance(result.exception, InputError)
    assert "the ledger holds no run yet" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve", "--listen", "0.0.0.0:7360"], "is reached from other machines: give --tls DIR"),
        (["serve", "--listen", "7360"], "write HOST:PORT"),
        (["serve", "--listen", "0.0.0.0:99999", "--insecure"], "write HOST:PORT"),
        (["serve", "--roster", "alice & bob", "--byzantine", "0"], "name = 'alice & bob'"),
        (["serve", "dropout.toml"], "dropout = 0.5 is for simulations: in a federation clients fail by themselves"),
        (["serve", "attack.toml"], "attack = 'foe' is for simulations: a liar joins a federation with --attack"),
        (["serve", "--rule", "cwtn"], "unknown rule 'cwtn'"),
        (["serve", "--task", "terc(scale=50)"], "unknown task 'terc'"),
        (["serve", "--task", "trec(scale)"], "task 'trec(scale)': options are written name=value"),
        (["serve", "algorithm.toml"], "a federation trains by cyber0"),
        (["serve", "--clients", "3", "--byzantine", "1", "--roster", "a,b"], "names 2 clients, but clients = 3"),
        (["join", "192.0.2.7:7360", "--name", "alice"], "is another machine: give --tls DIR"),
        (["join", "127.0.0.1:7360"], "--name is needed"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    for name, value in {"dropout": "0.5", "attack": '"foe"', "algorithm": '"fedavg"'}.items():
        (tmp_path / f"{name}.toml").write_text(f"{name} = {value}\n")
    before = sorted(tmp_path.iterdir())
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InputError)
    assert sorted(tmp_path.iterdir()) == before
    assert sentence in str(result.exception)
