"""Twelve seconds of a storm in which everything happens at once: every law holds at its end.

`python -m tests.storm --minutes 30` plays a long one.
"""

from tests.storm import play


def test_every_law_holds_after_a_storm(tmp_path):
    found = play(tmp_path, seconds=12.0, seed=7, first=["kill_federator", "kill", "cut", "backup", "freeze", "restore"])
    assert found["broken laws"] == []
    assert found["happened"]["restores"] == 1
    assert found["page"]["federators shown"] >= 2
