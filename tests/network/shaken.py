"""A federation of real processes, over TLS and with its live page, to which things can be done while it goes on."""

import heapq
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests import processes
from tests.network.weather import Links, Strangers, Viewer, quiet_port

from cyber0.network.enrolment import install, request, sign
from cyber0.network.keys import init

HONEST = ("ann", "bob", "carol", "dan", "emma", "finn", "gil")
LIARS = ("mal", "nat")
SPARE = "spare"
LIES = ("sf", "nan", "equivocate", "stale", "flood")
FAR = ("carol", "dan", "emma")  # behind links that break
OPTIONS = {
    "ann": ("--audit", "1", "--accept-lost"),
    "bob": ("--audit", "0"),
    "carol": ("--evaluate",),
    SPARE: ("--index", "0"),
}
RUN = ("--clients", "9", "--byzantine", "2", "--rule", "cwtm", "--directions", "4", "--batch", "8")
PACE = ("--deadline", "10", "--linger", "3600", "--fingerprint-every", "50", "--evaluate-every", "500")
PATIENCE = 240.0  # seconds after which something that should have happened counts as a failure
ROUNDS = 100  # at first


class Federation:
    """A federator and nine clients in a folder, two of which lie; `happened` counts what happens to them.

    Args:
        folder: Where everything is.
        seed: Of what is drawn.
        ahead: Seconds by which the run is extended before its end, as long as it is to go on.

    """

    def __init__(self, folder, seed=0, ahead=12.0):
        self.folder, self.ahead, self.rng = folder, ahead, random.Random(f"a long storm {seed}")  # noqa: S311
        self.ledger, self.keys, self.copies = folder / "run.ledger", folder / "keys", []
        self.port, self.happened, self.faults = quiet_port(), Counter(), []
        self.processes, self.agenda, self.gone = {}, [], set()  # gone: killed or frozen, and to come back
        self.lies, self.turns, self.kills, self.memory = {}, [], [], []
        self.lives, self.spare, self.spares = 0, None, 0
        self.extending, self.extended_at = None, 0.0
        self.links, self.strangers = Links(self.port, FAR), Strangers(self.port)
        self.page = quiet_port()
        self.viewer = Viewer(self.page, folder / "shown.jsonl")

    def cyber0(self, *words):
        """Run a command to its end; return its exit status and what it said."""
        done = processes.run(processes.command(*words), capture_output=True)
        if "Traceback" in done.stderr:
            self.faults.append(f"cyber0 {' '.join(map(str, words))}: {done.stderr}")
        return done.returncode, done.stdout + done.stderr

    def enrol(self, name, number=0):
        """Make a key of a client, and its certificate, which replaces one that it may have; return its folder."""
        made, answer = self.folder / f"{name}-{number}", self.folder / f"{name}-{number}.pem"
        sign(request(name, made), self.keys, answer, replace=number > 0)
        return install(answer, made)

    def begin(self):
        """Start all parties, and wait until they have decided a round."""
        init(self.keys, ["127.0.0.1"])
        self.folders = {name: self.enrol(name) for name in (*HONEST, *LIARS)}
        self.serve(*RUN, "--rounds", ROUNDS, "--roster", ",".join(self.folders), *PACE)
        for place, name in enumerate(self.folders):
            if name in LIARS:
                self.turn(name, LIES[place % 2 * 2])
            else:
                self.join(name)
        self.until(lambda: self.viewer.last.get("rounds", 0) > 0, "the first round")

    def serve(self, *options):
        """Start the federator: with options a new run, without them as before."""
        words = ["serve", "--ledger", self.ledger, "--listen", f"127.0.0.1:{self.port}", "--tls", self.keys, *options]
        words += ["--metrics", str(self.page), "--log", "json"]
        with (self.folder / "federator.log").open("a") as log:
            command = [sys.executable, "-m", "cyber0", *map(str, words)]
            self.processes["federator"] = subprocess.Popen(command, stdout=log, stderr=log)
        self.lives += 1

    def join(self, name):
        """Start a client, always by the same command."""
        port = self.links.ports.get(name, self.port)
        words = ["join", f"127.0.0.1:{port}", "--tls", self.folders[name], "--state", self.folder / "state"]
        words += ["--device", "cpu", "--source", "embedded", "--deal", "iid", "--log", "json"]
        words += ["--attack", self.lies[name], "--audit", "0"] if name in LIARS else OPTIONS.get(name, ())
        log = self.folder / f"{name}.log"
        before = (
            f"log = os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\nos.dup2(log, 1)\nos.dup2(log, 2)"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.processes[name] = processes.Popen(processes.command(*words, before=before), env=environment)

    def stop(self, name):
        """Kill a process."""
        process = self.processes[name]
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()

    def signal(self, name, number):
        """Send a process a signal, if it has not ended."""
        if self.processes[name].poll() is None:
            os.kill(self.processes[name].pid, number)

    def until(self, holds, what, seconds=PATIENCE):
        """Do what is due until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise AssertionError(f"it never came to this: {what}; the page shows {self.viewer.last}")
            self.tick()

    def tick(self):
        """Do what is due, see who has ended, and extend the run."""
        time.sleep(0.05)
        while self.agenda and self.agenda[0][0] <= time.monotonic():
            heapq.heappop(self.agenda)[2]()
        for name, process in self.processes.items():
            if name not in self.gone and process.poll() is not None:
                self._ended(name, process.returncode)
                break
        shown = self.viewer.last
        self._measure()
        if shown and shown["of"] - shown["rounds"] < (left := round(self.ahead * self.viewer.pace) + 50):
            self._extend(shown["of"] + left)

    def _extend(self, rounds):
        """Ask for more rounds, unless that was asked for lately, and may not be shown yet."""
        if self.extending is not None and self.extending.poll() is None:
            return
        if time.monotonic() - self.extended_at > 2:
            words = ("extend", "--rounds", rounds, "--ledger", self.ledger, "--timeout", "20")
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.extending, self.extended_at = processes.Popen(processes.command(*words), **quiet), time.monotonic()
            self.happened["extensions asked for"] += 1

    def _ended(self, name, code):
        """One that nobody has killed has ended: a revoked one is to, a liar may."""
        tail = (self.folder / f"{name}.log").read_text()[-300:]
        if name == SPARE and self.spare == "revoked":
            del self.processes[name]
            return
        if name not in LIARS:
            self.faults.append(f"{name} ended with {code}: {tail}")
        self.happened[f"{name} ended by itself"] += 1
        self.again(name)

    def _measure(self):
        """Note the federator's memory every few seconds."""
        if self.memory and time.monotonic() - self.memory[-1][0] < 5:
            return
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{self.processes['federator'].pid}/status").read_text().splitlines()
            kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
            self.memory.append((time.monotonic(), self.lives, kilobytes / 1024))

    def again(self, name):
        """Start a process that was killed."""
        self.gone.discard(name)
        self.serve() if name == "federator" else self.join(name)

    def later(self, seconds, action):
        """Do something when a time has passed."""
        heapq.heappush(self.agenda, (time.monotonic() + seconds, self.rng.random(), action))

    def turn(self, name, lie):
        """Let a liar lie in another way from now on."""
        self.end_turn(name)
        self.lies[name] = lie
        self.turns.append({"name": name, "lie": lie, "began": time.monotonic(), "seen": self.viewer.stands_out(name)})
        self.happened["lies begun"] += 1
        self.join(name)

    def end_turn(self, name):
        """Note for how long the liar lied that way, and how often the page showed that it stands out."""
        for turn in self.turns:
            if turn["name"] == name and "seconds" not in turn:
                turn["seconds"] = time.monotonic() - turn.pop("began")
                turn["seen"] = self.viewer.stands_out(name) - turn["seen"]

    def end(self):
        """Let everybody come to the end of the run, and the federator end."""
        self.expected = [*HONEST, *([SPARE] if self.spare == "here" else ())]
        for name in LIARS:
            self.end_turn(name)
        end = time.monotonic() + PATIENCE
        while any(self.processes[name].poll() is None for name in self.expected):
            assert time.monotonic() < end, f"not all came to the end; the page shows {self.viewer.last}"
            time.sleep(0.1)
            self._measure()
        self.codes = {name: self.processes[name].returncode for name in self.expected}
        self.until_shown()
        self.signal("federator", signal.SIGTERM)
        self.codes["federator"] = self.processes["federator"].wait(PATIENCE)

    def until_shown(self):
        """Wait until the page shows the end."""
        end = time.monotonic() + PATIENCE
        while self.viewer.last.get("condition") != "finished":
            assert time.monotonic() < end, "the page does not show the end"
            time.sleep(0.1)

    def close(self):
        """End everything that is left."""
        if self.extending is not None:
            self.extending.wait()
        for name in self.processes:
            self.stop(name)
        self.viewer.close()
        self.strangers.go()
        self.links.close()
