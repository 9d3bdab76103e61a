"""What a federator and its clients say: with a time and a level, each thing once, on the side that can do something."""

import asyncio
import io
import json
import re
from datetime import datetime
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.network.watched import watched

from cyber0.cli.join import Where
from cyber0.config import RunConfig
from cyber0.errors import Unreachable
from cyber0.network.handshake import refusal
from cyber0.network.keys import channel_credentials, expiring, init, issue, peer_name, server_credentials
from cyber0.network.log import KINDS, Log, Repeats, Said
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import run_client
from cyber0.network.stub_model import StubModel
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Rejection
from cyber0.protocol.settings import Settings

DAY = 86400


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_what_repeats_for_a_day_is_some_lines_that_count_it_all():
    clock = Clock()
    repeats, shown = Repeats(clock), []
    for number in range(2 * DAY):
        clock.now = number / 2
        text = f"round {number}: the vote of client-3 does not count (rejected: a scalar is not finite)"
        if said := repeats.shown(Said(text, "warning", "client-3")):
            shown.append(said)
    assert len(shown) < 40
    assert {said.level for said in shown} == {"warning"}
    counted = [int(found.replace(",", "")) for said in shown for found in re.findall(r"\(([\d,]+) times in", said)]
    last = int(re.match(r"round (\d+)", shown[-1])[1])
    assert 1 + sum(counted) == last + 1  # every notice up to the last line is in one of the counts


def test_clients_are_told_apart_and_who_invents_words_is_not_heard_for_ever():
    clock = Clock()
    repeats = Repeats(clock)
    assert repeats.shown(Said("ann has left", client="ann"))
    assert repeats.shown(Said("bob has left", client="bob"))
    assert repeats.shown(Said("bob has left", client="bob")) is None
    words = [repeats.shown(Said(f"eve says {'x' * number}", client="eve")) for number in range(1000)]
    assert 0 < sum(said is not None for said in words) <= KINDS + 1
    strangers = [repeats.shown(Said(f"{name} is refused", client=name), known=False) for name in map(str, range(99))]
    assert sum(said is not None for said in strangers) == 1
    clock.now = 3 * DAY
    assert repeats.shown(Said("bob has left", client="bob")) == "bob has left (2 times in 72 h)"
    clock.now = 6 * DAY
    assert repeats.shown(Said("bob has left", client="bob")) == "bob has left"


def test_lines_have_a_time_and_a_level_and_do_nothing_to_a_terminal():
    said = Said("\x1b]0;owned\x07 is here\nand there", "warning", "\x1b]0;owned\x07")
    for form in ("plain", "json"):
        console = Console(file=io.StringIO(), width=20)
        Log(console, form).say(said, rounds=3)
        (line,) = console.file.getvalue().splitlines()
        assert line.isprintable()
        if form == "json":
            whole = json.loads(line)
            assert (whole["text"], whole["level"], whole["client"], whole["rounds"]) == (
                said,
                "warning",
                said.client,
                3,
            )
            when = whole["time"]
        else:
            when, level, text = line.split(maxsplit=2)
            assert (level, text) == ("warning", r"\x1b]0;owned\x07 is here\nand there")
        assert datetime.fromisoformat(when).tzinfo is not None


def test_a_federator_says_once_what_its_clients_do():
    with watched(settings={"deadline": 1.0}) as federation:
        federation.until(lambda status: status["rounds"] > 200)
        federation.leave("ann")
        federation.until(lambda status: status["present"] == 6)
        rejected = [said for said in federation.said if "the vote of nan does not count (rejected" in said]
        assert federation.status()["notices"]["warning"] >= 200
        assert len(rejected) <= 4
        assert {(said.level, said.client) for said in rejected} == {("warning", "nan")}
        assert [said for said in federation.said if said.startswith("ann has left: 6 of 7 are here")]


def test_two_machines_with_one_name_are_told_so_on_both_sides():
    told = []
    with watched(liars={}, settings={"deadline": 1.0}) as federation:
        federation.until(lambda status: status["rounds"] > 3)
        federation.join("ann", place=" again", notice=told.append)

        def known(_):
            return any("ann is used by two" in said for said in federation.said) and told

        federation.until(known)
    assert any("another process joins by the same name" in said for said in told)
    (said,) = {said for said in federation.said if "ann is used by two" in said and "times" not in said}
    assert (said.level, said.client) == ("warning", "ann")


def test_a_client_is_told_that_its_vote_was_late():
    said = []
    member = Member(Settings.of(RunConfig(clients=1, byzantine=0)), "client-0", StubModel(64), notice=said.append)
    member.receive([Rejection(7, "late", "round 7 is decided")], lambda _: None)
    (text,) = said
    assert (text.level, "the vote for round 7 came too late" in text) == ("warning", True)


def test_a_client_off_a_terminal_says_where_it_is_while_nothing_happens():
    console, lines = Console(file=io.StringIO()), []
    member = Member(Settings.of(RunConfig(clients=1, byzantine=0, rounds=9)), "client-0", StubModel(64))
    with Where(Log(console), "client-0", every=0.001) as where:
        where.watch(member)
        while len(lines) < 4:
            lines = console.file.getvalue().splitlines()
    assert all("info    client-0 has 0 of 9 rounds, and waits for the next one" in line for line in lines)
    said = console.file.getvalue()
    assert said.count("\n") < 20  # at growing intervals


def test_the_pace_of_a_client_that_comes_back_is_not_that_of_what_it_had():
    console, back = Console(file=io.StringIO()), SimpleNamespace(commits=5000, applied=0, rounds=9000)
    with Where(Log(console), "client-0", every=0.001) as where:
        where.watch(back)
        while "\n" not in console.file.getvalue():
            pass
    assert "client-0 has 5,000 of 9,000 rounds, and waits for the next one" in console.file.getvalue().splitlines()[0]


def test_a_certificate_that_expires_soon_is_named_where_it_is(tmp_path):
    keys = tmp_path / "keys"
    init(keys)
    assert expiring(keys) == expiring(issue("alice", keys)) == []
    (said,) = expiring(issue("bob", keys, days=20))
    assert re.search(r"bob/cert.pem expires on \d{4}-\d\d-\d\d, in (19|20) days: ask the operator to sign", said)
    init(tmp_path / "short", days=10)
    federator, authority = expiring(tmp_path / "short")
    assert "federator/cert.pem expires" in federator
    assert "cyber0 keys host" in federator
    assert "ca.pem expires" in authority


def test_a_client_without_tls_at_a_port_with_it_is_told_so_and_the_reverse(tmp_path):
    keys = tmp_path / "keys"
    init(keys)
    settings = Settings.of(RunConfig(clients=1, byzantine=0, directions=2), ("alice",))

    async def ask(credentials, function, *arguments, **options):
        federator = Federator(settings, Memory(), peer_name=credentials and peer_name)
        address = f"127.0.0.1:{await federator.start('127.0.0.1:0', credentials)}"
        try:
            return await asyncio.to_thread(function, address, *arguments, **options)
        finally:
            federator.stop("enough")
            await federator.close()

    with pytest.raises(Unreachable, match="what answers there speaks TLS, so give --tls DIR"):
        asyncio.run(ask(server_credentials(keys), run_client, "alice", give_up=0.1))
    folder = issue("alice", keys)
    channel_credentials(folder)
    said = asyncio.run(ask(None, refusal, folder))
    assert "was the federator started with --tls?" in said
