"""A federator that lies, together with b liars, in a network that is only messages: honest clients are real members."""

import random
from dataclasses import dataclass, field

import numpy as np

from cyber0 import aggregation
from cyber0.config import RunConfig
from cyber0.errors import Refused
from cyber0.network.audits import Audits
from cyber0.network.member import Member
from cyber0.network.stub_model import StubModel
from cyber0.protocol import pages
from cyber0.protocol.catching_up import Position, Step
from cyber0.protocol.chain import Anchor, advance, ballots_hash, link_statement, vote_statement
from cyber0.protocol.decide import decide
from cyber0.protocol.messages import Audit, CatchUp, Committed, Rejection, RoundOpen, Vote, Welcome
from cyber0.protocol.records import Ballot, Decision, from_wire, to_wire
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, new_key, sign

KEYS = [new_key() for _ in range(16)]
FEDERATOR = new_key()


@dataclass(eq=False)
class Node:
    """A place in the tree of histories that the federator could show."""

    position: Position
    decision: Decision | None = None
    parent: "Node | None" = None
    votes: dict[str, Vote] = field(default_factory=dict)  # of honest clients, on this link
    children: list["Node"] = field(default_factory=list)

    @property
    def path(self):
        """The decisions from the beginning to here."""
        return [] if self.parent is None else [*self.parent.path, self]

    def committed(self):
        decision = self.decision
        return Committed(decision.round, decision.scalars, ballots_hash(decision.ballots), self.position.signature)

    def step(self):
        decision = self.decision
        return Step(self.parent.position, decision.scalars, ballots_hash(decision.ballots), (), self.position)


class TwoFaces:
    """The federator, the liars' keys, and honest members: `show` a member a node, `decide` on votes that were cast."""

    def __init__(self, honest, liars, *, rounds=12, quorum=None, audit=1.0, rule="median", scalars=1, rng=None):
        clients = honest + liars
        agreed = {"clients": clients, "byzantine": liars, "rule": rule, "directions": scalars, "rounds": rounds}
        self.settings = Settings.of(RunConfig(**agreed, quorum=quorum))
        self.rng, self.stopped, self.audit = rng or random.Random(0), {}, audit  # noqa: S311
        names = self.settings.roster
        self.keys = dict(zip(names, KEYS, strict=False))
        public = {name: encoded(key.public_key()) for name, key in self.keys.items()}
        model = StubModel(scalars)
        identity = self.settings.identity(
            model.manifest, model.base, keys=public, federator=encoded(FEDERATOR.public_key())
        )
        self.identity, self.root = identity, Node(Position.start(identity))
        self.liars, self.members, self.at = names[honest:], {}, {}
        for place, name in enumerate(names[:honest]):
            self.members[name] = self.member(name, place)
            self.at[name] = self.root
            self.deliver(name, [self.welcome(), RoundOpen(0)])

    def member(self, name, place, **options):
        model = StubModel(self.settings.plan.scalars, float(place))
        member = Member(self.settings, name, model, key=self.keys[name], audits=Audits(self.audit), **options)
        member.hello()
        return member

    def welcome(self):
        return Welcome(self.identity.to_bytes(), 0, self.identity.roster.to_bytes())

    # What honest clients are told, and say

    def deliver(self, name, messages, answers=None):
        """Give a member messages, answer its audits, and collect its votes; one that refuses to go on is stopped."""
        member, waiting = self.members[name], list(messages)
        try:
            while waiting:
                said = []
                member.receive(waiting, said.append)
                waiting = [
                    page for message in said if isinstance(message, Audit) for page in self.page(message, answers)
                ]
                for message in said:
                    if isinstance(message, Vote):
                        self.cast(name, message)
        except Refused as refusal:
            self.stopped[name] = refusal

    def page(self, audit, answers):
        decision = (answers or {}).get(audit.round)
        return [] if decision is None else [pages.page_of(audit.round, pages.to_bytes(decision), audit.page)]

    def cast(self, name, vote):
        node = self.at[name]
        assert vote.round == node.position.head.rounds, "an honest client votes on what it was shown"
        assert node.votes.get(name, vote).scalars == vote.scalars
        node.votes[name] = vote

    def show(self, name, node):
        """Show a member the next round, and answer its audits truly."""
        self.at[name] = node
        self.deliver(name, [node.committed()], {node.decision.round: node.decision})

    # What the federator writes

    def ballots(self, node, voters, lies=None):
        """The votes of honest clients and liars on a node, in roster order."""
        found = []
        for name in self.settings.roster:
            if name not in voters:
                continue
            vote = node.votes.get(name) or self.lie(name, node, (lies or {}).get(name, 9.0))
            found.append(Ballot.of(name, "counted", vote.scalars, signature=vote.signature))
        return tuple(found)

    def lie(self, name, node, value):
        assert name in self.liars, "the federator has no honest client's key"
        scalars = to_wire(np.full(self.settings.plan.scalars, value))
        digest = Ballot.of(name, "counted", scalars).digest
        head = node.position.head
        statement = vote_statement(self.identity.digest, head.rounds, head.link, digest)
        return Vote(head.rounds, scalars, signature=sign(self.keys[name], statement))

    def aggregate(self, ballots, path=()):
        """What the rule makes of votes, after the rounds of a path if it has memory."""
        rows = self.settings.plan.rows
        votes = np.stack([from_wire(ballot.values, rows) for ballot in ballots], axis=1)
        rule = aggregation.get_rule(self.settings.agreement.rule)
        memory = aggregation.begin(rule)
        for node in path:
            memory = aggregation.after(rule, memory, from_wire(node.decision.scalars, rows))
        return to_wire(decide(rule, votes, self.settings.agreement.byzantine, memory))

    def decide(self, node, voters, lies=None):
        ballots = self.ballots(node, voters, lies)
        return self.write(node, Decision(node.position.head.rounds, self.aggregate(ballots, node.path), ballots))

    def write(self, node, decision):
        """Sign the link after a decision, whatever it is."""
        before = node.position
        roster = before.roster.after(decision.changes)
        head = advance(before.head, decision, roster)
        signature = sign(FEDERATOR, link_statement(self.identity.digest, head.rounds, head.link))
        anchor = Anchor(before.head.link, ballots_hash(decision.ballots), roster.digest)
        child = Node(Position(self.identity, head, roster, signature, anchor), decision, node)
        node.children.append(child)
        return child

    def catch_up(self, node, first=0):
        """The rounds up to a node from round `first` on, in one message."""
        path = node.path[first:]
        hashes = b"".join(ballots_hash(one.decision.ballots) for one in path)
        scalars = b"".join(one.decision.scalars for one in path)
        return CatchUp(first, scalars, hashes, node.position.signature)

    def replay(self, name, node):
        """Say that a member's weights are wrong, and show it another history from the beginning."""
        number = self.members[name].commits
        self.deliver(name, [Rejection(number, "rejected", "its weights differ", replay=True)])
        if name in self.stopped:
            return
        self.at[name] = node
        answers = {one.decision.round: one.decision for one in node.path}
        self.deliver(name, [self.welcome(), self.catch_up(node), RoundOpen(len(node.path))], answers)
