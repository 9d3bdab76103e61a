"""Small runs, played by clients whose votes are random numbers."""

import hashlib
from dataclasses import replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cyber0 import aggregation
from cyber0.config import Agreement
from cyber0.directions import DirectionKey, sample
from cyber0.parameters import Parameters
from cyber0.protocol.chain import Seal, advance, done_statement, genesis, link_statement, vote_statement
from cyber0.protocol.decide import decide
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Report
from cyber0.protocol.records import Ballot, Decision, to_wire
from cyber0.protocol.signing import encoded, sign

ROSTER = ("ann", "bob", "cy", "dee", "émile")
KEYS = {  # Ed25519: it gives the same signature of the same statement again
    name: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
    for name in (*ROSTER, "fay", "gus", "ann's second", "ann's third", "bob's second", "federator")
}
PUBLIC = {name: encoded(key.public_key()) for name, key in KEYS.items()}
OWNERS = {public: KEYS[name] for name, public in PUBLIC.items()}


def parameters(*, bf16=False):
    """Weights of two tensors from the stream, one of them bf16 where asked."""
    weight, bias = (sample(DirectionKey(5, 0, index=i), size) for i, size in enumerate((60, 7)))
    if bf16:
        weight = (weight.view(np.uint32) >> 16).astype(np.uint16)
    return Parameters({"weight": weight.reshape(12, 5), "bias": bias})


def identity(*, keep_votes=True, bf16=False, signs=True, **options):
    """A run whose votes and links are signed; otherwise one as a simulation has it."""
    defaults = {"clients": 5, "byzantine": 1, "directions": 3, "rule": "nnm+cwtm", "rounds": 100, "lr": 0.1}
    whose = {"keys": {name: PUBLIC[name] for name in ROSTER}, "federator": PUBLIC["federator"]} if signs else {}
    agreement = Agreement(**{**defaults, **options})
    return Identity.of(agreement, ROSTER, parameters(bf16=bf16), keep_votes=keep_votes, **whose)


def ballot(run, roster, link, round, client, verdict, values, reason=""):
    """A ballot, signed with the key that its client has on the roster."""
    statement = vote_statement(run.digest, round, link, hashlib.sha256(values).digest())
    signature = sign(OWNERS[roster.key(client)], statement) if run.signs else b""
    return Ballot.of(client, verdict, values, reason, signature)


def decisions(run, rounds, *, seed=1, changes=None, fork=None):
    """Rounds as a federator decides them: now and then a client is late or sends nonsense.

    `changes` are those of the roster, by round. From the round `fork` on all clients cast other votes.
    """
    rng = np.random.default_rng(seed)
    rule, plan, roster = aggregation.get_rule(run.agreement.rule, run.semantics), run.plan, run.roster
    memory, head, previous = aggregation.begin(rule), genesis(run.digest), b""
    for t in range(rounds):
        rng = np.random.default_rng(99) if t == fork else rng
        names = roster.names
        votes = rng.normal(size=(plan.rows, len(names), plan.directions)).astype(np.float32)
        wires = [to_wire(votes[:, place]) for place in range(len(names))]
        odd = t % len(names)
        cast, counted = [], []
        for place, (name, wire) in enumerate(zip(names, wires, strict=True)):
            here = (run, roster, head.link, t, name)
            if t % 6 == 5 and place == (t - 1) % len(names):
                cast.append(ballot(run, roster, previous, t - 1, name, "late", wire, f"round {t - 1} is decided"))
            if t % 3 == 0 and place == odd:
                cast.append(ballot(*here, "rejected", wire, "it came from another run"))
            elif t % 6 == 1 and place == odd:
                cast.append(ballot(*here, "rejected", b"xyz", "too short").without_values())
            elif not (t % 6 == 4 and place == odd):  # its vote comes too late
                cast.append(ballot(*here, "counted", wire))
                counted.append(place)
        scalars = decide(rule, votes[:, counted], roster.byzantine, memory)
        memory = aggregation.after(rule, memory, scalars)
        decision = Decision(t, to_wire(scalars), tuple(cast), (changes or {}).get(t, ()))
        roster, previous = roster.after(decision.changes), head.link
        head = advance(head, decision, roster)
        yield decision


def append(ledger, decision, key=KEYS["federator"]):
    """Append a round with the federator's signature of the link after it, where the run has one."""
    run = ledger.identity
    head = advance(ledger.head, decision, ledger.roster.after(decision.changes))
    statement = link_statement(run.digest, head.rounds, head.link)
    return ledger.append(decision, sign(key, statement) if run.signs else b"")


def fill(ledger, run, rounds, *, seed=1, changes=None):
    """Found a run and append rounds to it; returns the last head."""
    ledger.found(run)
    for decision in decisions(run, rounds, seed=seed, changes=changes):
        append(ledger, decision)
    return ledger.head


def sealed(ledger, fingerprint=None):
    """Seal the head of a ledger with the federator's signature."""
    seal = Seal.of(ledger.head, fingerprint)
    ledger.seal(replace(seal, signature=sign(KEYS["federator"], seal.statement(ledger.identity.digest))))


def reported(ledger, *names, fingerprint=7):
    """Let clients sign that they hold the last link of a ledger."""
    run, head, roster = ledger.identity, ledger.head, ledger.roster.in_force()
    statement = done_statement(run.digest, head.rounds, head.link, fingerprint)
    for name in names:
        ledger.report(Report(name, head.rounds, fingerprint, sign(OWNERS[roster.key(name)], statement)))
