"""Rules that remember earlier commits: whoever holds the commits decides every round alike."""

from dataclasses import replace

import numpy as np
import pytest
from tests.protocol.bench import ROSTER, Bench, bench
from tests.protocol.ledgers import append, decisions, identity

from cyber0.aggregation import get_rule
from cyber0.protocol import export
from cyber0.protocol.decide import decide
from cyber0.protocol.events import Notice
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import from_wire, to_wire
from cyber0.protocol.state import restored
from cyber0.protocol.verify import verify

RULE = "centered_clipping_previous(radius=1.0)"


class Sum:
    """The sum of all commits so far, and of the first vote; it cannot take a commit above 100."""

    def begin(self):
        return 0.0

    def after(self, memory, scalars, /):
        if scalars.max() > 100:
            raise ValueError("that is too much to remember")
        return memory + float(scalars.sum())

    def __call__(self, vectors, _, /, *, memory):
        return vectors[:, 0] + memory


OWN = f"{__name__}:Sum"


def play(machine, values):
    for value in values:
        for name in ROSTER:
            machine.vote(name, value)


def test_each_round_is_decided_with_what_the_rule_remembers_of_the_commits_before_it():
    machine = bench(rule=RULE, rounds=9)
    play(machine, [5.0, 5.0, 5.0, 0.0])
    assert machine.commits == [1.0, 2.0, 3.0, 2.0]


def test_a_step_leaves_the_memory_of_the_state_before_it_as_it_was():
    machine = bench(rule=RULE, rounds=9)
    play(machine, [5.0])
    before, copy = machine.state, np.array(machine.state.memory)
    play(machine, [5.0])
    assert np.array_equal(before.memory, copy)
    again = Bench(before)
    play(again, [5.0])
    assert again.commits == machine.commits[1:]


@pytest.mark.parametrize("rule", [RULE, OWN])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_ledger_restores_the_memory(rule, rounds):
    machine = bench(rule=rule, rounds=9)
    ledger = Memory()
    ledger.found(machine.state.identity)
    play(machine, [5.0, 2.0, 7.0][:rounds])
    for decision in machine.decisions:
        ledger.append(decision)
    other = Bench(restored(machine.state.settings, ledger))
    assert np.array_equal(other.state.memory, machine.state.memory)
    other.come(*ROSTER, commits=rounds)
    play(machine, [3.0, 4.0])
    play(other, [3.0, 4.0])
    assert other.decisions == machine.decisions[rounds:]


def test_a_commit_that_the_rule_cannot_remember_is_not_made():
    machine = bench(rule=OWN)
    play(machine, [1000.0])
    assert machine.commits == []
    assert "cannot be decided: rule" in machine.of(Notice)[-1].text
    assert "that is too much to remember" in machine.of(Notice)[-1].text


def written(run, rounds, imported=0):
    ledger, played = Memory(), list(decisions(run, rounds))
    ledger.found(run)
    for decision in played[:imported]:
        append(ledger, decision)
    if imported:
        shared = export.exported_run(ledger)
        ledger = Memory()
        ledger.adopt(shared)
    for decision in played[imported:]:
        append(ledger, decision)
    return ledger


@pytest.mark.parametrize("imported", [0, 3])
def test_every_round_is_verified_also_after_rounds_that_came_without_votes(imported):
    report = verify(written(identity(rule=f"nnm+{RULE}", local_epochs=2), 6, imported))
    assert report.findings == []
    assert report.aggregates == 6 - imported


def test_a_round_that_was_decided_without_the_memory_is_found():
    run = identity(rule=RULE)
    first, second = decisions(run, 2)
    votes = [from_wire(ballot.values, 1) for ballot in second.ballots if ballot.verdict == "counted"]
    forgetful = decide(get_rule(RULE), np.stack(votes, axis=1), run.agreement.byzantine)
    ledger = Memory()
    ledger.found(run)
    append(ledger, first)
    append(ledger, replace(second, scalars=to_wire(forgetful)))
    assert verify(ledger).findings == [f"round 1: its scalars are not what {RULE} makes of the counted votes"]
