"""What a client decides for itself: its terms, its limits, its run, its key; and what a terminal is spared."""

import asyncio
import io
import json
import resource
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from tests.network.parties import Parties, recipe
from tests.network.raw import answering
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.cli.errors import sentence
from cyber0.errors import InvalidConfig, InvalidEvidence, InvalidModel, Refused
from cyber0.network.audits import Audits
from cyber0.network.consent import Limits, terms
from cyber0.network.liars import Liar
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend, run_client
from cyber0.network.show import Show, table
from cyber0.network.store import Marks, Store
from cyber0.network.stub_model import StubModel
from cyber0.printable import printable
from cyber0.protocol.catching_up import Position, follow
from cyber0.protocol.chain import advance, ballots_hash, genesis, link_statement, vote_statement
from cyber0.protocol.codec import encode
from cyber0.protocol.evidence import equivocation, judge
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Bye, CatchUp, Committed, Invitation, RoundOpen, Vote, Welcome
from cyber0.protocol.records import Ballot, Decision, to_wire
from cyber0.protocol.roster import Change
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, new_key, sign
from cyber0.protocol.sqlite import File

OWNED = "\x1b]0;owned\x07"
KEY = new_key()


def inviting(config, client="client-0", **changes):
    """The invitation to a run, with fields that no honest federator would send."""
    invitation = Settings.of(config).invitation(encoded(KEY.public_key()), client=client)
    fields = json.loads(invitation.settings)
    fields["agreement"] |= changes
    return encode(replace(invitation, settings=json.dumps(fields).encode()))


def refused(config, match, *, limits=None, name="client-0", **changes):
    with (
        answering(inviting(config, **changes)) as address,
        pytest.raises((Refused, InvalidConfig, InvalidModel)) as told,
    ):
        run_client(address, name, source="embedded", device="cpu", limits=limits)
    assert match in str(told.value)
    return str(told.value)


# Limits


def test_a_batch_that_no_machine_holds_is_refused_before_anything_is_allocated():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(recipe(), "batch = 2,000,000,000", batch=2_000_000_000)
    refused(recipe(), "batch = 2,000,000,000", batch=2_000_000_000, limits=Limits(memory=1))
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 2**28


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"directions": 65_536, "local_epochs": 2}, "along 131,072 directions, and this client allows 65,536"),
        ({"local_epochs": 2**31}, "(--max-directions)"),
        ({"rounds": 2**31}, "rounds = 2,147,483,648: this client takes part in at most 1,000,000 (--max-rounds)"),
        ({"task": f"mnist-mlp(hidden={10**11})"}, "float32 copies of 79,500,000,000,010 parameters"),
        ({"batch": 10**30}, "batch = 1,000,000,000,000,000,000,000,000,000,000"),
    ],
    ids=["directions", "local epochs", "rounds", "model", "batch"],
)
def test_an_invitation_to_the_absurd_is_refused_in_a_sentence(changes, match):
    refused(recipe(), match, **changes)


def test_limits_of_the_client_s_own_refuse_what_would_fit():
    refused(recipe(directions=64), "allows 32 (--max-directions)", limits=Limits(directions=32))
    refused(recipe(rounds=400), "at most 100 (--max-rounds)", limits=Limits(rounds=100))
    refused(recipe(), "0.0 GiB", limits=Limits(memory=1e-5), batch=4096)
    refused(recipe(task="mnist-mlp"), "0.0 GiB are free", limits=Limits(memory=1e-4))


class Slow(StubModel):
    """It takes its time by a clock of the test's own."""

    def __init__(self, scalars, times):
        super().__init__(scalars)
        self.times = times

    def vote(self, round):
        self.times.append(self.times[-1] + (100.0 if round == 2 else 1.0))
        return super().vote(round)


class Chain:
    """A federator that one client may believe."""

    def __init__(self, settings, key, **changes):
        model = StubModel(2)
        identity = settings.identity(
            model.manifest,
            model.base,
            keys={"client-0": encoded(key.public_key())},
            federator=encoded(KEY.public_key()),
        )
        self.identity = replace(identity, roster=replace(identity.roster, **changes))
        self.head, self.roster = genesis(self.identity.digest), self.identity.roster

    def welcome(self):
        return Welcome(self.identity.to_bytes(), 0, self.identity.roster.to_bytes())

    def commit(self, *changes):
        decision = Decision(self.head.rounds, bytes(8), (), changes)
        self.roster = self.roster.after(changes)
        self.head = advance(self.head, decision, self.roster)
        signature = sign(KEY, link_statement(self.identity.digest, self.head.rounds, self.head.link))
        told = json.dumps([change.fields() for change in changes], separators=(",", ":")).encode() if changes else b""
        return Committed(decision.round, decision.scalars, ballots_hash(()), signature, told)


