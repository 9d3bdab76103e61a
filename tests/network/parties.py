"""Real federators and clients in processes of their own, forked from one that has torch in memory."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests import processes

from cyber0.config import RunConfig
from cyber0.files import write_atomically
from cyber0.network.control import Control
from cyber0.network.local_model import LocalModel
from cyber0.network.server import Federator
from cyber0.network.session import run_client
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import private_key
from cyber0.protocol.sqlite import File

PATIENCE = 120.0  # seconds until a test that hangs has failed
SMALL = {"source": "embedded", "clients": 4, "byzantine": 1, "directions": 4, "batch": 16, "device": "cpu"}


def recipe(**changes):
    return RunConfig(**{**SMALL, **changes})


def deal(config):
    """The partition of a simulation, as what a client deals itself its share by."""
    return config.partition if config.alpha is None else f"{config.partition}(alpha={config.alpha})"


def local_model(config, place, task):
    return LocalModel(config.agreement, place, task, "cpu", deal(config))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def federate(settings, ledger, port, linger):
    asyncio.run(_federate(settings, ledger, port, linger))


async def _federate(settings, ledger, port, linger):
    with File(ledger) as file:
        federator = Federator(settings, file, linger=linger)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, federator.stop, "told to")
        await federator.start(f"127.0.0.1:{port}")
        control = Control(federator, ledger)
        assert not await control.open()
        await federator.over.wait()
        await control.close()
        await federator.close()


def participate(port, name, result, options):
    if "key" in options:
        options["key"] = private_key(options["key"])
    outcome = run_client(f"127.0.0.1:{port}", name, device="cpu", **options)
    write_atomically(result, json.dumps({"rounds": outcome.rounds, "fingerprint": outcome.fingerprint}))


class Parties:
    """A federation of processes in a folder: start them, kill them, start them again."""

    def __init__(self, folder: Path, config, linger=0.0, **waits):
        self.folder, self.linger, self.port = folder, linger, free_port()
        self.settings = Settings.of(config, deadline=waits.pop("deadline", 3.0), **waits)
        self.ledger, self.deal = folder / "run.ledger", deal(config)
        self.processes, self.options = {}, {}

    @property
    def roster(self):
        return self.settings.roster

    def federator(self):
        self._start("federator", federate, self.settings, self.ledger, self.port, self.linger)

    def client(self, name, **options):
        data = {"source": "embedded", "deal": self.deal}
        self.options[name] = options = {"state": self.folder / "state", **data, **options}
        self._start(name, participate, self.port, name, self.folder / f"{name}.json", options)

    def again(self, name):
        if name == "federator":
            self.federator()
        else:
            self.client(name, **self.options[name])

    def _start(self, name, target, *arguments):
        self.processes[name] = processes.call(target, *arguments)

    def kill(self, name):
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def wait(self, *names):
        for name in names:
            status = self.processes[name].wait(PATIENCE)
            assert status == 0, f"{name} ended with {status}"

    def pause(self, seconds):
        """Let all go on for a while: until a time has passed, or the federator ended."""
        with suppress(subprocess.TimeoutExpired):
            self.processes["federator"].wait(seconds)

    def listening(self):
        """Return once the federator can be reached."""
        for _ in range(10_000):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                self.pause(0.01)
        raise AssertionError("the federator does not listen")

    def stop(self, name="federator"):
        self.listening()
        os.kill(self.processes[name].pid, signal.SIGTERM)
        self.wait(name)

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def outcome(self, name):
        return json.loads((self.folder / f"{name}.json").read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
