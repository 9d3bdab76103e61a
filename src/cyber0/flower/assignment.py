"""Assign Flower's nodes to the clients of the federation, and find out who needs a new session."""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Assignment", "Node"]


@dataclass(frozen=True)
class Node:
    """A node that Flower says is online: its number, the name it is registered by, and when it was started."""

    number: int
    name: str = ""
    since: str = ""


class Assignment:
    """Which node is which client of a roster.

    If `named`, a node is the client of its registered name, and no other. Otherwise clients are assigned in the order
    in which nodes come; a node that comes back is the client it was, and a newcomer replaces a node that is offline.

    >>> assignment = Assignment(("client-0", "client-1"))
    >>> sorted(assignment.changed([Node(7), Node(8), Node(9)]))
    ['client-0', 'client-1']
    >>> assignment.changed([Node(7), Node(9)])
    {'client-1': Node(number=9, name='', since='')}
    >>> assignment.changed([Node(7, since="later"), Node(9)])
    {'client-0': Node(number=7, name='', since='later')}
    """

    def __init__(self, roster: tuple[str, ...], *, named: bool = False) -> None:
        self.roster, self.named = roster, named
        self.places: dict[str, Node] = {}

    def changed(self, nodes: Iterable[Node]) -> dict[str, Node]:
        """Assign the nodes that are online, and return the clients whose node is another one or was restarted."""
        online = {node.number: node for node in sorted(nodes, key=lambda node: (node.since, node.number))}
        before = dict(self.places)
        placed = {node.name: node for node in online.values()} if self.named else self._first_come(online)
        self.places.update({name: node for name, node in placed.items() if name in self.roster})
        return {name: node for name, node in self.places.items() if before.get(name) != node}

    def _first_come(self, online: dict[int, Node]) -> dict[str, Node]:
        kept = {name: online[node.number] for name, node in self.places.items() if node.number in online}
        present = {node.number for node in kept.values()}
        newcomers = (node for number, node in online.items() if number not in present)
        never = [name for name in self.roster if name not in self.places]
        left = [name for name in self.roster if name in self.places and name not in kept]
        return kept | dict(zip(never + left, newcomers, strict=False))
