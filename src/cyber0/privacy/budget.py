"""The privacy budget of a named data set, on the disk of the client whose data they are.

A file for each data set: a line of JSON for every local step that was about to be released, of whatever run, written
and synced before the step is measured. So neither a crash nor a second run spends the budget twice: what is on disk is
never less than what has left. One process at a time holds a budget, and the same data have one: a second name for them
is refused.
"""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cyber0.errors import InvalidConfig
from cyber0.files import lock_file, make_folder, naming
from cyber0.privacy.accounting import Step, check_delta, check_epsilon, epsilon_of, most_steps, noise_for

__all__ = ["Budget", "budget_of", "data_digest"]

VERSION = 1
PERMITTED = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
AHEAD = 100  # steps for which the accountant is asked at once


def data_digest(arrays: Iterable[Any]) -> str:
    """Return the SHA-256 of a client's training data. It stays on its disk, and tells only that they have changed.

    >>> data_digest([np.zeros(3)]) == data_digest([np.zeros(3)]) != data_digest([np.zeros(4)])
    True
    """
    digest = hashlib.sha256()
    for array in arrays:
        found = np.ascontiguousarray(array)
        digest.update(f"{found.dtype} {found.shape} ".encode())
        digest.update(found.tobytes())
    return digest.hexdigest()


def budget_of(folder: Path, digest: str, other_than: str = "") -> str | None:
    """Return the name of a data set, other than one, whose budget was opened for these data; None if there is none."""
    entry = f'"digest": {json.dumps(digest)}'.encode()
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem != other_than and entry in path.read_bytes():
            return path.stem
    return None


