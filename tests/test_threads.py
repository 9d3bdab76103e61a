import threading

import pytest

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