ALONE = {"clients": 1, "byzantine": 0, "directions": 2, "rounds": 9}


def votes_of(member, *messages):
    said = []
    for message in messages:
        member.receive([message], said.append)
    return [each for each in said if isinstance(each, Vote)]


def test_a_round_that_took_too_long_is_the_last(monkeypatch):
    settings, key, times = Settings.of(recipe(**ALONE)), new_key(), [0.0]
    monkeypatch.setattr("cyber0.network.member.monotonic", lambda: times[-1])
    chain, member = (
        Chain(settings, key),
        Member(settings, "client-0", Slow(2, times), key=key, limits=Limits(seconds=60)),
    )
    assert len(votes_of(member, chain.welcome(), RoundOpen(0), chain.commit())) == 2
    with pytest.raises(Refused, match=r"round 2 took 100\.0 seconds on this machine, and this client allows 60"):
        votes_of(member, chain.commit())
    assert member.store.newest == 1  # the vote that took so long was not signed


def test_a_run_that_is_extended_beyond_the_client_s_limit_is_left():
    settings, key = Settings.of(recipe(**ALONE)), new_key()
    chain, member = Chain(settings, key), Member(settings, "client-0", StubModel(2), key=key, limits=Limits(rounds=10))
    assert len(votes_of(member, chain.welcome(), RoundOpen(0), chain.commit(Change("extend", number=10)))) == 2
    with pytest.raises(Refused, match=r"rounds = 11: this client takes part in at most 10 \(--max-rounds\)"):
        votes_of(member, chain.commit(), chain.commit(), chain.commit(Change("extend", number=11)))


# Terms


def said_by(settings, **options):
    options = {"parameters": 7850, "audit": 0.05, "secure": True, **options}
    return "\n".join(terms(settings, **options))


def test_the_terms_say_what_a_run_costs_and_who_reads_the_votes():
    settings = Settings.of(recipe(clients=10, byzantine=2, rounds=50, local_epochs=3, directions=8, batch=16))
    text = said_by(settings)
    for part in ("mnist, 7,850 parameters", "8 directions", "3 local epochs, unbiased", "batch 16", "50, about ",
                 "cwtm, of 10 clients 2 may lie, 7 votes decide", "final once 7 of 10 invited clients"):  # fmt: skip
        assert part in text
    some = said_by(Settings.of(recipe(train="head", blocks=6)))
    assert "mnist, of which head is trained, 7,850 parameters, one of 6 blocks in each round" in some
    assert "1 round is caught with probability 5.0%, in 10 40.1%, in 100 99.4%" in text
    assert "WARNING: votes are readable by the federator, by every client that audits and by whoever has" in text
    assert "whoever sees the network" in said_by(settings, secure=False)
    assert "WARNING" not in said_by(replace(settings, keep_votes=False))
    assert "believes the federator" in said_by(settings, audit=0.0)
    assert "before the next vote" in said_by(settings, audit=1.0)


def test_the_terms_never_run_a_rule_of_the_federator(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise SystemExit('this code was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = Settings.from_invitation(
        Invitation(Settings.of(recipe()).invitation().settings.replace(b'"cwtm"', b'"planted:rule"'))
    )
    assert "planted:rule" in said_by(settings)
    member = Member(settings, "client-0", StubModel(4))
    member.receive([Bye("over", finished=True, final=True)], lambda _: None)
    assert not member.is_over  # it looked how many rounds there are
    assert member.rounds == settings.agreement.rounds


def test_a_client_shows_the_terms_before_it_votes(tmp_path):
    told = []
    with Parties(tmp_path, recipe(rounds=2, clients=1, byzantine=0, partition="iid")) as parties:
        parties.federator()
        parties.listening()
        address = f"127.0.0.1:{parties.port}"
        state = tmp_path / "state"
        outcome = run_client(
            address, "client-0", source="embedded", device="cpu", state=state, notice=told.append, audit=1
        )
    assert outcome.rounds == 2
    assert told[0] == "the terms of this run:" or told[1] == "the terms of this run:"  # it may have to wait first
    assert any("not private; without TLS also by whoever sees the network" in line for line in told)
    with File(parties.ledger, read_only=True) as ledger:
        assert any(f"this is run {ledger.identity.digest.hex()}" in line for line in told)


# Which run


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"byzantine": 1, "quorum": 3}, "byzantine"), ({"rounds": 2**31}, "rounds"), ({"quorum": 3}, "quorum")],
    ids=["byzantine", "rounds", "quorum"],
)
def test_a_roster_that_the_invitation_did_not_have_is_refused(changes, what):
    settings, key = Settings.of(recipe(**{**ALONE, "clients": 3})), new_key()
    chain, member = Chain(settings, key, **changes), Member(settings, "client-0", StubModel(2), key=key)
    with pytest.raises(Refused, match=f"another run than the one it invited to: its {what} differs"):
        votes_of(member, chain.welcome())


