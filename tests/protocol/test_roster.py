"""The roster changes by records in the chain: pending with the link that has them, in force a round later."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.bench import KEYS, ROSTER, Bench, bench, identity
from tests.protocol.bench import settings as agreed
from tests.protocol.ledgers import PUBLIC, append, decisions, fill
from tests.protocol.ledgers import identity as signed_run

from cyber0.errors import Cyber0Error, InvalidExport, InvalidRoster
from cyber0.protocol import export
from cyber0.protocol.chain import advance, ballots_hash, genesis
from cyber0.protocol.events import HangUp, Notice, Proposed
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Bye, Committed
from cyber0.protocol.records import Ballot, Decision
from cyber0.protocol.roster import Change, Roster, canonical, changes_from, changes_to_bytes
from cyber0.protocol.sqlite import File
from cyber0.protocol.state import restored
from cyber0.protocol.verify import verify

RUN = signed_run()
CHANGES = {
    "admit": Change("admit", "fay", PUBLIC["fay"]),
    "revoke": Change("revoke", "cy"),
    "rotate": Change("rotate", "ann", PUBLIC["ann's second"]),
    "extend": Change("extend", number=150),
    "byzantine": Change("byzantine", number=0),
    "quorum": Change("quorum", number=4),
}


def seen(roster):
    """What each kind of change shows in."""
    return {
        "admit": roster.key("fay"),
        "revoke": "cy" in roster.places,
        "rotate": roster.key("ann"),
        "extend": roster.rounds,
        "byzantine": roster.byzantine,
        "quorum": roster.quorum,
    }


AFTER = {
    "admit": PUBLIC["fay"],
    "revoke": False,
    "rotate": PUBLIC["ann's second"],
    "extend": 150,
    "byzantine": 0,
    "quorum": 4,
}


@pytest.fixture(params=["memory", "file"])
def opened(request, tmp_path):
    """A function that opens the ledger, again and again if it is a file."""
    kept = Memory()
    return (lambda: kept) if request.param == "memory" else (lambda: File(tmp_path / "run.ledger"))


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_pending_for_a_round_and_then_in_force(opened, kind):
    change, before = CHANGES[kind], seen(RUN.roster)[kind]
    played = list(decisions(RUN, 6, changes={2: (change,)}))
    with opened() as ledger:
        ledger.found(RUN)
    for number, decision in enumerate(played):
        with opened() as ledger:
            in_force = number >= 4
            assert seen(ledger.roster)[kind] == (AFTER[kind] if in_force else before)
            assert ledger.roster.pending == ((change,) if number == 3 else ())
            append(ledger, decision)
    with opened() as ledger:
        assert list(ledger.decisions()) == played
        report = verify(ledger)
        assert (report.findings, report.aggregates) == ([], 6)
        assert report.head == ledger.head


@pytest.mark.parametrize("cut", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_travels_with_an_export_at_every_stage(opened, kind, cut):
    change, whole = CHANGES[kind], Memory()
    fill(whole, RUN, 7, changes={2: (change,)})
    run = export.from_bytes(export.to_bytes(export.exported_run(whole, cut)))
    with opened() as ledger:
        ledger.adopt(run)
    with opened() as ledger:
        assert ledger.roster.pending == ((change,) if cut == 3 else ())
        for decision in list(decisions(RUN, 7, changes={2: (change,)}))[cut:]:
            append(ledger, decision)
        assert (ledger.head, ledger.roster) == (whole.head, whole.roster)
        assert verify(ledger).findings == []
        again = export.exported_run(ledger, cut)
        assert (again.roster, again.anchor, again.link) == (run.roster, run.anchor, run.link)


def test_an_export_with_another_roster_is_refused():
    whole = Memory()
    fill(whole, RUN, 5, changes={1: (CHANGES["admit"],)})
    run = export.exported_run(whole)
    for roster in (None, RUN.roster, replace(run.roster, quorum=5)):
        with pytest.raises(InvalidExport, match="its roster does not match the link at its end"):
            export.from_bytes(export.to_bytes(replace(run, roster=roster)))


def test_the_link_covers_all_that_was_said_and_who_takes_part():
    """Each part changed alone gives another link."""
    roster, start = RUN.roster, genesis(RUN.digest)
    ballot = Ballot.of("ann", "counted", bytes(12), "why", bytes(64))
    decision = Decision(0, bytes(12), (ballot,))
    ballots = [
        replace(ballot, client="bob"),
        replace(ballot, verdict="late"),
        replace(ballot, reason="because"),
        replace(ballot, digest=bytes(32)),
        replace(ballot, signature=bytes(63) + b"!"),
        replace(ballot, signature=b""),
    ]
    links = [advance(start, replace(decision, ballots=(other,)), roster).link for other in [ballot, *ballots]]
    links += [advance(start, replace(decision, ballots=more), roster).link for more in ((), (ballot, ballot))]
    links += [advance(start, replace(decision, scalars=bytes(11) + b"!"), roster).link]
    links += [advance(start, decision, roster.after([change])).link for change in CHANGES.values()]
    links += [advance(replace(start, link=bytes(32)), decision, roster).link]
    assert len(set(links)) == len(links)
    assert advance(start, replace(decision, ballots=(ballot.without_values(),)), roster).link == links[0]
    assert ballots_hash((ballot,)) != ballots_hash((replace(ballot, signature=b""),))


names = st.sampled_from([*ROSTER, "eve", "fay", ""])
made = st.one_of(
    st.builds(Change, st.just("admit"), names, st.sampled_from([*KEYS.values(), b"", b"nonsense"])),
    st.builds(Change, st.just("rotate"), names, st.sampled_from([*KEYS.values(), b"", b"nonsense"])),
    st.builds(Change, st.just("revoke"), names),
    st.builds(Change, st.sampled_from(["extend", "byzantine", "quorum"]), number=st.integers(-1, 7)),
)


@settings(max_examples=300)
@given(st.lists(st.lists(made, max_size=3), max_size=6))
def test_what_passes_the_check_can_be_made_and_what_does_not_is_refused(rounds):
    """Whatever is asked for: fewer than half may lie, no key is two clients', and a quorum of the old roster stays."""
    roster = identity().roster
    for changes in rounds:
        before = roster.in_force()
        try:
            roster.check(changes)
        except InvalidRoster:
            changes = []
        roster = roster.after(changes)
        later = roster.in_force()
        assert 2 * later.byzantine < later.quorum <= len(later.names)
        assert len(set(before.names) & set(later.names)) >= before.quorum
        assert later.rounds >= before.rounds
        assert Roster.from_bytes(roster.to_bytes()) == roster
        assert changes_from(changes_to_bytes(roster.pending)) == roster.pending


