import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.ledgers import PUBLIC, ROSTER, identity, parameters

from cyber0.commit import Commit
from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidIdentity
from cyber0.parameters import Parameters
from cyber0.protocol.identity import Identity, base_digest, layout_bytes
from cyber0.protocol.records import Decision, to_wire
from cyber0.protocol.roster import Roster, changes_from

ODD_FLOATS = st.floats(1e-20, 1e20)


@given(
    seed=st.integers(0, 2**64 - 1),
    lr=ODD_FLOATS,
    names=st.sets(st.text(min_size=1, max_size=100), min_size=3, max_size=3),
)
def test_an_identity_survives_its_bytes(seed, lr, names):
    run = Identity.of(Agreement(clients=3, byzantine=1, seed=seed, lr=lr), sorted(names), parameters())
    again = read(run)
    assert again == run
    assert again.digest == run.digest


def read(run, data=None):
    """Read an identity from bytes, with the roster and the layout that are kept beside it."""
    return Identity.from_bytes(data or run.to_bytes(), run.roster.to_bytes(), layout_bytes(run.layout))


def test_every_part_counts():
    run = identity()
    keys = (run.roster.keys[1], run.roster.keys[0], *run.roster.keys[2:])
    others = [
        identity(seed=1),
        identity(lr=0.2),
        identity(keep_votes=False),
        identity(bf16=True),
        identity(quorum=4),
        replace(run, roster=replace(run.roster, names=ROSTER[::-1])),
        replace(run, roster=replace(run.roster, keys=keys)),
        replace(run, roster=replace(run.roster, quorum=4)),
        replace(run, federator=PUBLIC["ann"]),
        replace(run, base="0" * 64),
        replace(run, meaning={"words": "1" * 64}),
        replace(run, semantics=run.semantics + 1),
    ]
    assert len({other.digest for other in [run, *others]}) == 13
    assert replace(run, layout=None).digest == run.digest  # its digest is there all the same


def test_the_bytes_are_canonical():
    for data in (identity().to_bytes(), identity().roster.to_bytes()):
        assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert "émile".encode() in identity().roster.to_bytes()


def first_version(**fields):
    """The fields of an identity as version 1 had it: with the roster's names and the layout in it."""
    run = identity()
    loaded = {
        key: json.loads(run.to_bytes())[key] for key in ("agreement", "base", "keep_votes", "manifest", "meaning")
    }
    return {**loaded, "layout": json.loads(layout_bytes(run.layout)), "roster": list(ROSTER), "protocol": 1, **fields}


