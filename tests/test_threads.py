import threading

import pytest
from typer.testing import CliRunner

from cyber0 import threads
from cyber0.cli import app
from cyber0.threads import run_in_threads


def test_no_work_is_left_running():
    """Also when one fails: what the others write to may be freed next."""
    running, started = [], threading.Event()

    def slow():
        running.append(1)
        started.wait(5)
        running.pop()

    def fails():
        started.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_threads(2, [slow, fails, slow])
    assert not running


def test_a_process_takes_its_share_of_the_cores_unless_it_was_told(monkeypatch):
    monkeypatch.setattr(threads, "_most", None)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads.share_of_cores(processes) for processes in (1, 3, 4, 40)] == [8, 2, 2, 1]
    threads.limit_threads(3)
    assert threads.cores() == 3
    threads.limit_threads(99)
    assert threads.cores() == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads.share_of_cores(4) is None


def test_a_client_beside_its_federator_computes_on_its_share_and_one_far_away_on_all(monkeypatch):
    asked = []

    def stop(*_, threads, **__):
        asked.append([threads(clients) for clients in (1, 2, 40)])
        raise KeyboardInterrupt

    monkeypatch.setattr("cyber0.cli.join.run_client", stop)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for address, more in (("127.0.0.1:1", ()), ("192.0.2.7:1", ("--insecure",)), ("127.0.0.1:1", ("--threads", "3"))):
        CliRunner().invoke(app, ["join", address, "--name", "ann", *more])
    assert asked == [[8, 4, 1], [None, None, None], [3, 3, 3]]
