"""A rule whose bits change stays executable as it was: ledgers that began with it are verified and continued so."""

from dataclasses import replace

import numpy as np
import pytest
from tests.protocol.bench import ROSTER, Bench, identity, settings
from tests.protocol.ledgers import append, decisions
from tests.protocol.ledgers import identity as signed_run

from cyber0.aggregation import get_rule, is_ours, registry
from cyber0.errors import InvalidIdentity
from cyber0.protocol import identity as identities
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings
from cyber0.protocol.state import restored
from cyber0.protocol.verify import verify


def first_of_all(vectors, _byzantine):
    """What the median was, let us say, in version 1."""
    return vectors[..., 0, :]


def sum_of_all(vectors, _byzantine):
    """And in version 2."""
    return vectors.sum(axis=-2)


@pytest.fixture
def third(monkeypatch):
    """A library in whose third version of semantics the median is as today."""
    for module in (registry, identities):
        monkeypatch.setattr(module, "SEMANTICS", 3)
    monkeypatch.setattr(registry, "OLDER", {1: {"median": first_of_all}, 2: {"median": sum_of_all}})


VOTES = np.array([[5.0], [1.0], [2.0]])
RESULTS = {1: 5.0, 2: 8.0, 3: 2.0}


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize("version", RESULTS)
def test_each_version_runs_its_own_rule(version):
    rule = get_rule("median", version)
    assert rule(VOTES, 1).tolist() == [RESULTS[version]]
    assert is_ours(rule)
    assert get_rule("cwtm", version)(VOTES, 1).tolist() == [2.0]  # one that never changed
    assert get_rule("clip(radius=100.0)+median", version)(VOTES, 1).tolist() == [RESULTS[version]]


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize("version", RESULTS)
def test_a_ledger_is_verified_by_the_rule_of_its_version(version):
    run = replace(signed_run(rule="median"), semantics=version)
    ledger = Memory()
    ledger.found(run)
    for decision in decisions(run, 3):
        append(ledger, decision)
    assert (verify(ledger).findings, verify(ledger).aggregates) == ([], 3)
    for other in RESULTS.keys() - {version}:
        renamed = Memory()
        renamed.found(replace(run, semantics=other))
        for decision in decisions(replace(run, semantics=other), 3):
            append(renamed, replace(decision, scalars=next(ledger.decisions(decision.round)).scalars))
        assert verify(renamed).findings[0].startswith("round ")


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize("asked", [True, False], ids=["asked again", "as it is"])
@pytest.mark.parametrize("version", RESULTS)
def test_a_run_is_continued_by_the_rule_of_its_version(version, asked):
    agreed, ledger = settings(), Memory()
    ledger.found(replace(identity(agreed), semantics=version))
    found = Settings.of_ledger(ledger, agreed if asked else None)
    assert found.semantics == version
    machine = Bench(restored(found, ledger))
    machine.come(*ROSTER)
    for name, value in zip(ROSTER, [5.0, 1.0, 2.0, 3.0], strict=True):
        machine.vote(name, value)
    assert machine.commits == [{1: 5.0, 2: 11.0, 3: 2.5}[version]]
    assert found.identity(bytes(32), bytes(32)).semantics == version


def test_a_version_that_is_not_known_here_is_refused():
    run = replace(signed_run(), semantics=registry.SEMANTICS + 1)
    with pytest.raises(InvalidIdentity, match="semantics = 3: this version of cyber0 knows 1 to 2"):
        Identity.from_bytes(run.to_bytes(), run.roster.to_bytes())
