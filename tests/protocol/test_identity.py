import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.ledgers import ROSTER, identity, parameters

from cyber0.commit import Commit
from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidIdentity
from cyber0.parameters import Parameters
from cyber0.protocol.identity import Identity, base_digest
from cyber0.protocol.records import Decision, to_wire

ODD_FLOATS = st.floats(1e-20, 1e20)


@given(seed=st.integers(0, 2**64 - 1), lr=ODD_FLOATS, names=st.sets(st.text(min_size=1), min_size=3, max_size=3))
def test_an_identity_survives_its_bytes(seed, lr, names):
    run = Identity.of(Agreement(clients=3, byzantine=1, seed=seed, lr=lr), sorted(names), parameters())
    again = Identity.from_bytes(run.to_bytes())
    assert again == run
    assert again.digest == run.digest


def test_every_part_counts():
    run = identity()
    others = [
        identity(seed=1),
        identity(lr=0.2),
        identity(keep_votes=False),
        identity(bf16=True),
        replace(run, roster=ROSTER[::-1]),
        replace(run, base="0" * 64),
        replace(run, layout=None),
        replace(run, meaning={"words": "1" * 64}),
    ]
    assert len({other.digest for other in [run, *others]}) == 9


def test_the_bytes_are_canonical():
    data = identity().to_bytes()
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert "émile".encode() in data


def changed(**fields):
    loaded = json.loads(identity().to_bytes())
    for name, value in fields.items():
        if value is None:
            del loaded[name]
        else:
            loaded[name] = value
    return json.dumps(loaded, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def agreement(**fields):
    return {**json.loads(identity().to_bytes())["agreement"], **fields}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "names no protocol"),
        (changed(protocol=7), "protocol = 7: this version of cyber0 speaks protocol 1"),
        (changed(colour="red"), "field 'colour' is unknown"),
        (changed(base=None), "field 'base' is missing"),
        (changed(base="abc"), "base = 'abc' must be the 64 hexadecimal digits"),
        (changed(manifest="1" * 64), "is not the digest of the layout"),
        (changed(keep_votes=1), "keep_votes = 1 must be true or false"),
        (changed(roster=["ann"]), "roster names 1 clients, but clients = 5"),
        (changed(roster=["ann"] * 5), "'ann' is named twice"),
        (changed(roster=[1, 2, 3, 4, 5]), "a client's name is text"),
        (changed(layout=[["w", [-1], "float32"]]), "is not a tensor"),
        (changed(layout=[["w", [1], "int8"]]), "is not a tensor"),
        (changed(layout=7), "cannot be used"),
        (changed(meaning={"words": "red"}), "meaning of words = 'red' must be the 64 hexadecimal digits"),
        (changed(config={"colour": "red"}), "field 'agreement' is unknown"),
        (changed(agreement=None, meaning=None, config={"colour": "red"}), "unknown key 'colour'"),
        (changed(agreement=agreement(colour="red")), "unknown key 'colour'"),
        (changed(agreement=agreement(lr=-1.0)), "lr = -1.0"),
        (changed(agreement={"rounds": 5}), "but clients = 40"),
        (changed(roster=["ann", "bob", "cy", "dee", "@"]).replace(b"@", b"\\ud800"), "cannot be used"),
        (identity().to_bytes() + b" ", "canonical"),
    ],
)
def test_what_is_not_an_identity(data, message):
    with pytest.raises(InvalidIdentity, match=message):
        Identity.from_bytes(data)


def test_the_base_is_that_of_its_bits_wherever_they_live():
    arrays = parameters(bf16=True)
    tensors = {
        "weight": torch.from_numpy(arrays.tensors["weight"].view(np.int16)).view(torch.bfloat16),
        "bias": torch.from_numpy(arrays.tensors["bias"]),
    }
    digest = base_digest(arrays)
    assert base_digest(Parameters(tensors)) == digest
    arrays.tensors["bias"][3] = np.nextafter(arrays.tensors["bias"][3], np.float32(9))
    assert base_digest(arrays) != digest


@pytest.mark.parametrize("scheme", ["unbiased", "biased", "compressed"])
def test_a_decision_is_a_commit(scheme):
    run = identity(scheme=scheme, local_epochs=2, seed=9)
    scalars = np.arange(run.plan.scalars, dtype=np.float32).reshape(run.plan.rows, -1)
    commit = run.commit(Decision(4, to_wire(scalars), ()))
    assert isinstance(commit, Commit)
    assert commit == run.plan.commit(4, scalars)


def test_an_identity_older_than_a_key_keeps_its_digest():
    old = changed(agreement={key: value for key, value in agreement().items() if key != "mu"})
    read = Identity.from_bytes(old)
    assert read.agreement.mu == Agreement().mu
    assert read.to_bytes() == old
    assert read.digest == hashlib.sha256(old).digest() != identity().digest


def test_of_a_whole_configuration_only_the_agreement_is_taken():
    config = RunConfig(clients=3, byzantine=1, attack="foe", device="cpu")
    parameters = Parameters({"w": np.zeros(3, dtype=np.float32)})
    made, expected = (Identity.of(agreed, ["ann", "bob", "cy"], parameters) for agreed in (config, config.agreement))
    assert made == expected
    assert Identity.from_bytes(made.to_bytes()) == made
