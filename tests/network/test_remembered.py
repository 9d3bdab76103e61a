"""A federator that is started again goes on as it was told before, unless it is told otherwise."""

import signal

import pytest
from tests.network.parties import free_port
from tests.network.test_commands import RUN, command, join, until

from cyber0.errors import InvalidConfig, InvalidLedger
from cyber0.network.remembered import asked_before, serving
from cyber0.protocol.sqlite import File


def served(ledger, address, *options, said):
    """Serve until all sentences were said, then stop."""
    federator = command("serve", "--ledger", ledger, "--listen", address, *options, fresh=False)
    for text in said:
        until(federator, text)
    federator.send_signal(signal.SIGTERM)
    out, _ = federator.communicate()
    assert federator.returncode == 0, out


def test_a_restart_takes_its_options_from_the_ledger(tmp_path):
    ledger, address = tmp_path / "run.ledger", f"127.0.0.1:{free_port()}"
    run = (*RUN, "--rounds", "20", "--deadline", "2", "--linger", "0.5", "--evaluate-every", "4")
    served(ledger, address, *run, said=["listening at"])
    kept = "as before: deadline 2, patience 2, linger 0.5, fingerprint_every 100, evaluate_every 4"
    served(ledger, address, said=[kept, "the run that was asked for before is not founded yet: this is it"])
    changed = "changed: deadline 3, which was 2"
    served(ledger, address, "--deadline", "3", said=["as before: patience 2", changed])
    with File(ledger, read_only=True) as file:
        assert not file.founded
        asked = asked_before(file)
        assert (asked.agreement.clients, asked.agreement.rounds, asked.agreement.directions) == (3, 20, 4)
    federator = command("serve", "--ledger", ledger, "--listen", address, fresh=False)
    until(federator, "as before: deadline 3")
    clients = [join(address, f"client-{number}", tmp_path, fresh=False) for number in range(3)]
    assert [client.communicate() and client.returncode for client in clients] == [0, 0, 0]
    out, _ = federator.communicate()
    assert federator.returncode == 0, out
    with File(ledger, read_only=True) as file:
        assert file.head.rounds == 20
        assert serving(file, {})[0]["deadline"] == 3.0


def test_what_was_asked_for_anew_takes_the_place_of_a_run_that_was_not_founded(tmp_path):
    ledger, address = tmp_path / "run.ledger", f"127.0.0.1:{free_port()}"
    served(ledger, address, *RUN, "--rounds", "20", said=["listening at"])
    served(ledger, address, *RUN, "--rounds", "30", said=["listening at"])
    with File(ledger, read_only=True) as file:
        assert asked_before(file).agreement.rounds == 30


@pytest.mark.parametrize(
    "settings",
    [{"deadline": "soon"}, {"deadline": -1}, {"patience": True}, {"fingerprint_every": 0.5}, {"asked": {"roster": 7}}],
)
def test_settings_that_were_damaged_are_refused(tmp_path, settings):
    with File(tmp_path / "run.ledger") as ledger:
        ledger.remember(settings)
        with pytest.raises((InvalidLedger, InvalidConfig)):
            serving(ledger, {}), asked_before(ledger)
