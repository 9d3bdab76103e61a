"""What a federation withstands: liars, accidents, and each other."""

import asyncio
import io
import itertools
import json
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests import processes
from tests.network.parties import Parties, deal, local_model, recipe
from tests.network.raw import Owner, call

from cyber0.callbacks import Callback
from cyber0.errors import InvalidConfig, Refused
from cyber0.network import keys
from cyber0.network.channel import Channel
from cyber0.network.liars import LIES, Liar
from cyber0.network.local_model import LocalModel
from cyber0.network.member import Member
from cyber0.network.server import HELLO_BURST, MAX_MESSAGES, Federator
from cyber0.network.session import attend, run_client
from cyber0.network.show import table
from cyber0.network.store import Store, StoredVote
from cyber0.network.streams import MAX_STREAMS
from cyber0.network.stub_model import StubModel
from cyber0.participant import load_task
from cyber0.protocol.chain import advance, ballots_hash, genesis, link_statement
from cyber0.protocol.codec import decode_from_federator, encode
from cyber0.protocol.ledger import ExportedRun, Memory
from cyber0.protocol.messages import (
    Ask,
    Bye,
    CatchUp,
    Committed,
    Evaluation,
    Hello,
    Invitation,
    Rejection,
    RoundOpen,
    Vote,
    Welcome,
)
from cyber0.protocol.records import Decision
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, is_by, new_key, private_key, public_key, sign
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild
from cyber0.simulation import Simulation


def replayed(ledger):
    return rebuild(ledger, base(ledger.identity, None)[1])


def play(config, ledger, makes, *, credentials=None, each=None, liars=(), **options):
    """A federation over real sockets in this process; `makes` by name. Returns what each client came to, and all."""
    settings = Settings.of(config, **{"deadline": 0.5, **options.pop("settings", {})})

    async def run():
        federator = Federator(settings, ledger, **options)
        address = f"127.0.0.1:{await federator.start('127.0.0.1:0', credentials)}"
        parties = {
            name: asyncio.ensure_future(attend(address, make, credentials=each and each[name]))
            for name, make in makes.items()
        }
        for liar in liars:
            federator.over_task = asyncio.ensure_future(federator.over.wait())
            federator.over_task.add_done_callback(lambda _, liar=liar: parties[liar].cancel())
        done = await asyncio.gather(*parties.values(), return_exceptions=True)
        if any(isinstance(one, Refused) for one in done):
            federator.stop("enough")
        await federator.over.wait()
        await federator.close()
        return dict(zip(parties, done, strict=True)), federator

    return asyncio.run(run())


def trained(config, task, **options):
    return {
        name: lambda settings, place=place, name=name: Member(
            settings, name, local_model(config, place, task), **options
        )
        for place, name in enumerate(Settings.of(config).roster)
    }


@pytest.fixture(scope="module")
def task():
    return load_task(recipe().agreement, source="embedded")


# Liars


LIED_TO = {"clients": 5, "rounds": 28, "directions": 16, "batch": 32, "partition": "iid"}


@pytest.fixture(scope="module")
def accuracy_without_lies():
    simulation = Simulation(recipe(**LIED_TO))
    list(simulation.play())
    return simulation.evaluate().accuracy


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_of_any_kind_costs_only_itself(task, lie, accuracy_without_lies):
    config, ledger = recipe(**LIED_TO), Memory()
    makes = trained(config, task, evaluates=True)
    honest = makes["client-4"]
    makes["client-4"] = lambda settings: Liar(honest(settings), lie)
    done, federator = play(config, ledger, makes, settings={"fingerprint_every": 7}, liars=["client-4"])
    marks = {done[name].model.fingerprint() for name in list(done)[:4]}
    assert marks == {replayed(ledger)}
    assert verify(ledger).findings == []
    assert ledger.head.rounds == 28
    assert abs(done["client-0"].evaluation.accuracy - accuracy_without_lies) < 0.15
    told = {ballot.verdict for decision in ledger.decisions() for ballot in decision.ballots[:4]}
    assert told <= {"counted", "late"}
    assert federator.tally.clients["client-0"].refused <= 28


