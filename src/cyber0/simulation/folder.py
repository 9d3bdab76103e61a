"""The folder of a run: what it was asked, what it measured, and the scalars that are its model.

config.toml        the complete configuration: `cyber0 run config.toml` runs it again
metrics.jsonl      a line for each evaluation, written as it goes
scalars.f32        what was aggregated in each round, little-endian float32; NaN where too few voted
summary.json       the outcome
model.safetensors  the final weights
"""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.config import RunConfig, load
from cyber0.errors import InputError, InvalidConfig
from cyber0.extras import require
from cyber0.files import lock_folder, write_atomically

__all__ = ["Folder"]

FILES = ("config.toml", "metrics.jsonl", "scalars.f32", "summary.json", "model.safetensors")
NEEDED = ("round", "accuracy", "loss", "votes", "skipped", "seconds")  # of an evaluation, to go on from it
Line = dict[str, Any]


class Folder:
    """A run's folder, held by one process at a time; made by `Folder.new`, `Folder.resume` or `Folder.begun`.

    >>> from tempfile import mkdtemp
    >>> folder = Folder.new(Path(mkdtemp()) / "run", RunConfig(rounds=2))
    >>> line = {"round": 1, "accuracy": 0.5, "loss": 1.2, "votes": 40, "skipped": 0, "seconds": 0.1}
    >>> folder.append(np.ones((1, 1, 64)), line)
    >>> folder.close()
    >>> folder = Folder.resume(folder.path)
    >>> folder.lines == [line]
    True
    >>> folder.aggregates(rows=1, width=64).shape
    (1, 1, 64)
    >>> folder.close()
    """

    def __init__(self, path: Path, config: RunConfig, lock: Any) -> None:
        self.path, self.config, self._lock = path, config, lock
        self.lines = self._whole_lines()

    @classmethod
    def new(cls, path: Path, config: RunConfig) -> "Folder":
        """Make the folder of a new run; one that holds files of another run is refused, and left as it is."""
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = lock_folder(path, "run")
            for name in FILES:
                if (path / name).exists():
                    lock.close()
                    raise InvalidConfig(
                        f"{path} holds another run ({name}): name another folder, or continue it by --resume {path}"
                    )
            write_atomically(path / "config.toml", config.to_toml())
        return cls(path, config, lock)

    @classmethod
    def resume(cls, path: Path) -> "Folder":
        """Open the folder of a run that was stopped."""
        config = cls.configuration(path)
        with _writing(path):
            lock = lock_folder(path, "run")
        try:
            return cls(path, config, lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def begun(cls, path: Path, config: RunConfig) -> "Folder":
        """Open the folder of a run that may have been begun there; what is damaged, or another run's, is removed.

        It is the same run wherever its data and its model are, and on any device.
        """
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = lock_folder(path, "run")
            try:
                if cls.configuration(path).same_run(config):
                    return cls(path, config, lock)
            except InputError:  # nothing was begun, or it is damaged
                pass
            _clear(path)
            write_atomically(path / "config.toml", config.to_toml())
        return cls(path, config, lock)

    @staticmethod
    def configuration(path: Path) -> RunConfig:
        """What the run in a folder was asked to do."""
        if not (path / "config.toml").exists():
            raise InvalidConfig(f"{path} holds no run: there is no config.toml in it")
        keys = load(path / "config.toml")
        config = RunConfig(**keys)
        missing = sorted(config.model_dump(exclude_none=True).keys() - keys.keys())
        if missing:
            raise InvalidConfig(f"{path / 'config.toml'} is not complete: it lacks {', '.join(missing)}")
        return config

    def aggregates(self, rows: int, width: int) -> NDArray[np.float32]:
        """What was aggregated up to the last evaluation, [rounds, rows, width]; what came after it is cut off."""
        scalars = self.path / "scalars.f32"
        size = (self.lines[-1]["round"] if self.lines else 0) * rows * width * 4
        found = scalars.stat().st_size if scalars.exists() else 0
        if found < size:
            raise InvalidConfig(f"{scalars} has {found} bytes, but metrics.jsonl tells of {size}: it was cut off")
        if found > size:
            os.truncate(scalars, size)
        data = scalars.read_bytes() if size else b""
        return np.frombuffer(data, dtype="<f4").reshape(-1, rows, width)

    def append(self, aggregates: NDArray[Any], line: Line) -> None:
        """Add rounds, [rounds, rows, width], then the evaluation at their end."""
        with (self.path / "scalars.f32").open("ab") as file:
            file.write(np.asarray(aggregates, dtype="<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())  # no evaluation outlives what led to it, even where the machine goes down
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def finish(self, summary: Line, tensors: dict[str, Any]) -> None:
        """Write the final weights and the outcome."""
        require("safetensors.torch", extra="train").save_file(tensors, self.path / "model.safetensors")
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")

    def clear(self) -> None:
        """Forget what was played."""
        _clear(self.path)
        self.lines = []

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.close()

    def _whole_lines(self) -> list[Line]:
        """The evaluations that were written whole; half a line at the end is cut off, and played again."""
        metrics = self.path / "metrics.jsonl"
        data = metrics.read_bytes() if metrics.exists() else b""
        whole = data.rfind(b"\n") + 1
        try:
            lines = [json.loads(line) for line in data[:whole].splitlines()]
            _ = [line[key] for line in lines for key in NEEDED]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidConfig(f"{metrics} is damaged: {error}") from None
        if whole < len(data):
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
