"""A full disk on a client is a sentence, and nothing that is left behind is in the way when there is room again."""

import subprocess

import pytest
from tests import processes
from tests.network.parties import PATIENCE, free_port

from cyber0.protocol.signing import key_beside

RUN = ["--clients", "1", "--byzantine", "0", "--directions", "512", "--batch", "1", "--rounds", "3", "--linger", "600"]
BACK = "come back with the same command: the state is in"


@pytest.fixture
def join(tmp_path):
    """The outcome of a `cyber0 join` where no file may grow over a size; a federator waits for it."""
    address = f"127.0.0.1:{free_port()}"
    words = ["serve", "--ledger", tmp_path / "run.ledger", "--listen", address, *RUN]
    federator = processes.Popen(processes.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def join(largest_file, *more):
        words = ["join", address, "--name", "client-0", "--state", tmp_path / "state", "--device", "cpu"]
        words += ["--source", "embedded", "--give-up", PATIENCE, *more]
        done = processes.run(processes.command(*words, largest_file=largest_file), capture_output=True)
        assert "Traceback" not in done.stdout + done.stderr
        return done

    try:
        assert any("listening at" in line for line in federator.stdout)
        yield join
    finally:
        federator.kill()
        federator.communicate()


def test_a_client_says_what_it_cannot_write_and_comes_back(join, tmp_path):
    done = join(100)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("cyber0: cannot write the key")
    assert f"key.pem: File too large; {BACK} {tmp_path / 'state'}\n" in done.stderr
    key = tmp_path / "key.pem"
    key_beside(key)
    for largest_file, what in ((600, "run.json: File too large"), (2000, "votes: No space left on device")):
        done = join(largest_file, "--key", key)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"{what}; {BACK}" in done.stderr
    assert not (tmp_path / "key.pem-runs").exists()  # no vote of this key was sent

    done = join(8000, "--key", key, "--out", tmp_path / "model.safetensors")  # weights cannot be stored: it votes on
    assert "weights.safetensors: File too large: this client goes on, and would replay more after" in done.stdout
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"cannot write {tmp_path / 'model.safetensors'}: File too large; {BACK}" in done.stderr
    assert not list(tmp_path.glob("model.safetensors*"))

    done = join(None, "--key", key, "--out", "/dev/full")
    (kept,) = (tmp_path / "state").glob("*/weights.safetensors")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"cannot write /dev/full: No space left on device; the same weights are in {kept}; {BACK}" in done.stderr

    done = join(None, "--key", key, "--out", tmp_path / "model.safetensors")
    assert (done.returncode, done.stderr) == (0, "")
    assert "rounds           3\n" in done.stdout