def changed(fields=None, **changes):
    loaded = fields or json.loads(identity().to_bytes())
    for name, value in changes.items():
        if value is None:
            del loaded[name]
        else:
            loaded[name] = value
    return json.dumps(loaded, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def older(**changes):
    return changed(first_version(), **changes)


def agreement(**fields):
    return {**json.loads(identity().to_bytes())["agreement"], **fields}


NOT_AN_IDENTITY = [
    (b"\xff", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "names no protocol"),
    (changed(protocol=7), "protocol = 7: this version of cyber0 speaks protocol 2, and reads 1"),
    (changed(protocol=True), "protocol = True: this version of cyber0 speaks protocol 2"),
    (changed(protocol=1), "field 'layout' is missing"),
    (changed(colour="red"), "field 'colour' is unknown"),
    (changed(base=None), "field 'base' is missing"),
    (changed(base="abc"), "base = 'abc' must be the 64 hexadecimal digits"),
    (changed(manifest="1" * 64), "is not the digest of the layout"),
    (changed(keep_votes=1), "keep_votes = 1 must be true or false"),
    (changed(roster="1" * 64), "roster = 1+ is not the digest of the roster"),
    (changed(roster=list(ROSTER)), "is not the digest of the roster"),
    (changed(federator="red"), "cannot be used"),
    (changed(federator=7), "cannot be used"),
    (changed(semantics=0), "semantics = 0: this version of cyber0 knows 1 to 2"),
    (changed(semantics=3), "semantics = 3: this version of cyber0 knows 1 to 2"),
    (changed(semantics=True), "semantics = True: this version of cyber0 knows 1 to 2"),
    (changed(semantics="1"), "semantics = '1': this version of cyber0 knows 1 to 2"),
    (changed(meaning={"words": "red"}), "meaning of words = 'red' must be the 64 hexadecimal digits"),
    (changed(meaning=7), "cannot be used"),
    (changed(agreement=7), "cannot be used"),
    (changed(agreement=agreement(colour="red")), "unknown key 'colour'"),
    (changed(agreement=agreement(lr=-1.0)), "lr = -1.0"),
    (changed(agreement={"rounds": 5}), "but clients = 40"),
    (identity().to_bytes() + b" ", "canonical"),
    (older(manifest="1" * 64), "is not the digest of the layout"),
    (older(roster=["ann"]), "roster names 1 clients, but clients = 5"),
    (older(roster=["ann"] * 5), "'ann' is named twice"),
    (older(roster=[1, 2, 3, 4, 5]), "1 is no client's name, which is text"),
    (older(roster=7), "cannot be used"),
    (older(layout=[["w", [-1], "float32"]]), "is not a tensor"),
    (older(layout=[["w", [1], "int8"]]), "is not a tensor"),
    (older(layout=7), "cannot be used"),
    (older(meaning=[7]), "cannot be used"),
    (older(federator=""), "field 'federator' is unknown"),
    (older(config={"colour": "red"}), "field 'agreement' is unknown"),
    (older(agreement=None, meaning=None, config={"colour": "red"}), "unknown key 'colour'"),
    (older(roster=["ann", "bob", "cy", "dee", "@"]).replace(b"@", b"\\ud800"), "cannot be used"),
    (changed(first_version()) + b" ", "canonical"),
]


@pytest.mark.parametrize(("data", "message"), NOT_AN_IDENTITY, ids=[message for _, message in NOT_AN_IDENTITY])
def test_what_is_not_an_identity(data, message):
    run = identity()
    with pytest.raises(InvalidIdentity, match=message):
        read(run, data)


def rostered(**fields):
    loaded = {**json.loads(identity().roster.to_bytes()), **fields}
    return json.dumps(loaded, sort_keys=True, separators=(",", ":")).encode()


NOT_A_ROSTER = [
    (b"", "the roster cannot be read"),
    (b"[]", "the roster cannot be read"),
    (b"[" * 100_000, "the roster cannot be read"),
    (rostered(clients=[["ann", ""]] * 5), "'ann' is named twice"),
    (rostered(clients=[["ann", "ff"], ["bob", "ff"], ["cy", ""]]), "ann and bob have the same key"),
    (rostered(clients=[["", ""]] * 5), "'' is no client's name"),
    (rostered(clients=[["x" * 101, ""]] * 5), "is no client's name"),
    (rostered(clients=[["ann", "red"]]), "the roster cannot be read"),
    (rostered(clients=[["\ud800", ""], ["bob", ""], ["cy", ""]]), "the roster cannot be read"),
    (rostered(clients=["ann"]), "the roster cannot be read"),
    (rostered(clients=7), "the roster cannot be read"),
    (rostered(byzantine=3), "byzantine = 3 of 5 clients: fewer than half may lie"),
    (rostered(byzantine=-1), "byzantine = -1 of 5 clients"),
    (rostered(byzantine=1.0), "must be integers"),
    (rostered(quorum=2), r"quorum = 2 of 5 clients: it must be from 3 \(more than 2 x byzantine\) to 5"),
    (rostered(quorum=6), "quorum = 6 of 5 clients"),
    (rostered(rounds=0), "rounds = 0: it must be from 1 to 4294967294"),
    (rostered(rounds=2**32 - 1), "rounds = 4294967295: it must be from 1 to"),
    (rostered(pending=[["promote", "ann", "", 0, ""]]), "a change of the roster cannot be read"),
    (rostered(pending=[["revoke", "ann"]]), "a change of the roster cannot be read"),
    (rostered(colour="red"), "canonical"),
    (identity().roster.to_bytes() + b" ", "canonical"),
]


@pytest.mark.parametrize(("data", "message"), NOT_A_ROSTER, ids=[message for _, message in NOT_A_ROSTER])
def test_what_is_not_a_roster(data, message):
    with pytest.raises(InvalidIdentity, match=message):
        Roster.from_bytes(data)


@pytest.mark.parametrize(
    "data",
    [b"{}", b"7", b"[7]", b'[["revoke","ann","",0,""]] ', b'[["revoke","\\ud800","",0,""]]', b"[" * 100_000],
    ids=["no list", "number", "no change", "space", "no text", "deep"],
)
def test_what_are_no_changes_of_a_roster(data):
    with pytest.raises(InvalidIdentity, match=r"cannot be read|canonical"):
        changes_from(data)


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
    again = read(identity(), old)
    assert again.agreement.mu == Agreement().mu
    assert again.to_bytes() == old
    assert again.digest == hashlib.sha256(old).digest() != identity().digest


def test_of_a_whole_configuration_only_the_agreement_is_taken():
    config = RunConfig(clients=3, byzantine=1, attack="foe", device="cpu")
    parameters = Parameters({"w": np.zeros(3, dtype=np.float32)})
    made, expected = (Identity.of(agreed, ["ann", "bob", "cy"], parameters) for agreed in (config, config.agreement))
    assert made == expected
    assert read(made) == made