def test_a_client_that_expects_a_run_takes_part_in_no_other(tmp_path):
    options = {"source": "embedded", "device": "cpu", "state": tmp_path / "state"}
    with Parties(tmp_path, recipe(rounds=2, clients=1, byzantine=0, partition="iid")) as parties:
        parties.federator()
        parties.listening()
        address = f"127.0.0.1:{parties.port}"
        with pytest.raises(Refused, match="this client was told to expect another") as told:
            run_client(address, "client-0", expect=bytes(32), **options)
        with File(parties.ledger, read_only=True) as ledger:
            run = ledger.identity.digest
            assert ledger.head.rounds == 0
        assert run.hex() in str(told.value)
        assert run_client(address, "client-0", expect=run, **options).rounds == 2


def test_a_federator_that_begins_another_run_with_the_same_settings_is_refused(tmp_path):
    settings, key = Settings.of(recipe(**{**ALONE, "clients": 2})), new_key()
    with Store(tmp_path) as store:
        chain, member = Chain(settings, key), Member(settings, "client-0", StubModel(2), store, key=key)
        assert len(votes_of(member, chain.welcome(), RoundOpen(0))) == 1
    other = Chain(settings, key, keys=(encoded(key.public_key()), encoded(new_key().public_key())))
    with Store(tmp_path) as store:
        member = Member(settings, "client-0", StubModel(2), store, key=key)
        with pytest.raises(Refused) as told:
            votes_of(member, other.welcome())
    ours, theirs = chain.identity.digest.hex()[:16], other.identity.digest.hex()[:16]
    assert f"the federator welcomes to run {theirs}, but this client takes part in {ours}" in str(told.value)


def test_the_same_run_begun_anew_gets_no_second_vote(tmp_path):
    settings, key = Settings.of(recipe(**ALONE)), new_key()
    with Store(tmp_path) as store:
        chain, member = Chain(settings, key), Member(settings, "client-0", StubModel(2), store, key=key)
        assert len(votes_of(member, chain.welcome(), RoundOpen(0), chain.commit(), chain.commit())) == 3
    again = Chain(settings, key)
    with Store(tmp_path) as store:
        member = Member(settings, "client-0", StubModel(2), store, key=key)
        assert member.hello().commits == 2
        assert votes_of(member, again.welcome(), RoundOpen(0)) == []
    (tmp_path / "commits").unlink()
    with Store(tmp_path) as store:
        member = Member(settings, "client-0", StubModel(2), store, key=key)
        assert (member.hello().commits, member.hello().voted) == (0, 2)
        with pytest.raises(Refused, match="round 0 is open, but this client has voted in round 2"):
            votes_of(member, again.welcome(), RoundOpen(0))


# A key that has lost its state


def test_a_key_whose_state_is_lost_does_not_vote_again(tmp_path):
    settings, key, marks = Settings.of(recipe(**ALONE)), new_key(), Marks(tmp_path / "runs")
    chain = Chain(settings, key)
    with Store(tmp_path / "state") as store:
        member = Member(settings, "client-0", StubModel(2), store, key=key, marks=marks)
        assert len(votes_of(member, chain.welcome(), RoundOpen(0))) == 1
    assert marks.has(chain.identity.digest)
    with Store(tmp_path / "state") as store:  # with its state it goes on
        member = Member(settings, "client-0", StubModel(2), store, key=key, marks=marks)
        assert len(votes_of(member, chain.welcome(), RoundOpen(0))) == 1
    (tmp_path / "state" / "votes").write_bytes(b"")
    with (
        Store(tmp_path / "state") as store,
        pytest.raises(Refused, match="this key has voted in run"),  # its votes alone are lost
    ):
        Member(settings, "client-0", StubModel(2), store, key=key, marks=marks)
    with Store(tmp_path / "other") as store:
        member = Member(settings, "client-0", StubModel(2), store, key=key, marks=marks)
        with pytest.raises(Refused) as told:
            votes_of(member, chain.welcome(), RoundOpen(0))
    assert f"this key has voted in run {chain.identity.digest.hex()}, and its state is not in" in str(told.value)
    assert "cyber0 keys request" in str(told.value)
    with Store(tmp_path / "new") as store:  # another key has not voted
        member = Member(settings, "client-0", StubModel(2), store, key=new_key(), marks=Marks(tmp_path / "new-runs"))
        member.receive([chain.welcome()], lambda _: None)


