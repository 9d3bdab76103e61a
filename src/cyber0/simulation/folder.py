"""The folder of a run: what it was asked, what it measured, and the scalars that are its model.

config.toml        the complete configuration: `cyber0 run config.toml` runs it again
metrics.jsonl      a line for each evaluation, written as it goes
scalars.f32        what was aggregated in each round, little-endian float32; NaN where too few voted
attack-N.json      what an attack with memory remembers after N rounds, of the last evaluation
votes/             with keep="votes": every round's votes, a file for each evaluation
summary.json       the outcome
model.safetensors  the final weights
"""

import json
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from shutil import rmtree
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cyber0.callbacks import Round
from cyber0.config import RunConfig, load
from cyber0.errors import InputError, InvalidConfig
from cyber0.extras import require
from cyber0.files import draft_of, lock_folder, make_folder, naming, write_atomically
from cyber0.simulation.history import pack_rounds, unpack_rounds

__all__ = ["Line", "RunFolder"]

FILES = ("config.toml", "metrics.jsonl", "scalars.f32", "summary.json", "model.safetensors")
NEEDED = ("round", "accuracy", "loss", "votes", "skipped", "seconds")  # of an evaluation, to go on from it
Line = dict[str, Any]


class RunFolder:
    """A run's folder. `new`, `resume` and `begun` lock it for writing by this process; `read` does not.

    >>> from tempfile import mkdtemp
    >>> folder = RunFolder.new(Path(mkdtemp()) / "run", RunConfig(rounds=2))
    >>> line = {"round": 1, "accuracy": 0.5, "loss": 1.2, "votes": 40, "skipped": 0, "seconds": 0.1}
    >>> folder.append(np.ones((1, 1, 64)), line)
    >>> folder.close()
    >>> folder = RunFolder.read(folder.path)
    >>> folder.lines == [line]
    True
    >>> folder.aggregates(rows=1, width=64).shape
    (1, 1, 64)
    """

    def __init__(self, path: Path, config: RunConfig, lock: Any = None) -> None:
        self.path, self.config, self._lock = path, config, lock
        self.lines = self._whole_lines()

    @classmethod
    def new(cls, path: Path, config: RunConfig) -> "RunFolder":
        """Make the folder of a new run; one that holds files of another run is refused, and left as it is."""
        with _writing(path):
            make_folder(path)
            lock = lock_folder(path, "run")
            for name in FILES:
                if (path / name).exists():
                    lock.close()
                    raise InvalidConfig(
                        f"{path} holds another run ({name}): name another folder, or continue it by "
                        f"--resume {quote(str(path))}, in Python by resume=True"
                    )
            write_atomically(path / "config.toml", config.to_toml())
        return cls(path, config, lock)

    @classmethod
    def resume(cls, path: Path, config: RunConfig | None = None) -> "RunFolder":
        """Open the folder of a run that was stopped, or that has ended and is to be extended by more rounds.

        `config` is that of the folder, but for more rounds and for what belongs to this machine.
        """
        kept = cls.configuration(path)
        config = config or kept
        if not kept.updated(rounds=config.rounds, horizon=config.horizon).same_run(config):
            raise InvalidConfig(f"{path} holds another run: only rounds and options of this machine may change")
        with _writing(path):
            lock = lock_folder(path, "run")
        try:
            folder = cls(path, config, lock)
            folder._check_rounds()
        except BaseException:
            lock.close()
            raise
        return folder

    def _check_rounds(self) -> None:
        played = self.lines[-1]["round"] if self.lines else 0
        if self.config.rounds < played:
            raise InvalidConfig(f"rounds = {self.config.rounds}: {played} rounds have been played; give more")

    def extend(self) -> None:
        """Write down that there are to be more rounds than the run had; rounds that were played stay.

        Until then a finished run keeps its summary and its weights: one whose data or model differ is not extended.
        """
        if self.config.rounds != self.configuration(self.path).rounds:
            for name in ("summary.json", "model.safetensors"):
                (self.path / name).unlink(missing_ok=True)
            write_atomically(self.path / "config.toml", self.config.to_toml())

    @classmethod
    def begun(cls, path: Path, config: RunConfig) -> "RunFolder":
        """Open the folder of a run that may have been begun there; what is damaged, or another run's, is removed.

        It is the same run wherever its data and its model are, and on any device.
        """
        with _writing(path):
            make_folder(path)
            lock = lock_folder(path, "run")
            try:
                if cls.configuration(path).same_run(config):
                    return cls(path, config, lock)
            except InputError:  # nothing was begun, or it is damaged
                pass
            _clear(path)
            write_atomically(path / "config.toml", config.to_toml())
        return cls(path, config, lock)

    @classmethod
    def read(cls, path: Path) -> "RunFolder":
        """Read the folder of a run, which may still be going on."""
        return cls(path, cls.configuration(path))

    @staticmethod
    def configuration(path: Path) -> RunConfig:
        """Return what the run in a folder was asked to do."""
        if not (path / "config.toml").exists():
            raise InvalidConfig(f"{path} holds no run: there is no config.toml in it{_held_instead(path)}")
        keys = load(path / "config.toml")
        config = RunConfig(**keys)
        missing = sorted(config.model_dump(exclude_none=True).keys() - keys.keys())
        if missing:
            raise InvalidConfig(f"{path / 'config.toml'} is not complete: it lacks {', '.join(missing)}")
        return config

    @property
    def summary(self) -> Line | None:
        """The outcome; None while the run has not ended."""
        path = self.path / "summary.json"
        try:
            found: Line | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            _ = None if found is None else (found["rounds"], int(found["model_fingerprint"], 16))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfig(f"{path} is damaged: remove it, and `cyber0 run --resume` the run") from error
        return found

    @property
    def weights(self) -> Path:
        """The file of the final weights."""
        return self.path / "model.safetensors"

    def aggregates(self, rows: int, width: int) -> NDArray[np.float32]:
        """Return what was aggregated up to the last evaluation, [rounds, rows, width].

        If the folder is locked for writing, what came after that is cut off.
        """
        scalars = self.path / "scalars.f32"
        size = (self.lines[-1]["round"] if self.lines else 0) * rows * width * 4
        found = scalars.stat().st_size if scalars.exists() else 0
        if found < size:
            raise InvalidConfig(f"{scalars} has {found} bytes, but {size} by metrics.jsonl: it was cut off")
        if found > size and self._lock is not None:
            os.truncate(scalars, size)
        data = scalars.read_bytes()[:size] if size else b""
        return np.frombuffer(data, dtype="<f4").reshape(-1, rows, width)

    def append(
        self,
        aggregates: NDArray[Any],
        line: Line,
        rounds: Sequence[Round] = (),
        attack: dict[str, Any] | None = None,
    ) -> None:
        """Add the rounds since the last evaluation, [rounds, rows, width], then the evaluation at their end.

        `rounds` are those whose votes are to be kept, `attack` is what an attack with memory remembers.
        """
        scalars, metrics = self.path / "scalars.f32", self.path / "metrics.jsonl"
        with naming(scalars), scalars.open("ab") as file:
            file.write(np.asarray(aggregates, dtype="<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())  # no evaluation outlives what led to it, even where the machine goes down
        if rounds:
            (self.path / "votes").mkdir(exist_ok=True)
            votes = self.path / "votes" / f"{rounds[0].number:010}.npz"
            with draft_of(votes) as draft, draft.open("wb") as file:
                np.savez_compressed(file, **pack_rounds(rounds, self.config.clients))
        if attack is not None:
            write_atomically(self._attack(line["round"]), json.dumps(attack))
        with naming(metrics), metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        if attack is not None:
            for other in self.path.glob("attack-*.json"):
                if other != self._attack(line["round"]):
                    other.unlink()

    def rounds(self) -> list[Round]:
        """Return the rounds whose votes were kept, up to the last evaluation."""
        last = self.lines[-1]["round"] if self.lines else 0
        found: list[Round] = []
        for path in sorted((self.path / "votes").glob("*.npz")):
            try:
                with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                    found += [each for each in unpack_rounds(arrays) if each.number < last]
            except (ValueError, KeyError, EOFError, BadZipFile) as error:
                raise InvalidConfig(f"{path} is damaged: remove it, and the votes of its rounds are missing") from error
        return found

    def attack_state(self) -> dict[str, Any] | None:
        """Return what an attack with memory remembered at the last evaluation; None if nothing was kept."""
        path = self._attack(self.lines[-1]["round"])
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def finish(self, summary: Line, tensors: dict[str, Any]) -> None:
        """Write the final weights and the outcome."""
        safetensors = require("safetensors", extra="train")
        with draft_of(self.weights) as draft:
            draft.touch()
            mode = draft.stat().st_mode  # the user's umask: safetensors writes files that only the owner can read
            try:
                require("safetensors.torch", extra="train").save_file(tensors, draft)
            except safetensors.SafetensorError as error:  # such as a full disk
                raise InvalidConfig(f"cannot write {self.weights}: {error}") from None
            draft.chmod(mode)
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")

    def clear(self) -> None:
        """Remove all that was played."""
        _clear(self.path)
        self.lines = []

    def close(self) -> None:
        """Release the folder, so that another process can write to it."""
        if self._lock is not None:
            self._lock.close()

    def _attack(self, rounds: int) -> Path:
        return self.path / f"attack-{rounds}.json"

    def _whole_lines(self) -> list[Line]:
        """Return the evaluations that were written whole; half a line at the end is cut off, and played again."""
        metrics = self.path / "metrics.jsonl"
        data = metrics.read_bytes() if metrics.exists() else b""
        whole = data.rfind(b"\n") + 1
        try:
            lines = [json.loads(line) for line in data[:whole].splitlines()]
            _ = [line[key] for line in lines for key in NEEDED]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidConfig(f"{metrics} is damaged: {error}") from None
        if whole < len(data) and self._lock is not None:
            os.truncate(metrics, whole)
        return lines


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """Turn what the system raises at a folder into an error that names it."""
    try:
        yield
    except OSError as error:
        raise InvalidConfig(f"cannot write to {path}: {error.strerror}") from None


def _clear(path: Path) -> None:
    for name in reversed(FILES[1:]):  # evaluations last: without them what led to them would not be missed
        (path / name).unlink(missing_ok=True)
    for state in path.glob("attack-*.json"):
        state.unlink()
    rmtree(path / "votes", ignore_errors=True)


def _held_instead(path: Path) -> str:
    """Return what a folder holds that is not the folder of a run, if that is a study or other runs."""
    if (path / "study.toml").exists():
        return f"; it is the folder of a study, whose report is {path / 'report.html'}"
    first = min(path.glob("*/config.toml"), default=None)
    return "" if first is None else f"; it has folders of runs in it, as {first.parent}"