class Budget:
    """The budget of a data set: what was promised to it, and what is spent.

    Args:
        folder: Where budgets are kept.
        name: Of the data set.
        epsilon: The budget, for all runs together.
        delta: Its delta.
        samples: How many samples there are.
        digest: Of the data.
        accept_changed: Whether data that have changed since the budget was opened may go on to spend it.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> step = Step(noise=1.0, rate=0.05)
    >>> with Budget(folder, "scans", epsilon=2.0, delta=1e-5, samples=1000, digest="ab") as budget:
    ...     budget.charge("a run", 0, step, 3)
    ...     budget.left(step, 1), 0 < budget.spent() < 2
    (1, True)
    >>> with Budget(folder, "scans", epsilon=2.0, delta=1e-5, samples=1000, digest="cd") as budget:
    ...     pass
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: the data 'scans' have changed since their budget was opened: ...

    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        epsilon: float,
        delta: float,
        samples: int,
        digest: str,
        accept_changed: bool = False,
    ) -> None:
        if not name or len(name) > 100 or not set(name) <= PERMITTED or name.startswith("."):
            raise InvalidConfig(f"dataset = {name!r}: give a name of letters, digits, '-', '_' and '.', as scans-2024")
        check_epsilon(epsilon)
        check_delta(delta, samples)
        self.name, self.epsilon, self.delta = name, epsilon, delta
        self.path = folder / f"{name}.jsonl"
        self._counts: Counter[Step] = Counter()
        self._noises: dict[str, float] = {}
        self._most: dict[Step, int] = {}
        try:
            make_folder(folder)
            self._lock = _lock(folder, name)
            self.path.touch(mode=0o600)
            self._file: Any = self.path.open("r+b", buffering=0)
            _sync(folder)
        except OSError as error:
            raise InvalidConfig(f"the budget {self.path} cannot be used: {error.strerror}") from None
        try:
            with _lock(folder):  # one is opened at a time, so that two names for the same data see each other
                self._open(samples, digest, accept_changed)
        except BaseException:
            self.close()
            raise

    def _open(self, samples: int, digest: str, accept_changed: bool) -> None:
        opened = self._read()
        if opened is None or opened["digest"] != digest:
            self._refuse_second_name(digest)
        ours = {"version": VERSION, "dataset": self.name, "epsilon": self.epsilon, "delta": self.delta}
        ours |= {"samples": samples, "digest": digest}
        if opened is not None and opened["digest"] != digest and not accept_changed:
            raise InvalidConfig(
                f"the data {self.name!r} have changed since their budget was opened: {opened['samples']:,} samples "
                f"then, {samples:,} now; say --accept-changed to go on with what is left of it, or give another "
                "--dataset if no sample is in both"
            )
        if opened != ours:
            self._write({"opened": ours})

    def _refuse_second_name(self, digest: str) -> None:
        """Refuse data that another budget was opened for: under two names they would be spent twice."""
        other = budget_of(self.path.parent, digest, other_than=self.name)
        if other is not None:
            raise InvalidConfig(
                f"dataset = {self.name!r}: these data are those of {other!r}, whose budget is open, and have one "
                f"budget under whatever name: say --dataset {other}; nothing is sent"
            )

    def _read(self) -> dict[str, Any] | None:
        """Read the file, and return what it was opened with last. A line that a crash cut short has not counted yet."""
        opened: dict[str, Any] | None = None
        whole, _, rest = self._file.read().rpartition(b"\n")
        for number, text in enumerate(whole.split(b"\n") if whole else [], 1):
            try:
                line = json.loads(text)
                if "opened" in line:
                    opened = dict(line["opened"])
                    if opened["version"] != VERSION:
                        raise ValueError(f"version {opened['version']} is not known")
                elif "planned" in line:
                    self._noises[str(line["planned"])] = _positive(line["noise"])
                else:
                    self._counts[Step(_positive(line["noise"]), _positive(line["rate"]))] += int(line["steps"])
            except (ValueError, TypeError, KeyError) as error:
                raise InvalidConfig(f"{self.path} is damaged in line {number}: {error}; nothing is sent") from None
        if opened is None and self._counts:
            raise InvalidConfig(f"{self.path} is damaged: it does not say how the budget was opened; nothing is sent")
        if rest:
            self._file.truncate(len(whole) + 1 if whole else 0)
        self._file.seek(0, os.SEEK_END)
        return opened

    def _write(self, line: dict[str, Any]) -> None:
        with naming(self.path):
            data = json.dumps(line, sort_keys=True).encode() + b"\n"
            if self._file.write(data) < len(data):
                raise OSError(28, "No space left on device")
            os.fsync(self._file.fileno())

    def noise_for(self, run: str, rate: float, steps: int, least: float = 0.0) -> float:
        """Return the noise multiplier of a run with so many steps, which is kept: a run has one.

        Raises InvalidConfig if what is left of the budget does not suffice.
        """
        if run not in self._noises:
            noise = max(least, noise_for(self.epsilon, self.delta, rate, steps, self._counts.items()))
            self._write({"planned": run, "noise": noise, "rate": rate, "steps": steps})
            self._noises[run] = noise
        return self._noises[run]

    def spent(self) -> float:
        """Return the epsilon that is spent."""
        return epsilon_of(self._counts.items(), self.delta)

    def left(self, step: Step, wanted: int) -> int:
        """Return for how many more such steps the budget suffices, up to those that are wanted."""
        if self._most.get(step, 0) < wanted:
            limit = max(wanted, AHEAD)
            self._most = {step: most_steps(self.epsilon, self.delta, step, self._counts.items(), limit=limit)}
        return min(wanted, self._most[step])

    def charge(self, run: str, number: int, step: Step, count: int) -> None:
        """Write down the steps of a round, durably. To be called before they are measured."""
        self._write({"run": run, "round": number, "noise": step.noise, "rate": step.rate, "steps": count})
        self._counts[step] += count
        self._most = {kept: most - count for kept, most in self._most.items() if kept == step}

    def close(self) -> None:
        """Close the file and give the budget free."""
        self._file.close()
        self._lock.close()

    def __enter__(self) -> "Budget":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(folder: Path, name: str = "") -> Any:
    """Lock the budget of a data set; without a name the folder, for which others are waited for."""
    return lock_file(
        folder / (f".{name}.lock" if name else ".lock"),
        lambda: InvalidConfig(f"the budget of {name!r} is in use by another client that has not ended"),
        unsupported=lambda: InvalidConfig(
            f"the folder of budgets {folder} cannot be locked, and two clients could spend one budget: move it to a "
            "local disk, and set XDG_STATE_HOME to the folder that holds cyber0/budgets there; nothing is sent"
        ),
        wait=not name,
    )


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} must be a number above 0")
    return float(value)


def _sync(folder: Path) -> None:
    """Make a new file known to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
