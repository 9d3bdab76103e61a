"""A long storm: a federation with everything on, in which processes die and freeze, links break, and clients lie.

`python -m tests.storm --minutes 30 --seed 0 --out storm.json` plays one, checks every law at its end, and writes down
what happened. Real processes over TLS: `cyber0 serve`, and nine times `cyber0 join`, of which two lie.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.network.laws import Laws
from tests.network.shaken import FAR, HONEST, LIARS, LIES, SPARE, Federation

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


class Storm(Federation):
    """What happens to a federation, drawn from a seed."""

    def play(self, seconds, first=()):
        """Let things happen for so long: these first, then what is drawn."""
        end, pace = time.monotonic() + seconds, min(2.5, seconds / 40)
        planned = list(first)
        while planned or time.monotonic() < end:
            kind = planned.pop(0) if planned else self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            getattr(self, f"do_{kind}")()
            pause = min(end, time.monotonic() + self.rng.expovariate(1 / pace))
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


def play(folder, seconds, seed, first=()):
    """Play a storm and return what happened, with the laws that did not hold."""
    storm, began = Storm(folder, seed, ahead=min(12.0, seconds / 4)), time.monotonic()
    try:
        storm.begin()
        storm.play(seconds, first)
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
