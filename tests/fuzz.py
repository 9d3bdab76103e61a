"""Feed mutants of valid messages to everything that takes bytes of others, and see that nothing gives way.

    python -m tests.fuzz --messages 1000000 --seed 0

Real members and a real federator play a run, without sockets; what they say is what mutants are made of. Each mutant
meets the party it was meant for as it was at some moment of that run. Only errors of this library may come of it; what
decodes must be what the codec promises; no vote counts that its client did not sign; no member takes a commit that is
not in the chain, signs a vote on another one, or accuses anybody.
"""

import argparse
import asyncio
import hashlib
import math
import random
import resource
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.mutants import changed_bytes, changed_json, mutant
from tests.network.raw import Outlet
from tests.network.two_faces import TwoFaces

from cyber0.config import RunConfig
from cyber0.errors import InvalidEvidence, InvalidIdentity, Refused, RejectedMessage
from cyber0.network.audits import Audits, Caught
from cyber0.network.connection import Connection
from cyber0.network.limits import RateLimit
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.stub_model import StubModel
from cyber0.protocol import codec, evidence, pages
from cyber0.protocol.catching_up import catch_up
from cyber0.protocol.chain import ballots_hash, vote_statement
from cyber0.protocol.codec import encode
from cyber0.protocol.events import Arrived, ClientStream
from cyber0.protocol.export import exported_run
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.machine import step
from cyber0.protocol.messages import (
    Ask,
    Audit,
    Evaluation,
    Hello,
    Invitation,
    Recall,
    Recalled,
    Rejection,
    Request,
    Vote,
)
from cyber0.protocol.pages import BallotPages
from cyber0.protocol.roster import Change, Roster, changes_from, changes_to_bytes
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import encoded, is_by, sign
from cyber0.protocol.state import restored

CLIENTS, ROUNDS, BATCH = 4, 5, 5000
LIMIT = 4096  # bytes of a message here, so that some mutants have more
MEMORY = 2**28  # bytes that all mutants together may cost
SECONDS = 2.0  # of a processor, for one mutant


class Violation(AssertionError):
    """Something gave way."""


def require(holds, text):
    if not holds:
        raise Violation(text)