def test_weights_that_went_wrong_are_built_anew(task):
    config, ledger = recipe(rounds=20), Memory()

    class Struck(LocalModel):
        struck = False

        def advance(self, first, scalars):
            super().advance(first, scalars)
            if first == 7 and not self.struck:
                self.struck = True
                next(iter(self.parameters))[1][0] += 1.0

    makes = trained(config, task)
    makes["client-0"] = lambda settings: Member(
        settings, "client-0", Struck(config.agreement, 0, task, "cpu", deal(config))
    )
    done, _ = play(config, ledger, makes, settings={"fingerprint_every": 5})
    assert done["client-0"].model.struck
    assert {one.model.fingerprint() for one in done.values()} == {replayed(ledger)}
    verdicts = [
        (decision.round, ballot.verdict)
        for decision in ledger.decisions()
        for ballot in decision.ballots
        if ballot.client == "client-0" and ballot.verdict != "counted"
    ]
    assert verdicts[0] == (10, "rejected")


def raw(federator, talk):
    """Talk to a federator without the code of a client."""

    async def run():
        address, calls = f"127.0.0.1:{await federator.start('127.0.0.1:0')}", []

        async def connect():
            calls.append(await call(address))
            return calls[-1]

        try:
            return await talk(connect)
        finally:
            for caller in calls:
                caller.close()
            federator.stop("enough")
            await federator.close()

    return asyncio.run(run())


KEY = new_key()


def hello():
    model = StubModel(4)
    return Hello("client-0", model.manifest, model.base, key=encoded(KEY.public_key()))


async def last_words(caller):
    return (await all_words(caller))[-1]


async def all_words(caller):
    said = []
    while isinstance(data := await caller.read(), bytes):
        said.append(decode_from_federator(data))
    return said


def test_too_many_hellos_are_not_answered():
    settings = Settings.of(recipe())

    async def talk(connect):
        caller = await connect()
        for _ in range(HELLO_BURST + 1):
            await caller.write(encode(hello()))
        return await last_words(caller)

    async def run():
        return Federator(settings, Memory())

    assert raw(asyncio.run(run()), talk) == Bye("too many Hellos: come again later")


def test_a_second_stream_takes_the_place_of_the_first_which_is_told():
    async def talk(connect):
        calls = [await connect(), await connect()]
        for caller in calls:
            await caller.write(encode(hello()))
            await caller.write(encode(Ask()))
            if caller is calls[0]:
                await caller.read()
        return await last_words(calls[0])

    said = raw(Federator(Settings.of(recipe()), Memory()), talk)
    assert said == Bye("another stream of this client took its place")


def test_too_many_messages_in_a_round_end_the_stream():
    async def talk(connect):
        caller = await connect()
        for _ in range(MAX_MESSAGES + 1):
            await caller.write(encode(Vote(0, bytes(16))))
        return await last_words(caller)

    assert raw(Federator(Settings.of(recipe()), Memory()), talk) == Bye(f"more than {MAX_MESSAGES} messages in round 0")


def test_one_client_cannot_take_all_streams():
    async def talk(connect):
        calls = []
        for _ in range(MAX_STREAMS + 1):
            calls.append(await connect())
            await calls[-1].write(encode(Ask()))
            await calls[-1].read()  # so that it is there before the next
        return await last_words(calls[0])

    federator = Federator(Settings.of(recipe()), Memory(), peer_name=lambda _: "client-0")
    assert raw(federator, talk) == Bye(f"more than {MAX_STREAMS} streams of one client")


def test_who_does_not_read_keeps_nobody_out():
    config, model = recipe(rounds=100_001), StubModel(4)
    settings, ledger, signer = Settings.of(config), Memory(), new_key()
    founded = settings.identity(model.manifest, model.base, model.layout, federator=encoded(signer.public_key()))
    ledger.adopt(ExportedRun(founded, bytes(16 * 100_000), bytes(32)))
    federator = Federator(settings, ledger, peer_name=lambda _: "client-0", key=signer)

    async def run():
        address, calls = f"127.0.0.1:{await federator.start('127.0.0.1:0')}", []
        for _ in range(HELLO_BURST):
            caller = await call(address)
            calls.append(caller)
            await caller.write(encode(hello()))
            await caller.read()  # it is welcome; a long catch-up follows, which nobody takes
            caller.channel.channel.pause()
        held = len(federator.streams.open)
        for caller in calls:
            caller.close()
        federator.stop("enough")
        await federator.close()
        return held

    assert asyncio.run(run()) <= 2 * MAX_STREAMS + 1


