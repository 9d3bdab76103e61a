"""Whoever Flower says is online has at most one seat, keeps it, and is sent a session once for each time it starts."""

from hypothesis import given
from hypothesis import strategies as st

from cyber0.flower.seating import Node, Seating

ROSTER = ("ann", "bob", "cy")
NODES = st.builds(Node, st.integers(1, 6), st.just(""), st.sampled_from(["1", "2"]))
ONLINE = st.lists(NODES, max_size=6, unique_by=lambda node: node.number)
NAMED = st.lists(st.sampled_from([Node(1, "ann"), Node(2, "bob"), Node(3, "eve"), Node(4), Node(5, "cy")]), unique=True)


@given(st.lists(ONLINE, max_size=8))
def test_a_node_sits_once_and_keeps_its_seat(looks):
    seating, before = Seating(ROSTER), {}
    for online in looks:
        seating.changed(online)
        numbers = [node.number for node in seating.seats.values()]
        assert len(set(numbers)) == len(numbers)
        assert set(seating.seats) <= set(ROSTER)
        for name, node in before.items():
            if node.number in {other.number for other in online}:
                assert seating.seats[name].number == node.number
        before = dict(seating.seats)


@given(st.lists(ONLINE, max_size=8))
def test_seats_are_not_left_empty_while_nodes_stand(looks):
    seating = Seating(ROSTER)
    for online in looks:
        seating.changed(online)
        here = {node.number for node in online}
        sitting = here & {node.number for node in seating.seats.values()}
        assert len(sitting) == min(len(here), len(ROSTER))


@given(st.lists(ONLINE, max_size=8))
def test_who_stays_is_not_sent_for_again(looks):
    seating = Seating(ROSTER)
    for online in looks:
        seating.changed(online)
        assert seating.changed(online) == {}


@given(st.lists(NAMED, max_size=5))
def test_with_names_each_sits_where_it_is_registered(looks):
    seating = Seating(ROSTER, named=True)
    for online in looks:
        seating.changed(online)
        assert all(node.name == name for name, node in seating.seats.items())
        assert {node.name for node in online} & set(ROSTER) <= set(seating.seats)


def test_a_node_that_starts_anew_is_sent_a_session():
    seating = Seating(ROSTER, named=True)
    first, again = Node(1, "ann", "monday"), Node(1, "ann", "tuesday")
    assert seating.changed([first]) == {"ann": first}
    assert seating.changed([]) == {}
    assert seating.changed([again]) == {"ann": again}
