"""What a federator shows: metrics, health, status and a live page, which nothing that comes to its port can harm."""

import json
import os
import re
import signal
import socket
from contextlib import suppress

import pytest
from tests.network.parties import free_port
from tests.network.test_commands import RUN, command, join, until
from tests.network.watched import HONEST, LIARS, PATIENCE, watched
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.cli.serve import metrics_address
from cyber0.errors import Cyber0Error, InvalidConfig
from cyber0.network.http import CONNECTIONS, VIEWERS, live_page
from cyber0.protocol.sqlite import File

SAMPLE = re.compile(
    r'cyber0_[a-z_]+(\{[a-z]+="([^"\\\n]|\\.)*"(,[a-z]+="([^"\\\n]|\\.)*")*\})? (-?[0-9.e+-]+|NaN|[+-]Inf)'
)


@pytest.fixture(scope="module")
def federation():
    """One that goes on for ever, with a client that votes the opposite and one that votes NaN."""
    with watched() as found:
        found.until(lambda status: status["rounds"] > 100 and status["quality"] is not None)
        yield found


def samples(text):
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in lines), lines
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_are_those_of_prometheus_and_grow(federation):
    code, text = federation.get("/metrics")
    assert code == 200
    kinds = dict(re.findall(r"^# TYPE (\S+) (counter|gauge)$", text, re.MULTILINE))
    before = samples(text)
    assert {name.partition("{")[0] for name in before} == kinds.keys()
    assert before["cyber0_clients_present"] == before["cyber0_clients"] == 7
    assert before["cyber0_healthy"] == 1
    assert before['cyber0_client_votes_total{client="nan",verdict="rejected"}'] > 90
    assert 'cyber0_client_votes_total{client="nan",verdict="counted"}' not in before
    assert before['cyber0_client_accuracy{client="ann"}'] == 0.5
    assert before['cyber0_notices_total{level="warning"}'] > 90
    federation.until(lambda _: samples(federation.get("/metrics")[1])["cyber0_rounds"] > before["cyber0_rounds"] + 10)
    after = samples(federation.get("/metrics")[1])
    grown = (
        "rounds",
        "links_signed_total",
        "received_bytes_total",
        "sent_bytes_total",
        'votes_total{verdict="counted"}',
    )
    for name in (f"cyber0_{name}" for name in grown):
        assert after[name] > before[name]


def test_liars_stand_out_and_honest_clients_do_not(federation):
    def settled(status):
        return {one["name"]: one["doubts"] for one in status["clients"]} == {
            "nan": ["refused"],
            "minus": ["far", "against"],
            **{name: [] for name in HONEST},
        }

    status = federation.until(settled)
    names = [one["name"] for one in status["clients"]]
    assert set(names[:2]) == set(LIARS)
    assert tuple(names[2:]) == HONEST  # in roster order
    by_name = {one["name"]: one for one in status["clients"]}
    assert by_name["minus"]["distance"] > 3
    assert by_name["minus"]["cosine"] < -0.5
    assert by_name["nan"]["recent"].strip(".").strip("!") == ""
    assert all(by_name[name]["cosine"] > 0.5 for name in HONEST)


def test_a_run_is_healthy_until_no_round_is_decided_for_longer_than_the_deadline():
    with watched(liars={}, settings={"deadline": 0.2}) as federation:
        federation.until(lambda status: status["rounds"] > 3)
        code, text = federation.get("/health")
        assert (code, json.loads(text)["condition"]) == (200, "running")
        federation.leave(*HONEST[:3])
        federation.until(lambda status: status["condition"] == "stalled")
        code, text = federation.get("/health")
        assert (code, json.loads(text)["ok"]) == (503, False)
        assert samples(federation.get("/metrics")[1])["cyber0_healthy"] == 0
        for name in HONEST[:3]:
            federation.join(name)
        federation.until(lambda status: status["condition"] == "running")
        assert federation.get("/health")[0] == 200


def test_a_finished_run_is_healthy():
    with watched(liars={}, settings={"rounds": 5}, linger=PATIENCE) as federation:
        status = federation.until(lambda status: status["condition"] == "finished")
        assert status["rounds"] == status["of"] == 5
        assert federation.get("/health")[0] == 200


def test_who_asks_for_something_else_is_refused(federation):
    assert federation.get("/etc/passwd")[0] == 404
    assert federation.get("/", method="POST")[0] == 405
    assert federation.get("/status", Host="evil.example")[0] == 403  # as by a web site that has its name lead here
    assert federation.get("/status", Host="localhost:1")[0] == 200
    assert federation.get("/health", method="HEAD") == (200, "")


def opened(federation, data=b""):
    there = socket.create_connection(("127.0.0.1", federation.port), timeout=PATIENCE)
    there.sendall(data)
    return there


