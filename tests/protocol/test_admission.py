"""What is no vote never counts, and costs only its sender."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyber0.aggregation import RULES, compose, get_rule, nnm
from cyber0.errors import InvalidAggregation, InvalidConfig
from cyber0.protocol.admission import Votes, add_late, admit, differing, set_apart
from cyber0.protocol.decide import decide, quorum
from cyber0.protocol.messages import Vote
from cyber0.protocol.records import to_wire

LENGTH = 8
CLIENTS = ["alice", "bob", "carol"]
good = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2).map(to_wire)
bad = st.sampled_from([to_wire([np.nan, 0.0]), to_wire([0.0, -np.inf]), b"", bytes(4), bytes(12), bytes(4000)])


def cast(*votes):
    box = Votes()
    for client, scalars in votes:
        box = admit(box, client, Vote(0, scalars), LENGTH)
    return box


def verdicts(votes, client):
    return [ballot.verdict for ballot in votes.ballots(client)]


@given(good)
def test_a_good_vote_counts(scalars):
    assert verdicts(cast(("alice", scalars)), "alice") == ["counted"]


@given(bad)
def test_a_bad_vote_is_kept_as_rejected_with_a_reason(scalars):
    votes = cast(("alice", scalars))
    (ballot,) = votes.ballots("alice")
    assert (ballot.verdict, bool(ballot.reason), dict(votes.counted)) == ("rejected", True, {})
    assert ballot.values in (scalars, None)


@given(good, st.integers(1, 5))
def test_the_same_vote_again_changes_nothing(scalars, times):
    assert cast(*[("alice", scalars)] * times) == cast(("alice", scalars))


@given(good, good | bad)
def test_two_different_votes_are_both_kept_and_none_counts(first, second):
    votes = cast(("alice", first), ("alice", second))
    if first != second:
        assert verdicts(votes, "alice") == ["equivocation", "equivocation"]
        assert not votes.counted


@given(st.lists(st.tuples(st.sampled_from(["alice", "bob"]), good | bad)), good)
def test_others_cost_a_client_nothing(theirs, own):
    for place in range(len(theirs) + 1):
        votes = cast(*theirs[:place], ("carol", own), *theirs[place:])
        assert votes.counted["carol"].values == own


@given(st.lists(st.tuples(st.sampled_from(CLIENTS), good | bad), max_size=30))
def test_nobody_can_fill_the_ledger(messages):
    votes = cast(*messages)
    for client in CLIENTS:
        assert len(votes.ballots(client)) <= 2
        assert all(len(ballot.values or b"") <= LENGTH for ballot in votes.ballots(client))


@given(st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 2)))
def test_differing_are_those_outside_a_strict_majority(marks):
    values = list(marks.values())
    usual = [value for value in set(values) if 2 * values.count(value) > len(values)]
    found = differing(marks)
    if usual or not marks:
        assert found == {client for client, value in marks.items() if [value] != usual}
    else:
        assert found is None


@given(good, good)
def test_who_was_set_apart_has_no_other_vote_in_the_round(first, second):
    apart = set_apart(cast(("alice", first)), "alice", "its weights differ")
    assert admit(apart, "alice", Vote(0, second), LENGTH) == apart
    assert verdicts(apart, "alice") == ["rejected"]


@given(good | bad, good, st.binary(min_size=64, max_size=64), st.binary(min_size=64, max_size=64))
def test_every_ballot_keeps_the_signature_of_its_vote(first, second, one, other):
    votes = admit(Votes(), "alice", Vote(0, first, signature=one), LENGTH)
    assert [ballot.signature for ballot in votes.ballots("alice")] == [one]
    both = admit(votes, "alice", Vote(0, second, signature=other), LENGTH)
    if "alice" in votes.counted and first != second:
        assert [ballot.signature for ballot in both.ballots("alice")] == [one, other]
    late = add_late(Votes(), "alice", Vote(0, second, signature=other))
    assert late.ballots("alice")[0].signature == other


@pytest.mark.parametrize("name", [*RULES, "nnm+cwtm", "bucketing+median"])
@pytest.mark.parametrize("byzantine", [0, 1, 2])
def test_a_quorum_is_enough_and_one_less_is_not(name, byzantine):
    rule = get_rule(name)
    fewest = quorum(rule, byzantine, invited=20)
    votes = np.ones((1, fewest, 3), dtype=np.float32)
    assert decide(rule, votes, byzantine).tolist() == [[1.0, 1.0, 1.0]]
    assert fewest >= 2 * byzantine + 1
    if fewest > 2 * byzantine + 1:
        with pytest.raises(InvalidAggregation):
            decide(rule, votes[:, 1:], byzantine)


def test_a_rule_that_needs_more_than_are_invited_is_refused():
    with pytest.raises(InvalidAggregation):
        quorum(get_rule("bulyan"), 1, invited=6)
    with pytest.raises(InvalidConfig, match="fewer than half"):
        quorum(get_rule("cwtm"), 1, invited=2)


def test_a_decision_is_finite_in_float32_and_refuses_a_rule_that_is_not():
    largest = np.full((1, 3, 2), np.finfo(np.float32).max)
    assert np.isfinite(decide(lambda votes, _: votes.sum(axis=1), largest, 1)).all()
    with pytest.raises(InvalidAggregation, match=r"into \(1, 3, 2\): it must give \(1, 2\)"):
        decide(lambda votes, _: votes, largest, 1)
    with pytest.raises(InvalidAggregation, match=r"made \(1, 3, 2\) votes into infinities or NaN"):
        decide(lambda votes, _: votes[:, 0] * np.nan, largest, 1)
    with pytest.raises(InvalidAggregation, match="cannot be used: ZeroDivisionError"):
        decide(lambda votes, _: votes[:, 0] * (1 // 0), largest, 1)


@given(st.integers(0, 2**32))
def test_memory_layout_does_not_change_a_bit(seed):
    votes = np.random.default_rng(seed).normal(size=(3, 5, 4)).astype(np.float32)
    other = np.asfortranarray(votes)
    assert decide(get_rule("mean"), votes, 0).tobytes() == decide(get_rule("mean"), other, 0).tobytes()


def test_a_rule_that_gives_other_results_for_the_same_votes_is_refused():
    def anyones(vectors, _):
        return vectors[..., np.random.randint(vectors.shape[-2]), :]  # noqa: NPY002

    def noisy(vectors, _):
        return vectors.mean(axis=-2) + np.random.standard_normal()  # noqa: NPY002

    def seeded(vectors, _):
        return vectors.mean(axis=-2) + np.random.default_rng(7).standard_normal()

    class Counting:
        calls = 0

        def __call__(self, vectors, _):
            self.calls += 1
            return vectors.mean(axis=-2) * self.calls

    for rule in (anyones, noisy, Counting, compose(nnm, noisy)):
        with pytest.raises(InvalidAggregation, match="gives other results for the same votes: it must depend on"):
            quorum(rule, 1, invited=20)
    assert quorum(seeded, 1, invited=20) == 3