def test_a_client_that_comes_back_without_its_state_is_stopped(tmp_path):
    options = {"source": "embedded", "device": "cpu", "key": new_key(), "marks": tmp_path / "runs"}
    with Parties(tmp_path, recipe(rounds=2, clients=1, byzantine=0, partition="iid"), linger=60.0) as parties:
        parties.federator()
        parties.listening()
        address = f"127.0.0.1:{parties.port}"
        assert run_client(address, "client-0", state=tmp_path / "state", **options).rounds == 2
        with pytest.raises(Refused, match=r"this key has voted in run .*, and its state is not in .*other"):
            run_client(address, "client-0", state=tmp_path / "other", **options)
        assert run_client(address, "client-0", state=tmp_path / "state", **options).rounds == 2


def test_a_folder_of_keys_that_cannot_be_written_is_told_once(tmp_path):
    settings, key, told = Settings.of(recipe(**ALONE)), new_key(), []
    (tmp_path / "tls").write_text("no folder can be made in a file")
    chain = Chain(settings, key)
    member = Member(
        settings, "client-0", StubModel(2), key=key, notice=told.append, marks=Marks(tmp_path / "tls" / "runs")
    )
    assert len(votes_of(member, chain.welcome(), RoundOpen(0), chain.commit())) == 2
    assert sum("could vote twice in one round" in line for line in told) == 1


# Clients that cast two votes


def equivocating(audit, rounds):
    """A federation of three honest clients and one that votes twice: the honest ones, and their evidence."""
    settings, kept = Settings.of(recipe(clients=4, byzantine=1, directions=2, rounds=rounds), deadline=0.5), {}

    def make(name, place):
        def keep(proof):
            kept.setdefault(name, []).append(proof)
            return "it is kept"

        return lambda told: Member(told, name, StubModel(2, float(place)), audits=Audits(audit, keep=keep))

    async def run():
        federator = Federator(settings, Memory())
        address = f"127.0.0.1:{await federator.start('127.0.0.1:0')}"
        liar = asyncio.ensure_future(
            attend(address, lambda told: Liar(Member(told, "client-3", StubModel(2)), "equivocate"))
        )
        honest = (attend(address, make(name, place)) for place, name in enumerate(settings.roster[:3]))
        done = await asyncio.gather(*honest)
        liar.cancel()
        await federator.over.wait()
        await federator.close()
        return done

    return asyncio.run(run()), kept


def test_a_client_that_is_seen_to_vote_twice_is_accused_once_and_the_run_goes_on():
    members, kept = equivocating(audit=1.0, rounds=6)
    assert [member.commits for member in members] == [6, 6, 6]
    assert set(kept) == {"client-0", "client-1", "client-2"}
    for proofs in kept.values():
        (proof,) = proofs
        judged = judge(proof)
        assert (judged.party, judged.run) == ("client-3", members[0].position.identity.digest)
        assert judged.key == members[0].position.roster.key("client-3")
        assert "it signed two different votes in round" in judged.text


def signed(position, key, name, value):
    ballot, head = Ballot.of(name, "equivocation", to_wire([[value, value]])), position.head
    statement = vote_statement(position.identity.digest, head.rounds, head.link, ballot.digest)
    return replace(ballot, signature=sign(key, statement))