def test_what_was_sealed_stays_when_a_finished_run_is_served_again(tmp_path):
    config, ledger = recipe(rounds=2), Memory()
    keys.init(tmp_path / "keys")
    signer = private_key(keys.federator_key(tmp_path / "keys"))
    makes = {
        name: lambda settings, name=name: Member(settings, name, StubModel(4)) for name in Settings.of(config).roster
    }
    play(config, ledger, makes, key=signer)
    (before,) = ledger.seals
    assert before.fingerprint is not None
    play(config, ledger, {}, key=signer)
    (after,) = ledger.seals
    assert after.fingerprint == before.fingerprint
    assert is_by(ledger.identity.federator, after.signature, after.statement(ledger.identity.digest))
    with pytest.raises(InvalidConfig, match=r"the ledger is signed with the key .*: give the key it began with"):
        play(config, ledger, {})


def test_a_share_that_nobody_deals_is_refused(task):
    with pytest.raises(InvalidConfig, match="index = 7: it must be from 0 to 3"):
        local_model(recipe(), 7, task)


def test_bytes_that_are_no_message_end_the_stream():
    async def talk(connect):
        caller = await connect()
        await caller.write(b"what?")
        return await last_words(caller)

    assert raw(Federator(Settings.of(recipe()), Memory()), talk) == Bye(
        "the 5 bytes that came are not a message of a client"
    )


def test_who_is_too_slow_for_what_waits_is_hung_up_on():
    async def run():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        over = asyncio.Event()
        channel = Channel(ours, Owner(print, over.set), room=2**20)
        channel.put_all(bytes(2**16) for _ in range(100))  # these are made as they are read
        assert not channel.is_full
        while not channel.is_full:
            channel.put(bytes(2**10))
        await over.wait()
        theirs.close()
        return channel.waiting, channel.problem

    waiting, problem = asyncio.run(run())
    assert waiting <= 2**20
    assert problem == "it reads too slowly"


# What a person sees


def test_the_table_shows_who_is_in_and_whose_votes_do_not_count():
    settings, ledger = (
        Settings.of(recipe(directions=1, rounds=3), ("ann", "bob", "cy", "[red]dan"), deadline=0.2),
        Memory(),
    )

    async def run():
        federator = Federator(settings, ledger)
        address = f"127.0.0.1:{await federator.start('127.0.0.1:0')}"
        makes = [lambda told, name=name: Member(told, name, StubModel(1)) for name in settings.roster[:3]]
        makes.append(lambda told: Liar(Member(told, "[red]dan", StubModel(1)), "nan"))
        await asyncio.gather(*(attend(address, make) for make in makes))
        await federator.over.wait()
        await federator.close()
        return federator

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(asyncio.run(run())))
    shown = console.export_text()
    assert "round 3 of 3" in shown
    assert re.search(r"\[red\]dan .* 3 +rejected: a scalar is not finite", shown)


def test_where_a_task_has_no_classes_the_loss_is_shown():
    settings, ledger = Settings.of(recipe(directions=1, rounds=3), deadline=0.2), Memory()
    federator = Federator(settings, ledger)
    for place, name in enumerate(settings.roster[:3]):
        federator.tally.clients[name].evaluation = Evaluation(2, None, place / 4, 10)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(federator))
    shown = console.export_text()
    assert ", loss 0.25\n" in shown
    assert re.search("client-2 .* loss 0.5 at 2", shown)
    assert "accuracy" not in shown


# Keys


def test_names_come_from_certificates(tmp_path, task):
    config, ledger = recipe(rounds=5), Memory()
    keys.init(tmp_path / "keys")
    folders = {name: keys.issue(name, tmp_path / "keys") for name in Settings.of(config).roster}
    each = {name: keys.channel_credentials(folder) for name, folder in folders.items()}
    each["client-3"] = each["client-0"]
    options = {"credentials": keys.server_credentials(tmp_path / "keys"), "peer_name": keys.peer_name, "each": each}
    signer = private_key(keys.federator_key(tmp_path / "keys"))
    done, _ = play(config, ledger, trained(config, task), key=signer, **options)
    assert isinstance(done["client-3"], Refused)
    assert "it calls itself 'client-3', but its certificate says 'client-0'" in str(done["client-3"])
    assert {done[name].model.fingerprint() for name in list(done)[:3]} == {replayed(ledger)}
    (seal,) = ledger.seals
    assert ledger.identity.federator == encoded(public_key(tmp_path / "keys" / "federator" / "cert.pem"))
    assert is_by(ledger.identity.federator, seal.signature, seal.statement(ledger.identity.digest))


