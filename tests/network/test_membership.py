"""Who takes part changes while a run goes on: the operator asks, the chain has it, and two rounds later it holds."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess

import pytest
from tests import processes
from tests.network.parties import Parties, recipe
from tests.network.test_laws import replayed
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.cli.roster import key_of
from cyber0.errors import Cyber0Error, Refused, Unreachable
from cyber0.network import keys
from cyber0.network.certificates import fingerprint
from cyber0.network.control import LARGEST, MOST, Control, ask, control_path
from cyber0.network.enrolment import request as request_key
from cyber0.network.key_files import certificate_request
from cyber0.network.member import Member
from cyber0.network.own_entry import ask_federator
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.show import table
from cyber0.network.store import Store
from cyber0.network.stub_model import StubModel
from cyber0.protocol.roster import Change
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, is_by, key_beside, new_key, private_key
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify


class Operated(Parties):
    """A federation of processes whose federator is asked for changes, and killed after each."""

    def asked(self, **request):
        """Ask until it is written; returns the round."""
        while True:
            try:
                said = ask(self.ledger, request, timeout=60.0)["said"]
                return int(said.partition("written with round ")[2].split(",")[0])
            except Unreachable:
                self.pause(0.05)

    def until(self, condition):
        """Let all go on until the decisions fulfil a condition."""
        while True:
            if self.ledger.exists():
                with File(self.ledger, read_only=True) as ledger:
                    if ledger.founded and condition(list(ledger.decisions())):
                        return
            self.pause(0.05)

    def hold(self, *names):
        """Stop so many clients that no round is decided."""
        for name in names:
            os.kill(self.processes[name].pid, signal.SIGSTOP)

    def go_on(self, *names):
        for name in names:
            os.kill(self.processes[name].pid, signal.SIGCONT)

    def federator_dies(self):
        """Kill it, start it again, and return in which round it is."""
        self.kill("federator")
        self.federator()
        while True:
            try:
                return ask(self.ledger, {"kind": "show"}, timeout=60.0)["round"]
            except Unreachable:
                self.pause(0.05)


def voters(decisions):
    return [{ballot.client for ballot in decision.ballots} for decision in decisions]


def test_a_revoked_client_never_counts_after_the_boundary_and_an_admitted_one_from_it_on(tmp_path):
    """Through kills of the federator before a change is written, and after each."""
    config, held = recipe(clients=5, rounds=400), ("client-0", "client-1")
    made = {name: key_beside(tmp_path / f"{name}.pem") for name in ("eve", "client-3")}
    public = {name: encoded(key.public_key()).hex() for name, key in made.items()}
    with Operated(tmp_path, config, deadline=1.5) as parties:
        parties.federator()
        for name in parties.roster:
            parties.client(name)
        parties.until(lambda decisions: len(decisions) > 3)
        parties.hold(*held)
        lost = parties.federator_dies()  # and with it the votes that were on their way
        with pytest.raises(Unreachable, match="may still be written"):
            ask(parties.ledger, {"kind": "revoke", "name": "client-2"}, timeout=0.5)
        assert parties.federator_dies() == lost  # that was not written: client-2 comes back
        parties.go_on(*held)
        parties.until(lambda decisions: any("client-2" in names for names in voters(decisions[lost + 1 :])))
        revoked = parties.asked(kind="revoke", name="client-4")
        parties.federator_dies()
        admitted = parties.asked(kind="admit", name="eve", key=public["eve"])
        parties.federator_dies()
        parties.client("eve", key=tmp_path / "eve.pem", index=4)
        parties.until(lambda decisions: "eve" in voters(decisions)[-1])
        parties.federator_dies()
        rotated = parties.asked(kind="rotate", name="client-3", key=public["client-3"])
        parties.federator_dies()
        assert parties.processes["client-3"].wait(60) == 1  # its key was replaced
        parties.client("client-3", key=tmp_path / "client-3.pem")
        parties.until(lambda decisions: len(decisions) > rotated + 2 and "client-3" in voters(decisions)[-1])
        extended = parties.asked(kind="extend", rounds=420)
        parties.federator_dies()
        assert parties.processes["client-4"].wait(60) == 1
        stayed = ["client-0", "client-1", "client-2", "client-3", "eve"]
        parties.wait(*stayed, "federator")
        outcomes = [parties.outcome(name) for name in stayed]
    with File(parties.ledger, read_only=True) as ledger:
        who = voters(ledger.decisions())
        assert len(who) == 420 > extended + 2
        assert all("client-4" not in names for names in who[revoked + 2 :])
        assert all("eve" not in names for names in who[: admitted + 2])
        assert any("eve" in names for names in who[admitted + 2 :])
        assert ledger.roster.names == tuple(stayed)
        assert ledger.roster.key("client-3").hex() == public["client-3"]
        changes = {decision.round: decision.changes for decision in ledger.decisions() if decision.changes}
        assert Change("revoke", "client-2") not in sum(changes.values(), ())
        assert changes[revoked][0] == Change("revoke", "client-4")
        assert verify(ledger).findings == []
        mark = replayed(ledger)
    assert outcomes == [{"rounds": 420, "fingerprint": mark}] * 5


# In one process, over real sockets


class Federation:
    """A federator with its socket, and clients that train nothing."""

    def __init__(self, folder, tls=None, **changes):
        linger = changes.pop("linger", 0.0)
        settings = Settings.of(recipe(**{"rounds": 10**5, **changes}), deadline=0.5)
        self.path, self.folder, self.tls, self.clients = folder / "run.ledger", folder, tls, {}
        self.ledger = File(self.path, synchronous="OFF")
        options = {}
        if tls is not None:
            who = {"peer_name": keys.peer_name, "certified": True}
            own = private_key(keys.federator_key(tls)), keys.certificate_of_federator(tls)
            options = {**who, "key": own[0], "certificate": own[1]}
        self.federator = Federator(settings, self.ledger, linger=linger, **options)
        self.control = Control(self.federator, self.path, None if tls is None else keys.certificate(tls / "ca.pem"))

    async def __aenter__(self):
        secure = None if self.tls is None else keys.server_credentials(self.tls)
        self.address = f"localhost:{await self.federator.start('localhost:0', secure)}"
        assert await self.control.open() == ""
        for name in self.federator.settings.roster:
            self.come(name)
        await self.until(lambda: self.ledger.founded)
        return self

    async def __aexit__(self, *_):
        self.leave(*self.clients)
        self.federator.stop("enough")
        await self.control.close()
        await self.federator.close()
        self.ledger.close()

    def come(self, name, key=None):
        secure = None
        if self.tls is not None:
            folder = self.tls / "clients" / name
            secure, key = keys.channel_credentials(folder), private_key(folder / "key.pem")
        store = Store(self.folder / "state" / f"run-{name}")
        made = []

        def make(told):
            made.append(Member(told, name, StubModel(4), store, key=key))
            return made[0]

        async def attended():
            try:
                return await attend(self.address, make, credentials=secure, threaded=False)
            finally:
                store.close()

        self.clients[name] = asyncio.ensure_future(attended())

    def leave(self, *names):
        for name in names:
            self.clients[name].cancel()

    async def until(self, condition):
        while not condition():
            for client in self.clients.values():
                if client.done() and not client.cancelled() and client.exception():
                    raise client.exception()
            await asyncio.sleep(0.01)

    async def counted(self, name):
        """Wait until a vote of a client counts."""
        seen = self.federator.tally.clients[name]
        before = seen.verdicts["counted"]
        await self.until(lambda: seen.verdicts["counted"] > before)

    async def held(self):
        """Let two clients go, and wait until the open round has no vote of theirs: nothing is decided then."""
        gone = {"client-0", "client-1"}
        self.leave(*gone)
        state = lambda: self.federator.state  # noqa: E731
        await self.until(lambda: not gone & ({*state().present, *state().votes.counted}))

    async def ask(self, **request):
        return (await asyncio.to_thread(ask, self.path, request, 30.0))["said"]


def play(federation, script):
    async def run():
        async with federation:
            return await script(federation)

    return asyncio.run(asyncio.wait_for(run(), 60))


def written_with(said):
    return int(said.partition("written with round ")[2].split(",")[0])


def test_an_admitted_client_is_invited_counted_and_shown(tmp_path):
    key = new_key()
    public = encoded(key.public_key()).hex()

    async def script(federation):
        said = await federation.ask(kind="admit", name="eve", key=public)
        number = written_with(said)
        assert said.startswith(f"eve is admitted with the key {public[:16]}: written with round ")
        assert said.endswith(f"in force from round {number + 2} on")
        federation.come("eve", key)
        await federation.counted("eve")
        assert "eve" in [cell.plain for cell in table(federation.federator).renderables[1].columns[0].cells]
        said = await federation.ask(kind="revoke", name="eve")
        with pytest.raises(Refused, match=r"it is (revoked|not on the roster)"):
            await federation.clients["eve"]
        return number, written_with(said)

    federation = Federation(tmp_path)
    admitted, revoked = play(federation, script)
    with File(federation.path, read_only=True) as ledger:
        rounds = [d.round for d in ledger.decisions() if "eve" in {ballot.client for ballot in d.ballots}]
        assert admitted + 2 <= min(rounds) <= max(rounds) <= revoked + 1
        assert verify(ledger).findings == []


REFUSED = [
    ({"kind": "revoke", "name": "zoe"}, "zoe is not on the roster: client-0, client-1"),
    ({"kind": "admit", "name": "eve"}, "eve cannot be admitted without a key"),
    ({"kind": "admit", "name": "eve", "key": "00"}, "admit eve: 00 is no public key"),
    ({"kind": "admit", "name": "eve", "key": "no"}, "must be given in hexadecimal digits"),
    ({"kind": "admit", "name": "eve", "key": 7}, "must be given in hexadecimal digits"),
    ({"kind": "admit", "name": "e\nve", "key": "00"}, "name = 'e\\\\nve'"),
    ({"kind": "extend", "rounds": 9}, "rounds = 9: the run has 100000 already, give more"),
    ({"kind": "extend", "rounds": "9"}, "kind = 'extend': it must be one of show, admit"),
    ({"kind": "promote", "name": "eve"}, "kind = 'promote': it must be one of show, admit, revoke, rotate, extend"),
    ({"kind": ["admit"]}, "it must be one of show"),
    ({"kind": "admit", "name": "eve", "key": "00", "certificate": "00"}, "this federator runs without TLS"),
]


def test_what_cannot_be_done_is_refused_with_the_reason(tmp_path):
    async def script(federation):
        for request, message in REFUSED:
            with pytest.raises(Refused, match=message):
                await federation.ask(**request)
        known = federation.ledger.roster.key("client-0").hex()
        with pytest.raises(Refused, match="client-0 and eve have the same key: every client needs its own"):
            await federation.ask(kind="admit", name="eve", key=known)
        await federation.ask(kind="revoke", name="client-3")
        federation.clients.pop("client-3").cancel()  # which is refused, if it has come again
        await federation.counted("client-0")
        with pytest.raises(Refused, match="a quorum of 3 must be left"):
            await federation.ask(kind="revoke", name="client-2")
        await federation.counted("client-0")  # it goes on

    play(Federation(tmp_path), script)


def test_a_change_is_answered_when_it_is_written_and_one_that_contradicts_it_at_once(tmp_path):
    public = encoded(new_key().public_key()).hex()

    async def script(federation):
        await federation.held()
        first = asyncio.ensure_future(federation.ask(kind="revoke", name="client-3"))
        await federation.until(lambda: federation.federator.state.proposed)
        with pytest.raises(Refused, match="rotate client-3: client-3 is revoked, and one round takes one change"):
            await federation.ask(kind="rotate", name="client-3", key=public)
        second = asyncio.ensure_future(federation.ask(kind="extend", rounds=10**5 + 1))
        await federation.until(lambda: len(federation.federator.state.proposed) == 2)
        assert not first.done()
        federation.clients.pop("client-3")
        federation.come("client-0")
        federation.come("client-1")
        return written_with(await first), written_with(await second)

    federation = Federation(tmp_path)
    first, second = play(federation, script)
    assert first == second  # one batch
    with File(federation.path, read_only=True) as ledger:
        (decision,) = ledger.decisions(first, first + 1)
        assert decision.changes == (Change("revoke", "client-3"), Change("extend", number=10**5 + 1))


def test_a_federator_that_stops_says_that_nothing_was_written(tmp_path):
    async def script(federation):
        await federation.held()
        asked = asyncio.ensure_future(federation.ask(kind="revoke", name="client-3"))
        await federation.until(lambda: federation.federator.state.proposed)
        federation.federator.stop("enough")
        with pytest.raises(Refused, match="the federator stopped before it was written"):
            await asked

    federation = Federation(tmp_path)
    play(federation, script)
    with File(federation.path, read_only=True) as ledger:
        assert ledger.roster.pending == ()


def test_nothing_is_written_to_a_run_that_is_over(tmp_path):
    async def script(federation):
        await federation.until(lambda: federation.federator.state.is_finished)
        with pytest.raises(Refused, match="all 5 rounds are decided: nothing can be written to this run"):
            await federation.ask(kind="extend", rounds=10)

    play(Federation(tmp_path, rounds=5, linger=60.0), script)


def test_the_socket_is_its_owners_alone_and_leaves_nothing_behind(tmp_path):
    path = control_path(tmp_path / "run.ledger")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))  # of a federator that was killed
    with pytest.raises(Unreachable, match=r"no federator answers at .*: Connection refused; --ledger must name"):
        ask(tmp_path / "run.ledger", {"kind": "show"}, timeout=1.0)

    def said(data):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(path))
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
            return json.loads(stream.makefile().readline())["refused"]

    async def script(federation):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for data in (b"", b"nonsense\n", b"[" * 50_000 + b"\n", b"x" * (LARGEST + 1)):
            assert await asyncio.to_thread(said, data) == "the request is not a line of JSON of at most 65,536 bytes"
        assert await asyncio.to_thread(said, b"[7]\n") == "the request is list: it must be an object of JSON"
        await federation.held()
        streams = []
        for number in range(MOST):
            streams.append(await asyncio.open_unix_connection(path))
            streams[-1][1].write(json.dumps({"kind": "extend", "rounds": 10**5 + 1 + number}).encode() + b"\n")
            await federation.until(lambda count=number + 1: len(federation.federator.state.proposed) == count)
        with pytest.raises(Refused, match="more than 16 requests wait for an answer"):
            await federation.ask(kind="show")
        federation.federator.stop("enough")
        for reader, writer in streams:
            assert b"the federator stopped before it was written" in await reader.readline()
            writer.close()
            await writer.wait_closed()

    play(Federation(tmp_path), script)
    assert not path.exists()


def test_where_no_socket_can_be_the_federator_says_so_and_goes_on(tmp_path):
    control_path(tmp_path / "run.ledger").mkdir()
    federation = Federation(tmp_path)
    said = asyncio.run(federation.control.open())
    assert said.startswith("the roster cannot be changed while this federator runs: no socket at ")
    federation.ledger.close()


# A client about itself


def test_a_client_withdraws_by_itself_and_nobody_else_can_do_it_for_it(tmp_path):
    async def script(federation):
        def wish(change, **options):
            return asyncio.to_thread(ask_federator, federation.address, change, timeout=30.0, **options)

        run, state = federation.ledger.identity.digest, {"state": federation.folder / "state"}
        for forged in ({"key": new_key()}, {"key": private_key(federation.folder / "state/run-client-0/key.pem")}):
            with pytest.raises(Refused, match="for itself alone, signed with its present key"):
                await wish(Change("revoke", "client-3"), run=run, **forged)
        with pytest.raises(Refused, match="for itself alone"):
            await wish(Change("extend", "client-3", number=10**5 + 99), **state)
        said = await wish(Change("revoke", "client-3"), **state)
        with pytest.raises(Refused, match=r"the federator refuses this client: it is (revoked|not on the roster)"):
            await federation.clients.pop("client-3")
        with pytest.raises(Refused, match="a quorum of 3 must be left"):
            await wish(Change("revoke", "client-2"), **state)
        await federation.counted("client-2")  # it goes on
        return written_with(said)

    federation = Federation(tmp_path)
    number = play(federation, script)
    with File(federation.path, read_only=True) as ledger:
        (change,) = next(ledger.decisions(number, number + 1)).changes
        assert is_by(ledger.identity.roster.key("client-3"), change.signature, change.statement(ledger.identity.digest))
        assert all("client-3" not in names for names in voters(ledger.decisions(number + 2)))
        assert verify(ledger).findings == []


def test_a_client_changes_its_own_key_and_goes_on_with_it(tmp_path):
    new = new_key()

    async def script(federation):
        change = Change("rotate", "client-3", encoded(new.public_key()))
        state = federation.folder / "state"
        said = await asyncio.to_thread(ask_federator, federation.address, change, state=state, timeout=30.0)
        with pytest.raises(Refused, match="its key was replaced by another: join with the new one"):
            await federation.clients.pop("client-3")
        federation.come("client-3", new)
        await federation.counted("client-3")
        return written_with(said)

    federation = Federation(tmp_path)
    number = play(federation, script)
    with File(federation.path, read_only=True) as ledger:
        assert ledger.roster.key("client-3") == encoded(new.public_key())
        (change,) = next(ledger.decisions(number, number + 1)).changes
        assert is_by(ledger.identity.roster.key("client-3"), change.signature, change.statement(ledger.identity.digest))
        assert verify(ledger).findings == []


# With certificates


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The keys of four clients and of eve, and those of eve by another authority."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ours", "theirs"):
        keys.init(folder / name)
        keys.issue("eve", folder / name)
    for number in range(4):
        keys.issue(f"client-{number}", folder / "ours")
    return folder


def asked_for(path, name="eve"):
    return {"kind": "admit", "name": name, **key_of(name, None, path)}


def test_with_tls_only_a_certificate_of_the_authority_admits_and_it_is_kept(tmp_path, authority):
    async def script(federation):
        with pytest.raises(Refused, match="it is none of a client eve by this federation's authority"):
            await federation.ask(**asked_for(authority / "theirs/clients/eve/cert.pem"))
        request = asked_for(authority / "ours/clients/eve/cert.pem")
        with pytest.raises(Refused, match="it is none of a client zoe by this federation's authority"):
            await federation.ask(**{**request, "name": "zoe"})
        await federation.ask(**request)
        known = list(federation.ledger.certificates)
        federation.come("eve")
        await federation.counted("eve")
        assert bytes.fromhex(request["certificate"]) in known

    federation = Federation(tmp_path, authority / "ours")
    play(federation, script)
    with File(federation.path, read_only=True) as ledger:
        ours, theirs = (keys.certificate(authority / name / "ca.pem") for name in ("ours", "theirs"))
        report = verify(ledger, authority=ours)
        assert (report.findings, report.authors) == ([], "the authority's certificates")
        assert verify(ledger, authority=theirs).findings


# The commands


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_commands_of_an_operator(tmp_path, authority):
    public = tmp_path / "zoe"
    request_key("zoe", public)

    async def script(federation):
        def say(*words):
            return asyncio.to_thread(command, *words, "--ledger", federation.path)

        result = await say("admit", "zoe", "--key", public / "request.pem")
        assert result.output.startswith("zoe is admitted with the key "), result.output
        federation.come("zoe", private_key(public / "key.pem"))
        await federation.counted("zoe")
        shown = await say("roster")
        assert shown.exit_code == 0, shown.exception
        result = await say("extend", "--rounds", 10**5 + 5)
        assert "the run has 100005 rounds: written with round " in result.output
        gone = federation.clients.pop("client-3")
        result = await say("revoke", "client-3")
        with pytest.raises(Refused, match=r"it is (revoked|not on the roster)"):
            await gone
        assert "client-3 is revoked: written with round " in result.output
        result = await say("rotate", "zoe", "--cert", authority / "ours/clients/eve/cert.pem")
        assert "cert.pem is of 'eve', not of 'zoe'" in str(result.exception)
        return shown.output

    federation = Federation(tmp_path)
    shown = play(federation, script)
    marks = fingerprint(certificate_request(public / "request.pem")[0])
    assert f"zoe              key {marks}, here" in shown
    assert "5, 1 of whom may lie; 4 votes decide a round" in shown
    assert "finality         a commit is final once 4 of 5 invited clients have voted after it" in shown
    assert "running, in round" in shown
    alone = command("roster", "--ledger", federation.path)
    assert "federator        not running" in alone.output
    assert "of 100,005" in alone.output
    nobody = command("revoke", "zoe", "--ledger", federation.path)
    assert isinstance(nobody.exception, Unreachable)
    assert "--ledger must name the ledger of a cyber0 serve that runs" in str(nobody.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["admit", "zoe"], r"zoe needs --key FILE \(its request.pem or public key\) or --cert FILE, one of the two"),
        (["admit", "zoe", "--key", "no.pem"], "cannot read no.pem"),
        (["roster", "--ledger", "no.ledger"], "no.ledger is not there"),
        (["withdraw", "192.0.2.1:7360", "--name", "zoe"], "is another machine: give --tls DIR"),
        (["withdraw", "127.0.0.1:7360"], "--name is needed"),
        (["withdraw", "127.0.0.1:1", "--name", "zoe", "--expect", "00" * 32], "--expect needs --key or --tls, too"),
        (["withdraw", "127.0.0.1:1", "--name", "zoe", "--timeout", "5"], "no federator answers at 127.0.0.1:1"),
        (["renew", "127.0.0.1:1", "--name", "zoe", "--new", "no.pem"], "cannot read the key no.pem"),
    ],
)
def test_commands_that_cannot_be_followed_are_refused_in_a_sentence(words, message):
    result = command(*words)
    assert isinstance(result.exception, Cyber0Error)
    assert re.search(message, str(result.exception))


def test_cyber0_serve_listens_to_its_operator_until_it_stops(tmp_path):
    ledger = tmp_path / "run.ledger"
    words = ["serve", "--ledger", ledger, "--listen", "127.0.0.1:0", "--clients", 3, "--byzantine", 1]
    federator = processes.Popen(processes.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert any("listening at" in said for said in federator.stdout)
        while not control_path(ledger).exists():
            assert federator.poll() is None
        result = command("revoke", "client-2", "--ledger", ledger)
        assert "the roster cannot be changed before the run is founded" in str(result.exception)
        assert "holds no run yet" in str(command("roster", "--ledger", ledger).exception)
    finally:
        federator.send_signal(signal.SIGTERM)
        out, _ = federator.communicate()
    assert federator.returncode == 0, out
    assert not control_path(ledger).exists()
