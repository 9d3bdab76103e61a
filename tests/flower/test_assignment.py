"""Whoever Flower says is online has at most one seat, keeps it, and is sent a session once for each time it starts."""

from hypothesis import given
from hypothesis import strategies as st

from cyber0.flower.assignment import Assignment, Node

ROSTER = ("ann", "bob", "cy")
NODES = st.builds(Node, st.integers(1, 6), st.just(""), st.sampled_from(["1", "2"]))
ONLINE = st.lists(NODES, max_size=6, unique_by=lambda node: node.number)
NAMED = st.lists(st.sampled_from([Node(1, "ann"), Node(2, "bob"), Node(3, "eve"), Node(4), Node(5, "cy")]), unique=True)


@given(st.lists(ONLINE, max_size=8))
def test_a_node_sits_once_and_keeps_its_seat(looks):
    assignment, before = Assignment(ROSTER), {}
    for online in looks:
        assignment.changed(online)
        numbers = [node.number for node in assignment.places.values()]
        assert len(set(numbers)) == len(numbers)
        assert set(assignment.places) <= set(ROSTER)
        for name, node in before.items():
            if node.number in {other.number for other in online}:
                assert assignment.places[name].number == node.number
        before = dict(assignment.places)


@given(st.lists(ONLINE, max_size=8))
def test_seats_are_not_left_empty_while_nodes_stand(looks):
    assignment = Assignment(ROSTER)
    for online in looks:
        assignment.changed(online)
        here = {node.number for node in online}
        present = here & {node.number for node in assignment.places.values()}
        assert len(present) == min(len(here), len(ROSTER))


@given(st.lists(ONLINE, max_size=8))
def test_who_stays_is_not_sent_for_again(looks):
    assignment = Assignment(ROSTER)
    for online in looks:
        assignment.changed(online)
        assert assignment.changed(online) == {}


@given(st.lists(NAMED, max_size=5))
def test_with_names_each_sits_where_it_is_registered(looks):
    assignment = Assignment(ROSTER, named=True)
    for online in looks:
        assignment.changed(online)
        assert all(node.name == name for name, node in assignment.places.items())
        assert {node.name for node in online} & set(ROSTER) <= set(assignment.places)


def test_a_node_that_starts_anew_is_sent_a_session():
    assignment = Assignment(ROSTER, named=True)
    first, again = Node(1, "ann", "monday"), Node(1, "ann", "tuesday")
    assert assignment.changed([first]) == {"ann": first}
    assert assignment.changed([]) == {}
    assert assignment.changed([again]) == {"ann": again}
