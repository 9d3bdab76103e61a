"""The folder of a run: what it was asked, what it measured, and the scalars that are its model.

config.toml        the complete configuration: `cyber0 run config.toml` runs it again
metrics.jsonl      a line for each evaluation, written as it goes
scalars.f32        what was aggregated in each round, little-endian float32; NaN where too few voted
summary.json       the outcome
model.safetensors  the final weights
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.config import RunConfig, load, merged
from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.files import held, write_whole

__all__ = ["Folder"]

FILES = ("config.toml", "metrics.jsonl", "scalars.f32", "summary.json", "model.safetensors")
Line = dict[str, Any]


class Folder:
    """A run's folder, held by one process at a time; made by `Folder.new` or `Folder.resume`.

    >>> from tempfile import mkdtemp
    >>> folder = Folder.new(Path(mkdtemp()) / "run", RunConfig(rounds=2))
    >>> folder.append(np.ones((1, 1, 64)), {"round": 1, "accuracy": 0.5})
    >>> folder.close()
    >>> folder = Folder.resume(folder.path)
    >>> folder.lines
    [{'round': 1, 'accuracy': 0.5}]
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
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = held(path, "run")
            for name in FILES:
                if (path / name).exists():
                    lock.close()
                    raise InvalidConfig(
                        f"{path} holds another run ({name}): name another folder, or continue it by --resume {path}"
                    )
            write_whole(path / "config.toml", config.to_toml())
        except OSError as error:
            raise InvalidConfig(f"cannot write to {path}: {error.strerror}") from None
        return cls(path, config, lock)

    @classmethod
    def resume(cls, path: Path) -> "Folder":
        """Open the folder of a run that was stopped."""
        config = cls.configuration(path)
        try:
            lock = held(path, "run")
        except OSError as error:
            raise InvalidConfig(f"cannot write to {path}: {error.strerror}") from None
        try:
            return cls(path, config, lock)
        except BaseException:
            lock.close()
            raise

    @staticmethod
    def configuration(path: Path) -> RunConfig:
        """What the run in a folder was asked to do."""
        if not (path / "config.toml").exists():
            raise InvalidConfig(f"{path} holds no run: there is no config.toml in it")
        keys = load(path / "config.toml")
        config = merged(keys, {})
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
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def finish(self, summary: Line, tensors: dict[str, Any]) -> None:
        """Write the final weights and the outcome."""
        require("safetensors.torch", extra="train").save_file(tensors, self.path / "model.safetensors")
        write_whole(self.path / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")

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
            _ = [line["round"] for line in lines]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidConfig(f"{metrics} is damaged: {error}") from None
        if whole < len(data):
            os.truncate(metrics, whole)
        return lines