# What a federator may ask for


def test_a_federator_cannot_make_a_client_run_code(tmp_path):
    with Parties(tmp_path, recipe(task="os:getcwd")) as parties:
        parties.federator()
        parties.listening()
        with pytest.raises(
            Refused, match="task = 'os:getcwd' is code that would be imported here: say --own-code if it is yours"
        ):
            run_client(f"127.0.0.1:{parties.port}", "client-0")


@pytest.mark.parametrize(
    "change",
    [{"deadline": "soon"}, {"fingerprint_every": 0}, {"more": 1}, {"agreement": {"x": 1}}],
    ids=["deadline", "fingerprint_every", "more", "agreement"],
)
def test_an_invitation_that_cannot_be_used_is_refused(change):
    fields = {**json.loads(Settings.of(recipe()).invitation().settings), **change}
    with pytest.raises(Refused, match="the federator's invitation cannot be used"):
        Settings.from_invitation(Invitation(json.dumps(fields).encode()))


class TwoFaced:
    """A federator that signs whatever history it likes: it goes back to any round, and on from there."""

    def __init__(self, settings, client):
        self.key, model = new_key(), StubModel(2)
        keys = {"client-0": encoded(client.public_key())}
        self.identity = settings.identity(
            model.manifest, model.base, keys=keys, federator=encoded(self.key.public_key())
        )
        self.heads = [genesis(self.identity.digest)]

    def welcome(self):
        return Welcome(self.identity.to_bytes(), 0, self.identity.roster.to_bytes())

    def commit(self, number, scalars):
        number = min(number, len(self.heads) - 1)
        decision = Decision(number, scalars, ())
        head = advance(self.heads[number], decision, self.identity.roster)
        self.heads = [*self.heads[: number + 1], head]
        signature = sign(self.key, link_statement(self.identity.digest, head.rounds, head.link))
        return Committed(number, scalars, ballots_hash(()), signature)


@given(st.lists(st.one_of(
    st.builds(RoundOpen, st.integers(0, 5)),
    st.tuples(st.integers(0, 5), st.sampled_from([bytes(8), b"12345678", b"abcd" * 4])),
    st.builds(Committed, st.integers(0, 5), st.sampled_from([bytes(8), b"abcd"])),
    st.builds(CatchUp, st.integers(0, 5), st.sampled_from([bytes(8), bytes(24), b"12345678" * 2, b"abcd"])),
    st.builds(Rejection, st.integers(0, 5), st.just("late"), st.just(""), st.booleans()),
    st.sampled_from(["welcome", "break", "crash"]),
), max_size=30))  # fmt: skip
def test_whatever_a_federator_says_a_client_says_one_thing_in_a_round(story):
    settings = Settings.of(recipe(clients=1, byzantine=0, directions=2, rounds=5))
    store, said, key = Store(), [], new_key()
    federator = TwoFaced(settings, key)

    class Drifting(StubModel):
        def vote(self, _, numbers=itertools.count()):  # noqa: B008
            return next(numbers).to_bytes(8, "little")

    member = Member(settings, "client-0", Drifting(2), store, key=key)
    for event in ["welcome", RoundOpen(0), *story]:
        if event == "crash":
            member = Member(settings, "client-0", Drifting(2), store, key=key)
        elif event == "break":
            member.hello()
        else:
            message = federator.commit(*event) if isinstance(event, tuple) else event
            message = federator.welcome() if event == "welcome" else message
            try:
                member.receive([message], lambda told, by=member: said.append((told, by.head)))
            except Refused:  # somebody starts it again
                member = Member(settings, "client-0", Drifting(2), store, key=key)
    votes = {(vote.round, vote.scalars, link) for vote, link in said if isinstance(vote, Vote)}
    assert 0 in {number for number, *_ in votes}
    assert len(votes) == len({number for number, *_ in votes})


# State