def key_of(name):
    """A key whose signatures are the same each time."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


class World:
    """A run that was played by a federator and its clients, and what they were at each moment of it.

    `imported` rounds of it were played before, elsewhere, and their votes are not here.
    """

    def __init__(self, ledger=None, rounds=ROUNDS):
        self.settings = Settings.of(
            RunConfig(clients=CLIENTS, byzantine=1, rule="median", directions=2, rounds=rounds), deadline=600.0
        )
        self.ledger = ledger or Memory()
        self.federator = Federator(self.settings, self.ledger, key=key_of("federator"))
        self.federator._limit = LIMIT
        self.federator._hellos = self.federator._audits = RateLimit(10**9, 1.0)
        self.up, self.down = [], []  # (whose, bytes, moment)
        self.signed = set()  # client, round, link and digest of each vote
        self.reported, self.wishes = set(), set()
        self.members = {}
        self.connections = {name: self.connection(name) for name in self.settings.roster}
        self.weights = {bytes(32)}
        self.play()
        honest = StubModel(2)
        for number, decision in enumerate(self.ledger.decisions()):
            honest.advance(number, decision.scalars)
            self.weights.add(honest._weights)
        self.links = {self.ledger.head_at(number).link: number for number in range(self.ledger.head.rounds + 1)}
        self.identity, self.roster, self.decisions = (
            self.ledger.identity,
            self.ledger.roster,
            [*self.ledger.decisions()],
        )
        self.run = self.identity.digest
        self.extras()

    def connection(self, name):
        made = Connection(list(self.settings.roster).index(name) + 1, Outlet(), client=name)
        self.federator.streams.add(made)
        return made

    def member(self, name):
        model = StubModel(2, float(list(self.settings.roster).index(name)))
        model.meaning = b'{"prompt":"%s","words":"%s"}' % (b"0f" * 32, b"9a" * 32)
        audits = Audits({"client-0": 1.0, "client-1": 0.5}.get(name, 0.0), rng=random.Random(name))  # noqa: S311
        return Member(self.settings, name, model, key=key_of(name), audits=audits, evaluates=name == "client-2")

    # The run as it should be

    def play(self):
        """All come, and the last one leaves at once; it comes again after two rounds, to catch up."""
        last = self.settings.roster[-1]
        waiting = deque(said for name in self.settings.roster for said in self.join(name))
        while waiting:
            self.says(*waiting.popleft())
        self.federator.streams.remove(self.connections[last])
        self.connections[last] = self.connection(last)
        del self.members[last]
        waiting += (said for name in self.members for said in self.hears(name))
        while waiting:
            while waiting:
                self.says(*waiting.popleft())
            waiting += (said for name in self.members for said in self.hears(name))
            if last not in self.members and self.federator.state.round >= 2:
                waiting += self.join(last)
        require(self.ledger.head.rounds == self.settings.agreement.rounds, "the run does not come to its end")

    def join(self, name):
        self.members[name] = self.member(name)
        return [(name, encode(Ask())), (name, encode(self.members[name].hello()))]

    def says(self, name, data):
        self.up.append((name, data, self.moment()))
        self.federator.streams.receive(self.connections[name], data)
        self.federator.streams.flush()
        require(self.federator.failure is None, f"the run fails: {self.federator.failure}")

    def hears(self, name):
        """Give a member what the federator has sent to it, and return what it says."""
        said = []
        for data in sent(self.connections[name].outlet):
            message = codec.decode_from_federator(data)
            member = self.members[name]
            self.down.append((name, data, remembered(member)))
            if isinstance(message, Invitation):
                continue
            member.receive([message], said.append)
        for message in said:
            self.note(name, message)
        return [(name, encode(message)) for message in said]

    def note(self, name, message):
        if isinstance(message, Vote):
            digest = hashlib.sha256(message.scalars).digest()
            self.signed.add((name, message.round, self.members[name].head, digest))
        elif not isinstance(message, Audit | Evaluation | Hello):
            self.reported.add((name, message.round, message.fingerprint))

    def extras(self):
        """Messages that a run has only now and then, at some moments of this one."""
        new = Change("rotate", "client-1", encoded(key_of("another").public_key()))
        new = replace(new, signature=sign(key_of("client-1"), new.statement(self.run)))
        self.wishes = {new, *(change for moment in self.up for change in moment[2][0].proposed)}
        moments = [moment for _, _, moment in self.up[CLIENTS + 2 :]]
        for moment in moments[::4]:
            self.up.append(("client-1", encode(Request(changes_to_bytes([new]))), moment))
            self.up.append(("client-3", encode(Audit(1)), moment))
            self.up.append(("client-2", encode(Evaluation(1, 0.5, 0.7, 9)), moment))
            self.up.append(("client-2", encode(Evaluation(1, None, 0.7, 9)), moment))
        heard = [(name, moment) for name, _, moment in self.down]
        (caught,) = catch_up(self.ledger, self.ledger.imported, self.ledger.head.rounds)
        for name, moment in heard[::4]:
            self.down.append((name, encode(Rejection(1, "rejected", "its weights differ", replay=True)), moment))
            self.down.append((name, encode(caught), moment))
            self.down.append((name, encode(Recall(self.ledger.imported + 1)), moment))
        for kept in range(self.ledger.imported, self.ledger.head.rounds):
            self.restored(kept)

    def restored(self, kept):
        """Moments of a federator that has only the first rounds, and is asked to take back the others."""
        shorter = Memory()
        for name, value in vars(self.ledger).items():
            setattr(shorter, name, value.copy() if hasattr(value, "copy") else value)
        del shorter._written[kept:]
        shorter._roster, shorter._reports, shorter._seals = None, {}, {}
        streams = {name: ClientStream(name, connection.number) for name, connection in self.connections.items()}
        state = restored(self.settings, shorter, self.identity.federator)
        for name in ("client-0", "client-3"):
            moment = state, dict(vars(shorter)), dict(streams), b""
            hello = self.members[name].hello()
            self.up.append((name, encode(hello), moment))
            state, _ = step(state, Arrived(streams[name], hello))
        moment = state, dict(vars(shorter)), streams, b""
        held = self.members["client-0"].store.commits(8, print).recalled(kept)
        require(state.asked == streams["client-0"] and held.scalars, "a federator does not ask for what it lost")
        self.up += [("client-0", encode(held), moment), ("client-0", encode(Recalled(kept)), moment)]

    # Mutants

    def moment(self):
        """What the federator is now."""
        ledger = {name: value.copy() if hasattr(value, "copy") else value for name, value in vars(self.ledger).items()}
        streams = {name: connection.stream for name, connection in self.connections.items()}
        return self.federator.state, ledger, streams, self.federator._signature

    def at_federator(self, name, data, moment):
        """Let the federator have bytes of a client, as it was at a moment; see that nothing comes of lies."""
        federator, (state, ledger, streams, signature) = self.federator, moment
        federator.state, federator._signature = state, signature
        federator._pages = BallotPages(federator.ledger)
        vars(self.ledger).update({k: v.copy() if hasattr(v, "copy") else v for k, v in ledger.items()})
        for one, connection in self.connections.items():
            connection.stream, connection.messages = streams[one], 0
            if connection.outlet.messages or connection.outlet.is_ended:
                connection.outlet = Outlet()
        federator.streams.receive(self.connections[name], data)
        federator.streams.flush()
        require(federator.failure is None, f"the federator fails: {federator.failure!r}")
        after = federator.state
        if after is not state:
            self.check_federator(after)
        for connection in self.connections.values():
            for answer in sent(connection.outlet):
                codec.decode_from_federator(answer)  # an honest federator sends nothing that clients reject

    def check_federator(self, state):
        link = state.head.link or b""
        for ballot in state.votes.counted.values():
            self.check_ballot(ballot, state.round, link)
        for decision in self.ledger.decisions(self.ledger.imported):
            here = self.ledger.head_at(decision.round).link
            for ballot in decision.ballots:
                if ballot.verdict == "late":
                    self.check_ballot(ballot, decision.round - 1, self.ledger.head_at(decision.round - 1).link)
                else:
                    self.check_ballot(ballot, decision.round, here)
            if decision.lost:
                right = self.decisions[decision.round]
                same = (decision.scalars, decision.lost) == (right.scalars, right.ballots_hash)
                require(same, f"round {decision.round} comes back as another one")
        for change in state.proposed:
            require(change in self.wishes or self.is_enrolment(change), f"nobody asked for {change}")
        for report in self.ledger.reports:
            require((report.client, report.rounds, report.fingerprint) in self.reported, f"nobody said {report}")

    def is_enrolment(self, change):
        return change.kind == "admit" and change.key == encoded(key_of(change.name).public_key())

    def check_ballot(self, ballot, round, link):
        cast = (ballot.client, round, link, ballot.digest)
        require(cast in self.signed, f"a {ballot.verdict} vote of {ballot.client} in round {round}: it signed none")

    def at_member(self, name, message, moment):
        """Let a member have a message, as it was at a moment; see that it believes nothing that is not so."""
        member, said = recalled(moment), []
        voted = {kept.vote.round: kept for kept in member.store.signed}
        try:
            member.receive([message], said.append)
        except Caught as caught:
            raise Violation(f"{name} accuses the federator: {caught}") from caught
        except Refused:
            pass
        require(member.model._weights in self.weights, f"{name} has taken a commit that is not in the chain")
        position = member.position
        if position is not None:
            require(position.identity.digest == self.run, f"{name} takes part in another run")
            head = position.head
            require(self.links.get(head.link) == head.rounds, f"{name} follows another chain")
        for answer in said:
            codec.decode_from_client(encode(answer))
            if isinstance(answer, Vote):
                self.check_vote(member, answer, voted.get(answer.round))

    def check_vote(self, member, vote, before):
        require(before is None or before.vote.scalars == vote.scalars, f"{member.name} votes twice in {vote.round}")
        digest = hashlib.sha256(vote.scalars).digest()
        statement = vote_statement(self.run, vote.round, member.head, digest)
        require(is_by(member._public, vote.signature, statement), "a vote is not signed")


def sent(outlet):
    """Take what waits for a client."""
    found = [*outlet.messages]
    outlet.messages.clear()
    return found


def remembered(member):
    """A copy of all that changes in a member."""
    audits = dict(vars(member.audits))
    audits["_pending"] = {n: replace(one, data=bytearray(one.data)) for n, one in audits["_pending"].items()}
    audits |= {"_votes": dict(audits["_votes"]), "_commits": bytearray(audits["_commits"])}
    store = {**vars(member.store), "_slots": list(member.store._slots)}
    held = {**vars(member), "_waiting": deque(member._waiting), "_followed": list(member._followed)}
    return member, held, audits, store, dict(vars(member.model))


def recalled(moment):
    """The member as it was."""
    member, held, audits, store, model = moment
    for one, values in ((member, held), (member.audits, audits), (member.store, store), (member.model, model)):
        vars(one).update(values)
    fresh = remembered(member)
    for one, values in zip((member, member.audits, member.store, member.model), fresh[1:], strict=True):
        vars(one).update(values)
    return member


# What the codec promises, written a second time


LENGTHS = {
    "manifest": (32,),
    "base": (32,),
    "head": (0, 32),
    "run": (0, 32),
    "key": (0, 32, 33),
    "federator": (0, 32, 33),
    "signature": (0, 64),
    "voted_link": (0, 32),
    "voted_signature": (0, 64),
    "anchor": (0, 96),
}
MOST = {"layout": 2**19, "meaning": 2**14, "changes": 2**16, "change": 2**16, "certificate": 2**13, "reason": 1000}
PROMISES = {
    "ballots": lambda value: len(value) % 32 == 0,
    "scalars": lambda value: len(value) % 4 == 0,
    "name": lambda value: 1 <= len(value) <= 100 and value.isprintable(),
    "verdict": lambda value: value in ("counted", "equivocation", "late", "rejected"),
    "accuracy": lambda value: 0.0 <= value <= 1.0,
    "loss": lambda value: not math.isnan(value),
    "samples": lambda value: value >= 1,
    **dict.fromkeys(
        ("round", "first", "commits", "page", "version", "lost", "voted"), lambda value: 0 <= value < 2**32
    ),
    **{name: lambda value, lengths=lengths: len(value) in lengths for name, lengths in LENGTHS.items()},
    **{name: lambda value, most=most: len(value) <= most for name, most in MOST.items()},
}


def check_message(message, data):
    require(len(data) <= LIMIT, f"a message of {len(data)} bytes decodes")
    for name in message.__slots__:
        value = getattr(message, name)
        right = value is None or name not in PROMISES or PROMISES[name](value)
        require(right, f"{type(message).__name__}.{name} = {value!r} decodes")
    decode = codec.decode_from_client if type(message) in codec.FromClient.__args__ else codec.decode_from_federator
    require(decode(encode(message)) == message, "a message is another one when it is sent on")


# Files and parts of messages


def lies():
    """Evidence of each kind, with who is to blame, and files that look like it and prove nothing."""
    world = TwoFaces(3, 1, rounds=9)
    names = world.settings.roster
    first = world.decide(world.root, names, {"client-3": 4.0})
    for name in world.members:
        world.show(name, first)
    honest = world.decide(first, names, {"client-3": 5.0})
    proofs = [(evidence.decision([honest.step()], honest.decision), None)]
    wrong = world.write(first, replace(honest.decision, scalars=bytes(4)))
    world.show("client-0", wrong)
    proofs.append((world.stopped["client-0"].evidence, "the federator"))
    other = world.decide(first, names[1:], {"client-3": 6.0})
    world.show("client-1", honest)
    world.replay("client-1", other)
    proofs.append((world.stopped["client-1"].evidence, "the federator"))
    ballots = [world.ballots(first, names, {"client-3": value})[3] for value in (1.0, 2.0)]
    said = [(first.position.head.link, ballot) for ballot in ballots]
    proofs.append((evidence.equivocation(first.position, 1, "client-3", said), "client-3"))
    cast = honest.decision.ballots[0]
    for other in (cast, replace(cast, digest=bytes(32))):  # the same vote twice, and one that it did not sign
        votes = [(first.position.head.link, cast), (first.position.head.link, other)]
        proofs.append((evidence.equivocation(first.position, 1, "client-0", votes), None))
    for data, party in proofs:
        require((judged(data) or (None,))[0] == party, "evidence does not prove what it should")
    return proofs


def judged(data):
    try:
        judgement = evidence.judge(data)
    except InvalidEvidence:
        return None
    return judgement.party, judgement.key


@dataclass
class Parsers:
    """What reads bytes of others besides the codec; each is given mutants of what it should be given."""

    world: World
    proofs: list = field(default_factory=lies)

    def feed(self, rng):
        """Feed one mutant to one of them, and return whether it was taken."""
        parser, refusal = rng.choice(
            (
                (self.pages, RejectedMessage),
                (self.evidence, InvalidEvidence),
                (self.changes, InvalidIdentity),
                (self.roster, InvalidIdentity),
                (self.identity, InvalidIdentity),
                (self.invitation, Refused),
            )
        )
        try:
            return parser(rng)
        except refusal:
            return False

    def pages(self, rng):
        data = pages.to_bytes(decision := rng.choice(self.world.decisions))
        found = pages.from_pages(decision.round, changed_bytes(rng, data, [data]))
        same = ballots_hash(found.ballots) == ballots_hash(decision.ballots)
        require(not same or found.ballots == decision.ballots, "other ballots with the same hash")
        require(all(len(ballot.digest) == 32 for ballot in found.ballots), "a digest of another length")
        return True

    def evidence(self, rng):
        data, party = rng.choice(self.proofs)
        if (judgement := judged(changed_json(rng, data))) is None:
            return False
        require(judgement == judged(data) and party is not None, f"{judgement[0]} is accused by changed evidence")
        return True

    def changes(self, rng):
        key = encoded(key_of("new").public_key())
        data = changes_to_bytes([Change("admit", "dan", key), Change("extend", number=9), Change("revoke", "ann")])
        made = changed_json(rng, data)
        require(changes_to_bytes(changes_from(made)) == made, "changes are written in two ways")
        return True

    def roster(self, rng):
        made = changed_json(rng, self.world.roster.to_bytes())
        roster = Roster.from_bytes(made)
        require(roster.to_bytes() == made, "a roster is written in two ways")
        require(2 * roster.byzantine < roster.quorum <= len(roster.names), "a roster without a quorum")
        return True

    def identity(self, rng):
        own = self.world.identity
        made = [own.to_bytes(), own.roster.to_bytes(), StubModel(2).layout]
        at = rng.choice((0, 0, 0, 1, 2))
        made[at] = changed_json(rng, made[at])
        found = Identity.from_bytes(*made)
        require(found.digest == hashlib.sha256(made[0]).digest(), "an identity with another digest")
        require(found.roster.to_bytes() == made[1], "an identity with another roster")
        require(found.plan.scalars >= 1, "a plan of no scalars")
        return True

    def invitation(self, rng):
        invitation = self.world.settings.invitation(encoded(key_of("federator").public_key()))
        found = Settings.from_invitation(replace(invitation, settings=changed_json(rng, invitation.settings)))
        require(codec.size_limit(found.plan.scalars) >= codec.LIMIT, "a limit that is too low")
        require(found.roster == () and found.place >= -1, "a place that is none")
        require(0 <= found.seconds(3) <= max(found.longest, found.deadline), "a deadline that never comes")
        return True


# The campaign


def fuzz(messages, seed=0):
    """Feed so many mutants, and return how many there were of what; raise a `Violation` at the first that succeeds."""
    counts, done = Counter(), 0
    while done < messages:
        batch = min(BATCH, messages - done)
        asyncio.run(_batch(batch, f"{seed}-{done}", counts))
        done += batch
    return counts


async def _batch(messages, seed, counts):
    rng = random.Random(seed)  # noqa: S311
    world = World()
    if rng.random() < 0.5:
        imported = Memory()
        imported.adopt(exported_run(world.ledger, 3))
        world = World(imported)
    parsers = Parsers(world)
    up, down = ([data for _, data, _ in said] for said in (world.up, world.down))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(messages):
        began = time.process_time()
        try:
            _one(rng, world, up, down, counts)
            if number % 10 == 0:
                counts["parts"] += 1
                counts["parts taken"] += parsers.feed(rng)
        except Violation as violation:
            raise Violation(f"{violation} (mutant {number} of {seed})") from violation
        except Exception as error:
            raise Violation(f"{error!r} (mutant {number} of {seed})") from error
        require(time.process_time() - began < SECONDS, f"mutant {number} of {seed} takes too long")
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    require(grown < MEMORY, f"mutants of {seed} take {grown:,} bytes")


def _one(rng, world, up, down, counts):
    counts["messages"] += 1
    if rng.random() < 0.5:
        name, data, moment = rng.choice(world.up)
        data = mutant(rng, data, up)
        message = _decoded(codec.decode_from_client, data)
        name = rng.choice((name, name, name, *world.connections))
        world.at_federator(name, data, moment)
    else:
        name, data, moment = rng.choice(world.down)
        data = mutant(rng, data, down)
        message = _decoded(codec.decode_from_federator, data)
        if message is not None:
            world.at_member(name, message, moment)
    if message is not None:
        counts["decoded"] += 1
        counts[type(message).__name__] += 1


def _decoded(decode, data):
    try:
        message = decode(data, LIMIT)
    except RejectedMessage:
        return None
    check_message(message, data)
    return message


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    counts = fuzz(options.messages, options.seed)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = [f"{number:>10,} {what}" for what, number in counts.most_common()]
    share = counts["decoded"] / counts["messages"]
    lines.append(f"{time.perf_counter() - began:.0f} s, at most {most:.0f} MiB, {share:.1%} decode")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
