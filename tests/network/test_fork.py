"""`cyber0 ledger fork`, as people use it: the clients of a run join the one that goes back."""

from tests import processes
from tests.network.parties import free_port
from tests.network.test_commands import RUN, command, join, until

from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import base, rebuild

ROUNDS, BACK = 30, 10


def cyber0(*words):
    done = processes.run(processes.command(*words), capture_output=True)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def play(ledger, address, folder, *options):
    """Serve a run to its end, with all clients; return what each says at its end."""
    federator = command("serve", "--ledger", ledger, "--listen", address, *options, fresh=False)
    until(federator, "listening at")
    clients = [join(address, f"client-{number}", folder, fresh=False) for number in range(3)]
    outs = [client.communicate()[0] for client in clients]
    assert [client.returncode for client in clients] == [0, 0, 0], outs
    out, _ = federator.communicate()
    assert federator.returncode == 0, out
    return outs


def test_clients_join_a_run_that_goes_back_and_keep_what_they_have_of_the_old_one(tmp_path):
    old, new, address = tmp_path / "old.ledger", tmp_path / "new.ledger", f"127.0.0.1:{free_port()}"
    play(old, address, tmp_path, *RUN, "--rounds", ROUNDS, "--deadline", "7")
    before = {path: path.read_bytes() for path in (tmp_path / "state").rglob("run.json")}
    code, said = cyber0("ledger", "fork", old, new, "--round", BACK, "--rounds", ROUNDS + 5)
    assert code == 0, said
    with File(old, read_only=True) as ledger:
        digest, commits = ledger.identity.digest.hex(), ledger.commits(0, BACK)
    assert f"the first {BACK} rounds of run {digest}" in said
    outs = play(new, address, tmp_path)
    assert all(f"the first {BACK} rounds of run {digest}" in out for out in outs)  # it is among the terms
    assert all(path.read_bytes() == data for path, data in before.items())
    with File(new, read_only=True) as ledger:
        report = verify(ledger)
        assert (report.findings, report.head.rounds, report.missing) == ([], ROUNDS + 5, BACK)
        assert ledger.commits(0, BACK) == commits
        assert ledger.settings["deadline"] == 7.0
        mark = f"{rebuild(ledger, base(ledger.identity, None)[1]):016x}"
    assert all(mark in out for out in outs)
    assert digest in cyber0("ledger", "show", new)[1]
    code, said = cyber0("ledger", "fork", old, new)
    assert (code, said) == (1, f"cyber0: {new} exists: name a new file\n")
    code, said = cyber0("ledger", "fork", old, tmp_path / "other", "--round", ROUNDS + 1)
    assert code == 1
    assert not list(tmp_path.glob("other*"))