def test_evidence_of_a_round_that_was_caught_up_leads_to_a_signed_link():
    settings, keys = Settings.of(recipe(clients=3, byzantine=1, directions=2, rounds=9)), [new_key() for _ in range(3)]
    model, names, position, decided = StubModel(2), settings.roster, None, []
    public = {name: encoded(key.public_key()) for name, key in zip(names, keys, strict=True)}
    identity = settings.identity(model.manifest, model.base, keys=public, federator=encoded(KEY.public_key()))
    position = Position.start(identity)
    for number in range(3):
        ballots = tuple(signed(position, keys[2], names[2], value) for value in (5.0, 6.0))
        decided.append(Decision(number, to_wire([[1.0, 1.0]]), ballots))
        position = replace(position, head=advance(position.head, decided[-1], identity.roster))
    signature = sign(KEY, link_statement(identity.digest, 3, position.head.link))
    scalars = b"".join(decision.scalars for decision in decided)
    hashes = b"".join(ballots_hash(decision.ballots) for decision in decided)
    _, steps = follow(Position.start(identity), CatchUp(0, scalars, hashes, signature))
    before, votes = steps[1].before, [(steps[1].before.head.link, ballot) for ballot in decided[1].ballots]
    with pytest.raises(InvalidEvidence, match="not signed by the federator"):
        judge(equivocation(before, 1, names[2], votes))
    assert judge(equivocation(before, 1, names[2], votes, steps[1:])).party == names[2]
    with pytest.raises(InvalidEvidence, match="a vote in it is not signed by client-1"):
        judge(equivocation(before, 1, names[1], votes, steps[1:]))


# Texts of others


def is_harmless(text):
    return all(each.isprintable() or each == "\n" for each in text)


@pytest.mark.parametrize("final", [True, False])
def test_a_reason_of_the_federator_does_nothing_to_a_terminal(final):
    told = []
    with answering(encode(Bye(f"no {OWNED}", final=final))) as address, pytest.raises(Exception) as error:  # noqa: PT011
        run_client(address, "client-0", give_up=0.2, notice=told.append)
    assert is_harmless("".join(told) + str(error.value))
    if final:
        assert str(error.value) == r"the federator refuses this client: no \x1b]0;owned\x07"


@pytest.mark.parametrize(
    "changes", [{"task": OWNED}, {"rule": OWNED}, {"schedule": OWNED}, {OWNED: 1}, {"model": OWNED}]
)
def test_an_invitation_does_nothing_to_a_terminal(changes):
    told = []
    with answering(inviting(recipe(), **changes)) as address, pytest.raises(Exception) as error:  # noqa: PT011
        run_client(address, "client-0", source="embedded", device="cpu", notice=told.append, give_up=0.2)
    assert is_harmless("".join(told))
    assert is_harmless(sentence(error.value))
    assert "owned" in sentence(error.value)


def test_a_client_that_is_not_on_the_roster_is_told_so():
    with answering(inviting(recipe(), client="eve")) as address, pytest.raises(Refused) as error:
        run_client(address, "eve")
    assert str(error.value).startswith("'eve' is not on the roster: ask the federation's operator")


def test_what_serve_shows_of_clients_does_nothing_to_a_terminal():
    settings = Settings.of(recipe(clients=1, byzantine=0), (OWNED,))
    federator = Federator(settings, Memory())
    federator.tally.clients[OWNED].reason = f"rejected: {OWNED}"
    federator.tally.notices.append(OWNED)
    console = Console(file=io.StringIO(), width=200)
    show = Show(console, live=False)
    show.notice(f"{OWNED} is here")
    console.print(table(federator))
    shown = console.file.getvalue()
    assert is_harmless(shown)
    assert shown.count(r"\x1b]0;owned\x07") == 4


def test_what_a_ledger_holds_does_nothing_to_a_terminal(tmp_path):
    settings, model = Settings.of(recipe(clients=1, byzantine=0, directions=2), (OWNED,)), StubModel(2)
    agreement = settings.agreement.updated(task=OWNED, model=OWNED)
    path = tmp_path / "run.ledger"
    with File(path) as ledger:
        ledger.found(replace(settings, agreement=agreement).identity(model.manifest, model.base, meaning={}))
        ledger.append(Decision(0, bytes(8), (Ballot.of(OWNED, "counted", bytes(8), OWNED),)))
    for command in ("show",), ():
        words = ["ledger", *command, str(path)] if command else ["verify", str(path)]
        said = CliRunner().invoke(app, words).output
        assert is_harmless(said), words
    assert r"\x1b]0;owned\x07" in CliRunner().invoke(app, ["ledger", "show", str(path)]).output


def test_an_error_does_nothing_to_a_terminal():
    assert is_harmless(sentence(Refused(OWNED)))
    assert printable("ж é 漢") == "ж é 漢"
    assert printable("a‮b") == r"a\u202eb"
    assert len(printable("x" * 10**6)) < 5000