def test_a_client_does_not_continue_in_the_state_of_another_run(tmp_path, task):
    config, ledger = recipe(rounds=3), Memory()
    with Store(tmp_path / "state") as store:
        makes = trained(config, task)
        makes["client-0"] = lambda settings: Member(settings, "client-0", local_model(config, 0, task), store)
        play(config, ledger, makes)
    other = recipe(rounds=3, seed=9)
    with Store(tmp_path / "state") as store:
        makes = trained(other, task)
        makes["client-0"] = lambda settings: Member(settings, "client-0", local_model(other, 0, task), store)
        done, _ = play(other, Memory(), makes)
    assert isinstance(done["client-0"], Refused)
    assert f"it belongs to run {ledger.identity.digest.hex()[:16]}" in str(done["client-0"])


def test_a_federator_that_votes_were_not_made_for_is_refused():
    settings, key = Settings.of(recipe(clients=1, byzantine=0, directions=2)), new_key()
    federator, store = TwoFaced(settings, key), Store()
    store.save_vote(StoredVote(Vote(0, bytes(8)), bytes(32), bytes(32)))  # of a history that is no more
    member = Member(settings, "client-0", StubModel(2), store, key=key)
    member.hello()
    with pytest.raises(Refused, match="the federator's chain is not the one this client voted on"):
        member.receive([federator.welcome(), RoundOpen(0)], print)


def test_one_of_two_slots_is_always_whole(tmp_path):
    first, second = (StoredVote(Vote(number, bytes([number] * 8)), bytes(32), bytes(32)) for number in (4, 5))
    with Store(tmp_path) as store:
        store.save_vote(first)
        store.save_vote(second)
    file = tmp_path / "votes"
    data = file.read_bytes()
    for cut in range(len(data)):
        file.write_bytes(data[:cut])
        with Store(tmp_path) as store:
            assert store.vote(5) in (None, second)
            assert store.vote(4) in (None, first)


FULL = """
import resource, sys
from pathlib import Path
from cyber0.cli.errors import report
from cyber0.network.store import Store, StoredVote
from cyber0.protocol.messages import Vote
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
store = Store(Path(sys.argv[1]))
try:
    for number in (4, 5):
        store.save_vote(StoredVote(Vote(number, bytes(8)), bytes(32), bytes(32)))
except OSError as error:
    sys.exit(report(error))
"""


def test_a_vote_that_a_full_disk_cuts_off_is_not_taken_for_stored(tmp_path):
    done = processes.run(["-c", FULL, tmp_path], capture_output=True)
    assert (done.returncode, done.stderr) == (1, f"cyber0: {tmp_path / 'votes'}: No space left on device\n")
    with Store(tmp_path) as store:
        assert (store.vote(4).vote, store.vote(5)) == (Vote(4, bytes(8)), None)


# Callbacks


class Listening(Callback):
    def __init__(self):
        self.begun, self.rounds, self.evaluations = 0, [], []

    def before_run(self, run):
        self.begun += 1
        assert run.settings.agreement.clients == 4

    def after_round(self, run, round):
        assert run.ledger.head.rounds == round.number + 1  # it is on disk
        self.rounds.append((round.number, round.participants, round.admitted, round.aggregate.tobytes()))

    def after_evaluation(self, run, evaluation):  # noqa: ARG002
        self.evaluations.append((evaluation["client"], evaluation["round"], evaluation["accuracy"]))


class Loud(Callback):
    def after_round(self, run, round):  # noqa: ARG002
        raise ZeroDivisionError("no")


def test_callbacks_hear_of_a_federation_and_cannot_stop_it(task):
    config, ledger, listening, notices = recipe(rounds=6, evaluate_every=3), Memory(), Listening(), []
    makes = trained(config, task, evaluates=True)
    play(config, ledger, makes, settings={"deadline": 60.0}, callbacks=[Loud(), listening], notice=notices.append)
    assert listening.begun == 1
    decisions = [
        (d.round, Settings.of(config).roster, Settings.of(config).roster, d.scalars) for d in ledger.decisions()
    ]
    assert listening.rounds == decisions
    assert len(decisions) == 6
    assert {number for _, number, _ in listening.evaluations} >= {0, 3}
    said = [text for text in notices if "Loud raised ZeroDivisionError: no: it is not called again" in text]
    assert len(said) == 1
