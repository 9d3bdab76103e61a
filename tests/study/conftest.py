import pytest
from tests.processes import CONTEXT

from cyber0.study import engines


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """Studies played in this process fork theirs from one with torch in memory; those of the command start new ones."""
    monkeypatch.setattr(engines, "get_context", lambda _: CONTEXT)
