"""The laws that hold at the end of a storm, whatever happened in it."""

import json
from collections import Counter

from tests import processes

from cyber0.errors import Cyber0Error
from cyber0.protocol import evidence
from cyber0.protocol.sqlite import File
from cyber0.replay import base, rebuild

# Lies that stand out whenever they are told. A negated vote does while honest votes agree: in small batches of a model
# that has learnt they are mostly noise. Who sends votes for other rounds may seem to be slow.
SHOWN = ("nan", "equivocate")
LONG = 30.0  # seconds after which a lie is to be seen
GROWTH, MORE = 1.5, 50  # times and MiB that a federator may take more than after a quarter of its life
WORDS = {"admit": "is admitted", "revoke": "is revoked", "rotate": "has a new key"}


class Laws:
    """Checks all laws of a storm that has ended: `broken` says in sentences which do not hold."""

    def __init__(self, storm):
        self.storm, self.broken = storm, list(storm.faults)
        for name, code in storm.codes.items():
            self.law(code == 0, f"{name} ended with {code}")
        for log in storm.folder.glob("*.log"):
            self.law("Traceback" not in log.read_text(errors="replace"), f"{log.name} has a traceback")
        self.figures = {
            "happened": dict(sorted(storm.happened.items())),
            "strangers": storm.strangers.count,
            "bytes over slow links": storm.links.bytes,
            "memory_mib": self.memory(),
            "page": self.page(),
            **self.record(),
            "evidence": self.accused(),
            "broken laws": self.broken,
        }

    def law(self, holds, text):
        if not holds:
            self.broken.append(text)

    def record(self):
        """All honest clients have one fingerprint, which the ledger's record gives again, and the record is sound."""
        marks = {name: _fingerprint(self.storm, name) for name in self.storm.expected}
        self.law(len(set(marks.values())) == 1, f"the fingerprints differ: {marks}")
        ledger, authority = self.storm.ledger, self.storm.keys / "ca.pem"
        words = ("verify", ledger, "--authority", authority, "--base", "task", "--device", "cpu")
        done = processes.run(processes.command(*words), capture_output=True)
        said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("verdict"))
        verdict = said.get("verdict", done.stdout + done.stderr)
        self.law(verdict.startswith(("sound", "commits proven, votes missing")), f"cyber0 verify: {verdict}")
        verdicts = Counter()
        with File(ledger, read_only=True) as run:
            rounds = run.head.rounds
            self.law(rounds == run.roster.last, f"{rounds} of {run.roster.last} rounds are decided")
            rebuilt = f"{rebuild(run, base(run.identity, None)[1]):016x}"
            self.law({rebuilt} == set(marks.values()), f"the record gives {rebuilt}, and the clients have {marks}")
            for decision in run.decisions():
                verdicts.update((ballot.client, ballot.verdict) for ballot in decision.ballots)
        for name, found in verdicts:
            self.law(name in self.storm.lies or found in ("counted", "late"), f"a vote of {name} was {found}")
        names = sorted({name for name, _ in verdicts})
        votes = {name: {what: n for (who, what), n in sorted(verdicts.items()) if who == name} for name in names}
        return {"rounds": rounds, "fingerprint": rebuilt, "verdict": verdict, "votes": votes}

    def accused(self):
        """No honest party is accused; who sent two votes for one round is, where clients looked."""
        count = Counter()
        for file in (self.storm.folder / "state").rglob("evidence-*"):
            try:
                party = evidence.judge(file.read_bytes()).party
            except Cyber0Error as error:
                party = f"nobody: {error}"
            self.law(party in self.storm.lies, f"{file.parent.name} accuses {party}")
            count[party] += 1
        for turn in self.storm.turns:
            if turn["lie"] == "equivocate" and turn["seconds"] > LONG:
                self.law(count[turn["name"]], f"{turn['name']} equivocated, and nobody holds evidence")
        return dict(count)

    def memory(self):
        """What the federator took at first and at last, in each of its lives that was long enough to tell."""
        lives, told = {}, []
        for when, life, size in self.storm.memory:
            lives.setdefault(life, []).append((when, size))
        for life, sizes in lives.items():
            (began, first), (_, early), (ended, last) = sizes[0], sizes[len(sizes) // 4], sizes[-1]
            if ended - began > 60:
                self.law(last < GROWTH * early + MORE, f"federator {life} grew from {early} to {last} MiB")
                told.append({"seconds": round(ended - began), "first": round(first, 1), "last": round(last, 1)})
        return {"most": round(max(size for *_, size in self.storm.memory), 1), "lives over a minute": told}

    def page(self):
        """The page has shown every federator there was, who was away, who stood out, and how the roster changed."""
        storm, viewer = self.storm, self.storm.viewer
        self.law(len(viewer.started) == storm.lives, f"{len(viewer.started)} of {storm.lives} federators were shown")
        away = [any(began <= when <= back + 2 for when in viewer.away[name]) for name, began, back in storm.kills]
        for name in {name for name, began, back in storm.kills if back - began > 2}:
            self.law(viewer.away[name], f"{name} was killed, and never shown as away")
        lies = {}
        for turn in storm.turns:
            told = lies.setdefault(turn["lie"], Counter())
            told.update({"turns": 1, "turns that were seen": int(turn["seen"] > 0), "seconds": round(turn["seconds"])})
            must = turn["lie"] in SHOWN and turn["seconds"] > LONG
            self.law(turn["seen"] or not must, f"it was not seen that {turn['name']} stood out: {turn}")
        for step, words in WORDS.items():
            shown = any(words in text for text in viewer.changes)
            self.law(shown or not storm.happened[step], f"it was not shown that a client {words}")
        received, sent, pages = (sum(each) for each in zip(*viewer.totals.values(), strict=True))
        return {
            "events": viewer.events,
            "federators started": storm.lives,
            "federators shown": len(viewer.started),
            "clients killed and shown as away": sum(away),
            "lies": {lie: dict(told) for lie, told in lies.items()},
            "evidence": sorted(viewer.evidence),
            "different notices": len(viewer.said),
            "roster changes": len(viewer.changes),
            "health": dict(viewer.health),
            "metrics": dict(viewer.metrics),
            "bytes received": received,
            "bytes sent": sent,
            "pages for audits": pages,
        }


def _fingerprint(storm, name):
    """What a client said at its end."""
    lines = (storm.folder / f"{name}.log").read_text().splitlines()
    ends = [json.loads(line)["fingerprint"] for line in lines if f'"{name} has ended"' in line]
    return ends[-1] if ends else None
