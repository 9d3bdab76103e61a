"""The settings of a federation."""

import sys

import pytest

from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig, UnknownName
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings


def settings(rule, **changes):
    return Settings.of(RunConfig(clients=3, byzantine=1, rule=rule, **changes))


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        (["geometric-median", "geometric_median"], "geometric_median"),
        (["trimmed_mean", "trimmed-mean", "cwtm"], "cwtm"),
        (["nnm+trimmed_mean", "nnm+cwtm"], "nnm+cwtm"),
        (["krum( power = 1 )", "krum(power=1)"], "krum(power=1)"),
    ],
)
def test_all_spellings_of_a_rule_are_one_run(spellings, name):
    digests = {settings(rule).identity(bytes(32), bytes(32)).digest for rule in spellings}
    assert len(digests) == 1
    assert {settings(rule).agreement.rule for rule in spellings} == {name}


def test_a_rule_of_the_users_is_not_imported_for_its_name(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("raise RuntimeError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for rule in ("never_imported:rule", "nnm+never_imported:rule"):
        assert settings(rule).agreement.rule == rule
    assert "never_imported" not in sys.modules


def test_an_unknown_rule_is_named():
    with pytest.raises(UnknownName, match="unknown rule 'cwtn'"):
        settings("cwtn")


def test_a_ledger_of_another_spelling_is_continued_as_it_was_written():
    written = Settings(Agreement(clients=3, byzantine=1, rule="geometric-median"), ("client-0", "client-1", "client-2"))
    ledger = Memory()
    ledger.found(written.identity(bytes(32), bytes(32)))
    asked = settings("geometric_median")
    assert Settings.of_ledger(ledger, asked).agreement == written.agreement
    with pytest.raises(InvalidConfig, match="rule is 'geometric-median', not 'median'"):
        Settings.of_ledger(ledger, settings("median"))
