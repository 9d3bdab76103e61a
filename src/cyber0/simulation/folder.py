"""The folder of a run: what it was asked, what it measured, and the scalars that are its model.

config.toml        the complete configuration: `cyber0 run config.toml` runs it again
metrics.jsonl      a line for each evaluation, written as it goes
scalars.f32        what was aggregated in each round, little-endian float32; NaN where too few voted
summary.json       the outcome
model.safetensors  the final weights
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.config import RunConfig, load, merged
from cyber0.errors import InvalidConfig
from cyber0.extras import require

__all__ = ["Folder"]

Line = dict[str, Any]


class Folder:
    """A run's folder, held by one process at a time; made by `Folder.new` or `Folder.resume`.

    >>> from tempfile import mkdtemp
    >>> folder = Folder.new(Path(mkdtemp()) / "run", RunConfig(rounds=2), width=64)
    >>> folder.append(np.ones((1, 64)), {"round": 1, "accuracy": 0.5})
    >>> folder.close()
    >>> folder = Folder.resume(folder.path, width=64)
    >>> folder.aggregates.shape, folder.lines
    ((1, 1, 64), [{'round': 1, 'accuracy': 0.5}])
    >>> folder.close()
    """

    def __init__(self, path: Path, config: RunConfig, width: int) -> None:
        self.path, self.config = path, config
        self._lock = _locked(path)
        self._shape = (-1, 1 if config.algorithm == "fedavg" else config.plan.rows, width)
        try:
            self.lines, self.aggregates = self._recover()
        except InvalidConfig:
            self._lock.close()
            raise
        self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8")
        self._scalars = (path / "scalars.f32").open("ab")

    @classmethod
    def new(cls, path: Path, config: RunConfig, width: int) -> "Folder":
        """Make the folder of a new run; one that holds another run is refused."""
        if (path / "config.toml").exists():
            raise InvalidConfig(f"{path} holds another run: name another folder, or continue it by --resume {path}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            with (path / "config.toml").open("x", encoding="utf-8") as file:
                file.write(config.to_toml())
        except OSError as error:
            raise InvalidConfig(f"cannot write to {path}: {error.strerror}") from None
        return cls(path, config, width)

    @classmethod
    def resume(cls, path: Path, width: int | None = None) -> "Folder":
        """Open the folder of a run that was stopped."""
        config = cls.configuration(path)
        return cls(path, config, width or config.directions)

    @staticmethod
    def configuration(path: Path) -> RunConfig:
        """What the run in a folder was asked to do."""
        if not (path / "config.toml").exists():
            raise InvalidConfig(f"{path} holds no run: there is no config.toml in it")
        return merged(load(path / "config.toml"), {})

    def append(self, aggregates: NDArray[Any], line: Line) -> None:
        """Add rounds, [rounds, rows, k] or the one round's [rows, k], then the evaluation at their end."""
        self._scalars.write(np.asarray(aggregates, dtype="<f4").tobytes())
        self._scalars.flush()
        self._metrics.write(json.dumps(line) + "\n")
        self._metrics.flush()

    def finish(self, summary: Line, tensors: dict[str, Any]) -> None:
        """Write the outcome and the final weights."""
        require("safetensors.torch", extra="train").save_file(tensors, self.path / "model.safetensors")
        (self.path / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Let go of the folder."""
        for file in (self._metrics, self._scalars, self._lock):
            file.close()

    def _recover(self) -> tuple[list[Line], NDArray[np.float32]]:
        """Everything up to the last evaluation that was written whole; what came after is cut off and played again."""
        lines: list[Line] = []
        metrics, scalars = self.path / "metrics.jsonl", self.path / "scalars.f32"
        text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            lines.append(json.loads(line))
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        rounds = lines[-1]["round"] if lines else 0
        size = rounds * self._shape[1] * self._shape[2] * 4
        data = scalars.read_bytes()[:size] if scalars.exists() else b""
        if len(data) < size:
            raise InvalidConfig(f"{scalars} has {len(data)} bytes, but metrics.jsonl tells of {size}: it was cut off")
        scalars.write_bytes(data)
        return lines, np.frombuffer(data, dtype="<f4").reshape(self._shape)


def _locked(path: Path) -> Any:
    """A file of the folder, locked for this process: the lock goes with the process, however it ends."""
    file = (path / ".lock").open("w")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such locks on this system
        pass
    except OSError:
        file.close()
        raise InvalidConfig(f"{path} is in use by another run that has not ended") from None
    return file
