"""Small runs, played by clients whose votes are random numbers."""

import numpy as np

from cyber0 import aggregation
from cyber0.config import Agreement
from cyber0.directions import DirectionKey, sample
from cyber0.parameters import Parameters
from cyber0.protocol.decide import decide
from cyber0.protocol.identity import Identity
from cyber0.protocol.records import Ballot, Decision, to_wire

ROSTER = ("ann", "bob", "cy", "dee", "émile")


def parameters(*, bf16=False):
    """Weights of two tensors from the stream, one of them bf16 where asked."""
    weight, bias = (sample(DirectionKey(5, 0, index=i), size) for i, size in enumerate((60, 7)))
    if bf16:
        weight = (weight.view(np.uint32) >> 16).astype(np.uint16)
    return Parameters({"weight": weight.reshape(12, 5), "bias": bias})


def identity(*, keep_votes=True, bf16=False, **options):
    defaults = {"clients": 5, "byzantine": 1, "directions": 3, "rule": "nnm+cwtm", "rounds": 100, "lr": 0.1}
    return Identity.of(Agreement(**{**defaults, **options}), ROSTER, parameters(bf16=bf16), keep_votes=keep_votes)


def decisions(run, rounds, *, seed=1):
    """Rounds as a federator decides them: now and then a client is late, tells two stories or sends nonsense."""
    rng = np.random.default_rng(seed)
    rule, plan = aggregation.get_rule(run.agreement.rule), run.plan
    memory = aggregation.begin(rule)
    for t in range(rounds):
        votes = rng.normal(size=(plan.rows, 5, plan.directions)).astype(np.float32)
        wires = [to_wire(votes[:, place]) for place in range(5)]
        ballots = [Ballot.of(client, "counted", wire) for client, wire in zip(ROSTER, wires, strict=True)]
        odd = t % 5
        if t % 3 == 0:
            ballots[odd] = Ballot.of(ROSTER[odd], "rejected", wires[odd], "it came from another run")
        elif t % 3 == 1:
            ballots[odd] = Ballot.of(ROSTER[odd], "rejected", b"xyz", "too short").without_values()
        counted = [place for place in range(5) if ballots[place].verdict == "counted"]
        scalars = decide(rule, votes[:, counted], run.agreement.byzantine, memory)
        memory = aggregation.after(rule, memory, scalars)
        yield Decision(t, to_wire(scalars), tuple(ballots))


def fill(ledger, run, rounds, *, seed=1):
    """Found a run and append rounds to it; returns the last head."""
    ledger.found(run)
    for decision in decisions(run, rounds, seed=seed):
        ledger.append(decision)
    return ledger.head