REFUSED = [
    ([Change("admit", "ann", PUBLIC["fay"])], "ann is on the roster already: cyber0 rotate gives it a new key"),
    ([Change("admit", "fay", PUBLIC["ann"])], "ann and fay have the same key: every client needs its own"),
    ([Change("admit", "fay", b"no key")], "is no public key"),
    ([Change("admit", "fay")], "fay cannot be admitted without a key"),
    ([Change("rotate", "ann", b"")], "rotate ann: nothing is no public key"),
    ([Change("rotate", "fay", PUBLIC["fay"])], "fay is not on the roster: ann, bob"),
    ([Change("revoke", "fay")], "fay is not on the roster"),
    ([Change("revoke", name) for name in ("ann", "bob", "cy")], "3 of 5 clients would be revoked: a quorum of 3"),
    ([Change("revoke", "ann")] * 2, "ann is revoked already"),
    ([Change("revoke", "ann"), Change("rotate", "ann", PUBLIC["fay"])], "one round takes one change of a client"),
    ([Change("byzantine", number=3)], "byzantine = 3 of 5 clients: fewer than half may lie"),
    ([Change("quorum", number=2)], "quorum = 2 of 5 clients"),
    ([Change("extend", number=100)], "rounds = 100: the run has 100 already, give more"),
    ([Change("extend", number=120), Change("extend", number=110)], "rounds = 110: the run has 120 already"),
    ([Change("extend", number=2**32)], "rounds = 4294967296: it must be from 1 to 4294967294"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_change_that_cannot_be_made_is_refused_and_found(changes, message):
    with pytest.raises(InvalidRoster, match=message):
        RUN.roster.check(changes)
    first, *_ = decisions(RUN, 1)
    ledger = Memory()
    ledger.found(RUN)
    try:
        append(ledger, replace(first, changes=tuple(changes)))
    except Cyber0Error:
        return  # no ledger takes what gives no roster
    (finding,) = verify(ledger).findings
    assert finding.startswith("round 0: its changes of the roster cannot be made: ")


# A federator that is stopped and started again between any two rounds


class Federation:
    """A machine and its ledger; all who are on the roster come to each round, and who asks to."""

    def __init__(self, opened, **changes):
        self.opened, self.settings = opened, agreed(rounds=9, **changes)
        with opened() as ledger:
            ledger.found(identity(self.settings))
        self.restart()

    def restart(self):
        with self.opened() as ledger:
            self.machine = Bench(restored(self.settings, ledger))

    def play(self, *more):
        """Play a round; returns who was counted."""
        machine = self.machine
        for name in {**dict.fromkeys(machine.state.who.names), **dict.fromkeys(more)}:
            machine.come(name, commits=machine.state.round)
        for name in {**dict.fromkeys(machine.state.who.names), **dict.fromkeys(more)}:
            machine.vote(name, 1.0)
        decision = machine.decisions[-1]
        with self.opened() as ledger:
            if ledger.head.rounds == decision.round:
                assert ledger.append(decision) == machine.state.head
        return {ballot.client for ballot in decision.ballots if ballot.verdict == "counted"}


@pytest.mark.parametrize("stops", range(8), ids=str)
def test_an_admitted_client_counts_from_the_boundary_on_and_a_revoked_one_before_it_only(opened, stops):
    """Through every choice of restarts after the round that has the change, the next, and the one after."""
    federation = Federation(opened)
    assert federation.play("eve") == set(ROSTER)
    federation.machine(Proposed((Change("admit", "eve", KEYS["eve"]), Change("revoke", "bob"))))
    counted = []
    for number in range(4):
        counted.append(federation.play("eve", "bob"))
        if stops >> number & 1:
            federation.restart()
    old, new = {"ann", "cy", "dan"}, {"ann", "cy", "dan", "eve"}
    assert counted == [old, old, new, new]
    with opened() as ledger:
        assert ledger.roster.names == ("ann", "cy", "dan", "eve")


def test_a_revoked_client_is_cut_off_at_once_and_told():
    machine = bench(rounds=9)
    effects = machine(Proposed((Change("revoke", "dan"),)))
    reasons = [effect.reason for effect in effects if isinstance(effect, HangUp)]
    assert reasons == ["it is revoked as soon as that is written"]
    assert "dan" not in machine.state.present
    machine.come("dan", stream=1)
    assert machine.sent("dan", Bye)[-1] == Bye(*reasons, final=False)  # the federator may die before
    for name in ROSTER[:3]:
        machine.vote(name, 1.0)
    assert machine.commits == [1.0]  # nobody waits for it
    machine.come("dan", stream=2)
    assert machine.sent("dan", Bye)[-1] == Bye("it is revoked", final=True)


def test_a_client_whose_key_is_replaced_is_cut_off_when_the_new_one_counts():
    machine = bench(rounds=9)
    machine(Proposed((Change("rotate", "dan", KEYS["eve"]),)))
    for number in range(3):
        assert ("dan" in machine.state.present) == (number < 2)
        for name in ROSTER:
            machine.vote(name, 1.0)
    assert machine.sent("dan", Bye) == [Bye("its key was replaced by another: join with the new one", final=True)]
    assert len(machine.commits) == 3  # nobody waits for it


def test_a_client_comes_back_only_if_it_is_admitted_again():
    machine = bench(rounds=20)

    def play():
        for name in ROSTER[:3]:
            machine.vote(name, 1.0)
        return machine.come("dan", stream=machine.state.round, commits=machine.state.round)

    machine(Proposed((Change("revoke", "dan"),)))
    for reason in ["it is revoked", "it is not on the roster"]:
        play()
        assert machine.sent("dan", Bye)[-1] == Bye(reason, final=True)
    machine(Proposed((Change("admit", "dan", KEYS["dan"]),)))
    play()
    assert "dan" in machine.state.present
    assert machine.vote("dan", 1.0, stream=machine.state.round)[-1].message.reason.startswith("its key is not in")
    play()
    machine.vote("dan", 1.0, stream=machine.state.round)
    play()
    assert "dan" in {ballot.client for ballot in machine.decisions[-1].ballots}


def test_a_client_that_is_admitted_again_while_its_revocation_is_pending_is_not_lost():
    machine = bench(rounds=20)
    for change in (Change("revoke", "dan"), Change("admit", "dan", KEYS["dan"])):
        machine(Proposed((change,)))
        for name in ROSTER[:3]:
            machine.vote(name, 1.0)
    assert "dan" not in machine.state.who.places
    for name in ROSTER[:3]:
        machine.vote(name, 1.0)
    assert machine.state.who.key("dan") == KEYS["dan"]


def test_who_is_cut_off_does_not_stop_a_round_that_needs_the_old_quorum():
    """Three of ten go, so that seven are left for a quorum of seven: nobody else can go before they are gone."""
    machine = bench(roster=(*"abcdefgh", "eve", "fay"), byzantine=2, rounds=20)
    assert machine.state.who.quorum == 7
    machine(Proposed(tuple(Change("revoke", name) for name in "abc")))
    stay = (*"defgh", "eve", "fay")
    for text in ("4 of 10 clients would be revoked", "1 of 10 clients would be revoked before 3 others are gone"):
        machine(Proposed((Change("revoke", "d"),)))
        assert text in machine.of(Notice)[-1].text
        for name in stay:
            machine.vote(name, 1.0)
    assert len(machine.commits) == 2
    machine(Proposed((Change("revoke", "d"),)))
    assert "d is revoked" in machine.of(Notice)[-1].text


def test_the_quorum_goes_with_the_roster():
    machine = bench(roster=(*"abcdefgh",), rounds=9)
    assert machine.state.who.quorum == 5
    machine(Proposed((Change("byzantine", number=2),)))
    for _ in range(3):
        for name in "abcdefgh":
            machine.vote(name, 1.0)
    assert (machine.state.who.byzantine, machine.state.who.quorum) == (2, 6)
    assert machine.decisions[0].changes == (Change("byzantine", number=2), Change("quorum", number=6))


def test_a_change_that_cannot_be_made_leaves_the_roster_and_those_proposed_before():
    machine = bench(rounds=9)
    machine(Proposed((Change("extend", number=12),)))
    machine(Proposed((Change("revoke", "ann"), Change("revoke", "bob"))))
    assert "the roster stays as it is: 2 of 4 clients would be revoked" in machine.of(Notice)[-1].text
    assert set(machine.state.present) == set(ROSTER)
    for name in ROSTER:
        machine.vote(name, 1.0)
    assert machine.decisions[0].changes == (Change("extend", number=12),)
    assert machine.sent("ann", Committed)[0].changes == changes_to_bytes(machine.decisions[0].changes)


def test_a_run_that_is_extended_before_its_end_goes_on(opened):
    federation = Federation(opened)
    for _ in range(8):
        federation.play()
    federation.machine(Proposed((Change("extend", number=11),)))
    federation.play()
    federation.restart()
    assert not federation.machine.state.is_finished
    for _ in range(2):
        federation.play()
    assert federation.machine.state.is_finished
    with opened() as ledger:
        assert (ledger.head.rounds, ledger.roster.last) == (11, 11)


def test_a_client_with_a_new_key_votes_with_the_old_one_until_it_is_in_force():
    machine = bench(rounds=9)
    machine(Proposed((Change("rotate", "ann", KEYS["eve"]),)))
    for _ in range(2):
        assert machine.state.who.key("ann") == KEYS["ann"]
        for name in ROSTER:
            machine.vote(name, 1.0)
    assert machine.state.who.key("ann") == KEYS["eve"]
    machine.come("ann", stream=1, commits=2)
    assert "and the roster has" in machine.sent("ann", Bye)[-1].reason
    machine.come("ann", stream=2, commits=2, key=KEYS["eve"])
    assert "ann" in machine.state.present


# Bytes


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), unique=True, min_size=1))
def test_a_roster_is_written_in_canonical_json(names):
    """Whatever names there are, and though it is not written by a module for JSON as a whole."""
    roster = Roster(tuple(names), tuple(b"" for _ in names), 0, 1, 9, (CHANGES["revoke"], CHANGES["admit"]))
    fields = {
        "byzantine": 0,
        "clients": [[name, ""] for name in names],
        "pending": [change.fields() for change in roster.pending],
        "quorum": 1,
        "rounds": 9,
    }
    assert roster.to_bytes() == canonical(fields)
