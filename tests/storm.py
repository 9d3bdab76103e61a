"""A long storm: a federation with everything on, in which processes die and freeze, links break, and clients lie.

`python -m tests.storm --minutes 30 --seed 0 --out storm.json` plays one, checks every law at its end, and writes down
what happened. Real processes over TLS: `cyber0 serve`, and nine times `cyber0 join`, of which two lie.
"""

import argparse
import heapq
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests import processes
from tests.network.laws import Laws
from tests.network.weather import Links, Strangers, Viewer, quiet_port

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
AHEAD = 12.0  # seconds by which a run is extended before its end
ROUNDS = 200  # at first
WEIGHTS = {
    "kill": 8,
    "kill_many": 1,
    "kill_federator": 1.5,
    "freeze": 6,
    "freeze_federator": 1,
    "slow": 3,
    "stall": 3,
    "cut": 4,
    "strangers": 2,
    "backup": 1.5,
    "restore": 0.7,
    "turn": 3,
    "spare": 2,
}


class Storm:
    """A federation in a folder, and what happens to it; `happened` counts that."""

    def __init__(self, folder, seed=0):
        self.folder, self.rng = folder, random.Random(f"a long storm {seed}")  # noqa: S311
        self.ledger, self.keys, self.copies = folder / "run.ledger", folder / "keys", []
        self.port, self.happened, self.faults = quiet_port(), Counter(), []
        self.processes, self.agenda, self.gone = {}, [], set()  # gone: killed or frozen, and to come back
        self.lies, self.turns, self.kills, self.memory = {}, [], [], []
        self.lives, self.spare, self.spares = 0, None, 0
        self.extending, self.extended_at = None, 0.0
        self.links, self.strangers = Links(self.port, FAR), Strangers(self.port)
        self.page = quiet_port()

    # processes

    def cyber0(self, *words):
        done = processes.run(processes.command(*words), capture_output=True)
        if "Traceback" in done.stderr:
            self.faults.append(f"cyber0 {' '.join(map(str, words))}: {done.stderr}")
        return done.returncode, done.stdout + done.stderr

    def enrol(self, name, number=0):
        """Make a key of a client and its certificate, as people do it; return its folder."""
        made, answer = self.folder / f"{name}-{number}", self.folder / f"{name}-{number}.pem"
        steps = (
            ("keys", "request", name, "--out", made),
            ("keys", "sign", made / "request.pem", "--keys", self.keys, "--out", answer, *["--replace"] * (number > 0)),
            ("keys", "install", answer, "--out", made),
        )
        for step in steps:
            code, said = self.cyber0(*step)
            assert code == 0, said
        return made

    def begin(self):
        code, said = self.cyber0("keys", "init", self.keys, "--host", "127.0.0.1")
        assert code == 0, said
        self.folders = {name: self.enrol(name) for name in (*HONEST, *LIARS)}
        self.serve(*RUN, "--rounds", ROUNDS, "--roster", ",".join(self.folders), *PACE)
        self.viewer = Viewer(self.page, self.folder / "shown.jsonl")
        for place, name in enumerate(self.folders):
            if name in LIARS:
                self.turn(name, LIES[place % 2 * 2])
            else:
                self.join(name)
        self.until(lambda: self.viewer.last.get("rounds", 0) > 0, "the first round")

    def serve(self, *options):
        words = ["serve", "--ledger", self.ledger, "--listen", f"127.0.0.1:{self.port}", "--tls", self.keys, *options]
        words += ["--metrics", str(self.page), "--log", "json"]
        with (self.folder / "federator.log").open("a") as log:
            command = [sys.executable, "-m", "cyber0", *map(str, words)]
            self.processes["federator"] = subprocess.Popen(command, stdout=log, stderr=log)
        self.lives += 1

    def join(self, name):
        port = self.links.ports.get(name, self.port)
        words = ["join", f"127.0.0.1:{port}", "--tls", self.folders[name], "--state", self.folder / "state"]
        words += ["--device", "cpu", "--source", "embedded", "--deal", "iid", "--log", "json"]
        words += ["--attack", self.lies[name], "--audit", "0"] if name in LIARS else OPTIONS.get(name, ())
        log = self.folder / f"{name}.log"
        before = f"log = os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\nos.dup2(log, 1)\nos.dup2(log, 2)"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.processes[name] = processes.Popen(processes.command(*words, before=before), env=environment)

    def stop(self, name):
        process = self.processes[name]
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()

    def signal(self, name, number):
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
        if shown and shown["of"] - shown["rounds"] < (left := round(AHEAD * self.viewer.pace) + 50):
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
        self.gone.discard(name)
        self.serve() if name == "federator" else self.join(name)

    def later(self, seconds, action):
        heapq.heappush(self.agenda, (time.monotonic() + seconds, self.rng.random(), action))

    # what happens

    def play(self, seconds):
        """Let things happen for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            kind = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            getattr(self, f"do_{kind}")()
            pause = min(end, time.monotonic() + self.rng.expovariate(1 / 2.5))
            while time.monotonic() < pause:
                self.tick()
        self.until(lambda: not self.agenda, "all are back")
        self.links.calm()
        self.strangers.go()

    def chosen(self, names=(*HONEST, *LIARS)):
        """One that is there."""
        there = [name for name in (*names, *([SPARE] if self.spare == "here" else ())) if name not in self.gone]
        return self.rng.choice(there) if there else None

    def do_kill(self):
        name = self.chosen()
        if name is None or len(self.gone) > 3:
            return
        delay = self.rng.choice([0.0, 0.5, 2.5, 4.0])
        self.stop(name)
        self.gone.add(name)
        self.kills.append((name, time.monotonic(), time.monotonic() + delay))
        self.happened["clients killed"] += 1
        self.later(delay, lambda: self.again(name))

    def do_kill_many(self):
        for _ in range(self.rng.randint(3, 5)):
            self.do_kill()

    def do_kill_federator(self):
        if "federator" in self.gone or not self.is_shown():
            return
        self.stop("federator")
        self.gone.add("federator")
        self.happened["federator killed"] += 1
        self.later(self.rng.choice([0.0, 0.3, 2.0]), lambda: self.again("federator"))

    def is_shown(self):
        """Whether the page of this federator was seen: it is to show each that there was."""
        return len(self.viewer.started) == self.lives

    def do_freeze(self):
        name = self.chosen()
        if name is not None and len(self.gone) < 3:
            self._freeze(name, self.rng.uniform(0.5, 8.0))
            self.happened["clients frozen"] += 1

    def do_freeze_federator(self):
        if "federator" not in self.gone:
            self._freeze("federator", self.rng.uniform(0.5, 6.0))
            self.happened["federator frozen"] += 1

    def _freeze(self, name, seconds):
        self.signal(name, signal.SIGSTOP)
        self.gone.add(name)

        def thaw():
            self.signal(name, signal.SIGCONT)
            self.gone.discard(name)

        self.later(seconds, thaw)

    def do_slow(self):
        name = self.rng.choice(FAR)
        self.links.slow(name, self.rng.choice([0.005, 0.05, 0.2]))
        self.happened["links slowed"] += 1
        self.later(self.rng.uniform(2, 20), lambda: self.links.slow(name, 0.0))

    def do_stall(self):
        self.links.stall(self.rng.choice(FAR), self.rng.uniform(1, 12))
        self.happened["links stalled"] += 1

    def do_cut(self):
        self.links.cut(self.rng.choice(FAR))
        self.happened["links cut"] += 1

    def do_strangers(self):
        self.strangers.come(self.rng, self.rng.choice([5, 50, 200]))

    def do_backup(self):
        if self.gone & {"federator"}:
            return
        copy = self.folder / f"copy-{len(self.copies)}"
        code, said = self.cyber0("ledger", "backup", self.ledger, copy)
        assert code == 0, said
        self.copies.append(copy)
        for old in self.copies[:-3]:
            old.unlink(missing_ok=True)
        self.happened["backups"] += 1

    def do_restore(self):
        """As the manual says: while all clients are there. What happens to them next waits until rounds go on."""
        if not self.copies:
            self.do_backup()
        if not self.copies:
            return
        names = {*HONEST, *([SPARE] if self.spare == "here" else ())}
        self.links.calm()
        self.until(lambda: not self.agenda and self.is_shown() and names <= self.viewer.here, "all are here")
        before = self.viewer.last.get("rounds", 0)
        self.stop("federator")
        for suffix in ("-wal", "-shm"):
            self.ledger.with_name(self.ledger.name + suffix).unlink(missing_ok=True)
        shutil.copy(self.rng.choice(self.copies[-3:]), self.ledger)
        self.serve()
        self.happened["restores"] += 1
        shown = lambda: self.viewer.last.get("rounds", 0) > before + 5  # noqa: E731
        self.until(lambda: self.is_shown() and shown() and names <= self.viewer.here, "rounds after a restore")

    def do_turn(self):
        name = self.rng.choice(LIARS)
        if name not in self.gone:
            self.stop(name)
            others = [lie for lie in LIES if lie not in self.lies.values()]
            self.turn(name, self.rng.choice(others))

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

    def do_spare(self):
        """Admit a further client, give it a new key, or revoke it, once all others are there."""
        self.until(lambda: not self.gone and self.is_shown() and set(HONEST) <= self.viewer.here, "all are here")
        step = {None: "admit", "revoked": "admit", "here": self.rng.choice(["rotate", "revoke"])}[self.spare]
        if step == "admit" and SPARE in self.processes:
            return  # it is about to learn that it was revoked
        words = [step, SPARE, "--ledger", self.ledger, "--timeout", "90"]
        if step != "revoke":
            self.folders[SPARE] = self.enrol(SPARE, self.spares)
            self.spares += 1
            words += ["--cert", self.folders[SPARE] / "cert.pem"]
        if step == "rotate":
            self.stop(SPARE)
            self.gone.add(SPARE)
        if step == "revoke":
            self.spare = "revoked"
        code, said = self.cyber0(*words)
        self.happened[step if code == 0 else f"{step} failed"] += 1
        if code != 0:
            self.faults.append(f"{step}: {said}")
        if step != "revoke":
            self.again(SPARE)
            self.spare = "here"

    # the end

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
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self.viewer.close()
        self.strangers.go()
        self.links.close()


def play(folder, seconds, seed):
    """Play a storm and return what happened, with the laws that did not hold."""
    storm, began = Storm(folder, seed), time.monotonic()
    storm.begin()
    try:
        storm.play(seconds)
        storm.end()
    finally:
        storm.close()
    return {"seed": seed, "seconds": round(time.monotonic() - began), **Laws(storm).figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="a new folder, which is kept")
    parser.add_argument("--out", type=Path, help="a file for what happened, in JSON")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    found = {"command": f"python -m tests.storm --minutes {options.minutes:g} --seed {options.seed}"}
    found |= play(folder, options.minutes * 60, options.seed)
    text = json.dumps(found, indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    if options.folder is None:
        shutil.rmtree(folder)
    sys.exit(bool(found["broken laws"]))


if __name__ == "__main__":
    main()
