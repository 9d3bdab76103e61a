"""A machine whose ledger was restored from an older copy, and the clients that hold what it lost."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.bench import Bench
from tests.protocol.ledgers import KEYS, PUBLIC, ROSTER, append, fill, identity

from cyber0.network.commit_log import CommitLog
from cyber0.protocol.catching_up import Position, catch_up, follow
from cyber0.protocol.chain import link_statement
from cyber0.protocol.events import Adopt, Alarm, Arrived, ClientStream, Deadline, HangUp, Left, Notice, Received, Record
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Bye, Hello, Recall, Recalled, RoundOpen, Vote, Welcome
from cyber0.protocol.roster import Change
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import sign
from cyber0.protocol.state import restored
from cyber0.protocol.verify import verify

RUN = identity()
WHOLE, KEPT = 30, 12


def played(rounds, changes=None):
    ledger = Memory()
    fill(ledger, RUN, rounds, changes=changes)
    return ledger


def log_of(ledger, stop=None, chunk=2**18, log=None):
    """The log of a client that was sent the rounds of a ledger in messages of about `chunk` bytes."""
    log = CommitLog(None, 4 * RUN.plan.scalars) if log is None else log
    position = Position.start(RUN)
    for message in catch_up(ledger, 0, ledger.head.rounds if stop is None else stop, chunk):
        position, steps = follow(position, message)
        log.append(steps)
    return log


class Restored(Bench):
    """A machine over the first rounds of a ledger; what it adopts is written down."""

    def __init__(self, whole, kept):
        self.whole, self.ledger = whole, Memory()
        self.ledger.found(RUN)
        for written in whole.written(0, kept):
            self.ledger.append(written.decision, written.signature)
        super().__init__(restored(Settings(RUN.agreement, ROSTER), self.ledger, PUBLIC["federator"]))

    def __call__(self, event):
        effects = super().__call__(event)
        for effect in effects:
            if isinstance(effect, Adopt):
                self.ledger.append_all(effect.rounds)
            if isinstance(effect, Record):
                append(self.ledger, effect.decision)
        assert self.ledger.head == self.state.head
        return effects

    def hello(self, name, held, stream=0, **changes):
        head = self.whole.head_at(held).link
        signature = sign(KEYS["federator"], link_statement(RUN.digest, held, head)) if held else b""
        facts = {"manifest": bytes.fromhex(RUN.manifest), "base": bytes.fromhex(RUN.base), "run": RUN.digest}
        said = Hello(name, commits=held, head=head, key=PUBLIC[name], signature=signature, **facts)
        known = self.ledger.head_at(held).link if held <= self.state.round else b""
        return self(Arrived(ClientStream(name, stream), replace(said, **changes), known))

    def asked(self, name):
        """The round from which on a client was asked for commits last."""
        return self.sent(name, Recall)[-1].first

    def show(self, name, log, stream=0, **options):
        return self(Received(ClientStream(name, stream), log.recalled(self.asked(name), **options)))

    def votes(self, *names):
        """Let clients vote in the open round, whatever it is."""
        scalars = (b"\0" * 4) * RUN.plan.scalars
        for name in names:
            self(Received(ClientStream(name, 0), Vote(self.state.round, scalars)))


def test_the_longest_chain_that_it_signed_itself_comes_back():
    whole = played(WHOLE)
    machine = Restored(whole, KEPT)
    machine.hello("ann", 20)
    assert machine.asked("ann") == KEPT
    machine.hello("bob", WHOLE)
    machine.hello("cy", KEPT)  # it comes with what the ledger has, and is welcomed
    assert machine.sent("cy", RoundOpen) == [RoundOpen(KEPT)]
    machine.votes("cy")
    machine.show("ann", log_of(whole, 20))
    assert machine.state.round == 20
    assert machine.asked("bob") == 20
    machine.show("bob", log_of(whole))
    assert machine.state.head == whole.head
    for name in ("ann", "bob", "cy"):
        assert machine.sent(name, Welcome)[-1].lost == machine.sent(name, RoundOpen)[-1].round == WHOLE
    assert machine.of(Record) == []
    machine.hello("dee", 3)
    machine.hello("émile", WHOLE)
    machine.votes(*ROSTER)
    assert machine.state.round == WHOLE + 1
    assert machine.of(HangUp) == []
    report = verify(machine.ledger)
    assert report.lost == [(KEPT, WHOLE - 1)]
    assert [message.scalars for message in catch_up(machine.ledger, 0, WHOLE)] == [whole.commits()]


def test_rounds_that_came_back_in_messages_are_proven_by_the_last_link_of_each():
    whole = played(WHOLE)
    machine = Restored(whole, KEPT)
    machine.hello("ann", WHOLE)
    machine.show("ann", log_of(whole, chunk=400))
    kept = list(machine.ledger.written(KEPT))
    assert not all(written.signature for written in kept)
    report = verify(machine.ledger)
    assert (report.findings, report.signed, report.missing) == ([], WHOLE, WHOLE - KEPT)
    assert report.verdict == f"commits proven, votes missing of {WHOLE - KEPT} rounds"
    assert f"rounds {KEPT} to {WHOLE - 1}" in " ".join(report.notes)
    for chunk in (1, 60, 400, 10**6):
        position = Position.start(RUN)
        for message in catch_up(machine.ledger, 0, WHOLE, chunk):
            position, _ = follow(position, message)
        assert position.head == whole.head


def test_a_claim_without_this_federators_signature_is_refused_and_costs_nobody_else():
    machine = Restored(played(WHOLE), KEPT)
    for name, changes in {
        "ann": {"commits": 10**9},
        "bob": {"commits": WHOLE, "signature": b""},
        "cy": {"commits": WHOLE, "head": bytes(32)},
    }.items():
        machine.hello(name, KEPT, **changes)
        (bye,) = machine.sent(name, Bye)
        assert bye.final
        assert "no signature of this federator" in bye.reason
    assert not machine.state.ahead
    assert machine.state.bound == 0


def test_who_does_not_answer_or_shows_nonsense_is_refused_and_another_is_asked():
    whole = played(WHOLE)
    machine = Restored(whole, KEPT)
    for name in ("ann", "bob", "cy", "dee"):
        machine.hello(name, WHOLE)
    machine(Deadline(KEPT, 0))  # ann was asked, and says nothing
    (bye,) = machine.sent("ann", Bye)
    assert not bye.final
    assert "in time" in bye.reason
    asked = [name for name in ("bob", "cy", "dee") if machine.sent(name, Recall)]
    forged = replace(log_of(whole).recalled(KEPT), signature=bytes(64))
    machine(Received(ClientStream(asked[0], 0), forged))
    (bye,) = machine.sent(asked[0], Bye)
    assert bye.final
    assert "this federator did not sign it" in bye.reason
    asked = [name for name in ("bob", "cy", "dee") if machine.sent(name, Recall) and not machine.sent(name, Bye)]
    machine(Received(ClientStream(asked[0], 0), Recalled(KEPT)))
    assert "cannot show" in machine.sent(asked[0], Bye)[0].reason
    (last,) = [name for name in ("bob", "cy", "dee") if not machine.sent(name, Bye)]
    machine.show(last, log_of(whole))
    assert machine.state.head == whole.head
    machine.hello("ann", WHOLE, stream=1)  # it comes again, and there is nothing left to show
    assert machine.sent("ann", Welcome)


def test_a_link_that_it_has_signed_and_nobody_shows_is_not_signed_a_second_time():
    whole = played(KEPT + 1)
    machine = Restored(whole, KEPT)
    machine.hello("ann", KEPT + 1)  # alone it has the last link
    for name in ROSTER[1:]:
        machine.hello(name, KEPT)
    machine.votes(*ROSTER[1:])
    machine(Deadline(KEPT, 0))
    assert machine.sent("ann", Bye)
    machine.votes(*ROSTER[1:])
    machine(Deadline(KEPT, machine.state.extension))
    assert machine.of(Record) == []
    assert any("signs no round twice" in notice.text and notice.level == "error" for notice in machine.of(Notice))
    machine.hello("ann", KEPT + 1, stream=1)
    machine.show("ann", log_of(whole), stream=1)
    assert machine.state.head == whole.head
    machine.votes(*ROSTER)


def test_what_clients_have_voted_on_and_hold_no_longer_is_not_signed_a_second_time():
    """All have lost their commits, as in a power cut of one machine: nobody is refused, and the operator is told."""
    whole = played(WHOLE)
    machine = Restored(whole, KEPT)
    link = whole.head_at(20).link
    voted = {"voted": 20, "voted_link": link, "voted_signature": list(whole.written())[19].signature}
    for name in ROSTER:
        machine.hello(name, 3, **(voted | ({"voted_signature": bytes(64)} if name == "ann" else {})))
    assert machine.sent("ann", Welcome)
    machine.votes(*ROSTER)
    machine(Deadline(KEPT, 0))
    assert machine.of(Record) == []
    assert machine.of(HangUp) == []
    assert "cyber0 ledger fork" in machine.of(Notice)[-1].text


def test_nothing_is_signed_before_a_quorum_has_said_what_it_holds():
    whole = played(WHOLE)
    machine = Restored(whole, KEPT)
    quorum = machine.state.who.quorum
    machine.hello(ROSTER[0], KEPT)
    for extension in range(3):
        machine(Deadline(KEPT, extension))
    assert machine.state.gathering
    alarms = len(machine.of(Alarm))
    for name in ROSTER[1:quorum]:
        machine.hello(name, KEPT)
    assert machine.of(Alarm)[alarms:] == [Alarm(KEPT, 3, machine.state.settings.seconds(0))]  # the others have time
    machine.votes(*ROSTER[:quorum])
    assert machine.state.round == KEPT
    machine(Deadline(KEPT, 3))
    assert machine.state.round == KEPT + 1


def test_who_comes_after_it_has_gone_on_is_told_that_there_are_two_histories():
    machine = Restored(played(WHOLE), KEPT)
    for name in ROSTER[:4]:
        machine.hello(name, KEPT)
    machine.votes(*ROSTER[:4])
    machine(Deadline(KEPT, 0))
    assert machine.state.round == KEPT + 1
    machine.hello(ROSTER[4], WHOLE)
    (bye,) = machine.sent(ROSTER[4], Bye)
    assert "cyber0 ledger fork" in bye.reason


def test_changes_of_the_roster_come_back_with_their_rounds():
    changes = {15: (Change("admit", "fay", PUBLIC["fay"]),), 20: (Change("extend", number=120),)}
    whole = played(WHOLE, changes)
    machine = Restored(whole, KEPT)
    machine.hello("ann", WHOLE)
    machine.show("ann", log_of(whole))
    assert machine.state.roster == machine.ledger.roster == whole.roster
    assert "fay" in machine.state.who.places
    assert machine.state.who.last == 120


@pytest.mark.parametrize(("name", "key"), [("ann", "ann's second"), ("fay", "fay")], ids=["another key", "admitted"])
def test_whose_entry_was_lost_gives_it_back_and_is_welcome(name, key):
    """It is not refused by a roster that is older than its entry, though it comes first."""
    whole = played(WHOLE, {15: (Change("rotate" if name == "ann" else "admit", name, PUBLIC[key]),)})
    machine = Restored(whole, KEPT)
    machine.hello(name, WHOLE, key=PUBLIC[key])
    machine.show(name, log_of(whole))
    assert machine.state.roster == whole.roster
    assert not machine.sent(name, Bye)
    assert machine.sent(name, Welcome)


def test_who_was_revoked_in_rounds_that_were_lost_gives_them_back_and_is_refused():
    whole = played(WHOLE, {15: (Change("revoke", "ann"),)})
    machine = Restored(whole, KEPT)
    machine.hello("ann", WHOLE)
    machine.show("ann", log_of(whole))
    assert machine.state.roster == whole.roster
    assert [bye.final for bye in machine.sent("ann", Bye)] == [True]
    machine = Restored(whole, KEPT)
    machine.hello("gus", WHOLE, signature=bytes(64))  # whom nobody knows, and who shows nothing
    assert [bye.final for bye in machine.sent("gus", Bye)] == [True]
    assert not machine.state.ahead


def something_happens(machine, rng, holds, logs, liar):
    name, asked = rng.choice(ROSTER), machine.state.asked
    match rng.randrange(5):
        case 0:
            machine(Left(ClientStream(name, 0)))
        case 1 | 2 if name not in {**machine.state.present, **machine.state.ahead}:
            machine.hello(name, holds[name])
        case 3 if machine.state.extension is not None:
            machine(Deadline(machine.state.round, machine.state.extension))
        case _ if asked is not None and asked.client != liar:
            machine.show(asked.client, logs[asked.client], most=rng.choice((1, 100, 10**6)))
        case 4 if asked is not None:
            machine(Received(asked, Recalled(machine.state.round, bytes(12), bytes(32), bytes(64))))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whatever_comes_and_goes_one_chain_comes_of_it(seed):
    """Clients hold prefixes of one chain, come, leave, answer, lie and keep silent: no round is ever signed twice."""
    rng = random.Random(seed)  # noqa: S311
    whole = played(rng.randrange(2, 20))
    rounds = whole.head.rounds
    machine = Restored(whole, rng.randrange(rounds))
    holds = {name: rng.choice((rounds, rng.randrange(rounds + 1))) for name in ROSTER}
    logs = {name: log_of(whole, count, rng.choice((1, 200, 10**6))) for name, count in holds.items()}
    liar = rng.choice((*ROSTER, None))
    for _ in range(60):
        something_happens(machine, rng, holds, logs, liar)
    assert machine.of(Record) == []  # nobody has voted
    assert whole.commits().startswith(machine.ledger.commits())
    assert machine.state.head == whole.head_at(machine.state.round)
    assert verify(machine.ledger).findings == []
    for name in ROSTER:  # at the end all are there, and all answer
        machine(Left(ClientStream(name, 0)))
    for name in ROSTER:
        machine.hello(name, holds[name])
    while machine.state.asked is not None:
        machine.show(machine.state.asked.client, logs[machine.state.asked.client])
    assert machine.state.round == max(machine.state.round, *holds.values())
    assert set(machine.state.present) == set(ROSTER)