def test_neither_slow_peers_nor_garbage_do_any_harm(federation):
    before = federation.status()["rounds"]
    slow = [opened(federation, b"GET / HTTP/1.1\r\nHost: local") for _ in range(3 * CONNECTIONS)]
    assert federation.get("/health")[0] == 200  # the oldest have made room
    for garbage in (
        b"\r\n\r\n",
        b"\x16\x03\x01" + bytes(200) + b"\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
    ):
        with opened(federation, garbage) as there:
            assert there.recv(64).startswith(b"HTTP/1.1 400")
    with opened(federation, b"x" * 20_000) as there:
        assert there.recv(64).startswith(b"HTTP/1.1 400")
    with opened(federation, b"GET /status HTTP/1.1\r\n\r\n"):
        pass  # gone before the answer
    with suppress(ConnectionResetError):
        assert slow[0].recv(1) == b""
    federation.until(lambda status: status["rounds"] > before + 10)
    for there in slow:
        there.close()


def test_all_viewers_are_sent_the_same_states_and_too_many_are_refused(federation):
    viewers = [opened(federation, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(VIEWERS)]
    files = [viewer.makefile("rb") for viewer in viewers]
    first = [next(line for line in file if line.startswith(b"data: ")) for file in files[:2]]
    assert json.loads(first[0][6:])["rounds"] > 0
    second = [next(line for line in file if line.startswith(b"data: ")) for file in files[:2]]
    assert second[0] != first[0]
    assert {second[0]} & {first[1], second[1]}  # one of the states that the other one is sent, byte for byte
    for file in files[2:]:
        assert file.readline().startswith(b"HTTP/1.1 200")
    assert federation.get("/events") == (503, "too many viewers\n")
    for viewer, file in zip(viewers, files, strict=True):
        file.close()
        viewer.close()
    before = federation.status()["rounds"]
    federation.until(lambda status: status["rounds"] > before)


def test_nothing_of_the_page_comes_from_elsewhere():
    page, policy = live_page()
    assert b"http" not in re.sub(rb"http://www.w3.org/2000/svg", b"", page)
    assert "unsafe" not in policy
    assert b"innerHTML" not in page


@pytest.mark.parametrize("address", ["0.0.0.0:9100", "federator.example.org:9100", "[::]:9100"])
def test_metrics_are_for_this_machine_unless_that_is_said(address):
    with pytest.raises(InvalidConfig, match="is reached from other machines"):
        metrics_address(address, public=False)
    assert metrics_address(address, public=True)[1] == 9100


def test_serve_tells_status_by_its_address_and_by_its_ledger(tmp_path):
    ledger, address = tmp_path / "run.ledger", f"127.0.0.1:{free_port()}"
    serve = ["serve", "--ledger", ledger, "--listen", address, "--rounds", "100000", "--log", "json", "--metrics", "0"]
    federator = command(*serve, *RUN, blocked=True)
    first = json.loads(federator.stdout.readline())
    assert first["level"] == "info"
    assert first["text"].startswith("listening at")
    page = json.loads(until(federator, "the live page is at"))["text"].rpartition(" ")[2]
    clients = [join(address, f"client-{number}", tmp_path, "--log", "json", fresh=False) for number in range(3)]
    until(federator, "client-2 is here")
    for run in (page, page.split("/")[2], ledger):
        shown = {}
        while not shown.get("rounds"):
            result = CliRunner().invoke(app, ["status", str(run), "--json"])
            assert result.exit_code == 0, result.output
            shown = json.loads(result.output)
        assert shown["here"] == ["client-0", "client-1", "client-2"]
        assert shown["of"] == 100000
        assert "a commit is final once 3 of 3" in shown["finality"]
    federator.send_signal(signal.SIGTERM)
    out, _ = federator.communicate()
    assert all(line.startswith("{") for line in out.splitlines()), out
    last = json.loads(out.splitlines()[-1])
    assert last["text"] == "the federator has ended"
    with File(ledger, read_only=True) as file:
        assert last["head"] == file.head.link.hex()
    for client in clients:
        said = json.loads(until(client, "waiting for a federator"))
        assert (said["level"], said["text"].endswith("and may come back")) == ("info", True)
        client.send_signal(signal.SIGTERM)
        client.communicate()
    result = CliRunner().invoke(app, ["status", str(ledger)])
    assert "at rest" in result.output
    assert f"last seal        after {last['rounds'].split()[0]} rounds" in result.output


def test_status_of_what_is_no_run_is_a_sentence(tmp_path, federation):
    for run, sentence in {
        f"127.0.0.1:{free_port()}": "nobody answers at",
        str(tmp_path / "run.ledger"): "there is no ledger",
        "http://127.0.0.1:99999": "write HOST:PORT",
    }.items():
        result = CliRunner().invoke(app, ["status", run])
        assert isinstance(result.exception, Cyber0Error)
        assert sentence in str(result.exception)
    assert "state            running" in CliRunner().invoke(app, ["status", str(federation.port)]).output


def test_the_live_demo_ends_by_itself_and_by_ctrl_c():
    def demo(rounds):
        arguments = ("demo", "--live", "--rounds", rounds, "--clients", "4")
        return command(*arguments, fresh=False)

    short = demo(3)
    out, _ = short.communicate()
    assert short.returncode == 0, out
    assert re.search(r"Look at http://127.0.0.1:\d+/", out)
    assert "3 rounds: all 3 rounds are decided" in out
    long = demo(100000)
    until(long, "Look at http://127.0.0.1:")
    os.kill(long.pid, signal.SIGINT)
    out, _ = long.communicate()
    assert long.returncode == 0, out
    assert "it was stopped by Ctrl-C" in out
