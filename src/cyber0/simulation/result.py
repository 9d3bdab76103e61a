"""The result of a run, whether it has just been played or is read back from its folder."""

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidExport
from cyber0.printable import many
from cyber0.protocol import export
from cyber0.protocol.ledger import ExportedRun
from cyber0.simulation import plots
from cyber0.simulation.history import History

__all__ = ["Result"]


class Result:
    """What came of a run.

    Attributes:
        config: What it was asked to do.
        history: Every evaluation and, with keep="votes", every round's votes.
        summary: The outcome as a dictionary, as in `summary.json`.
        folder: Where the run is kept; None if it is not.

    >>> import cyber0
    >>> config = cyber0.RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2)
    >>> result = cyber0.run(config)
    >>> result.accuracy == result.history.evaluations[-1]["accuracy"]
    True
    >>> result.model
    Linear(in_features=784, out_features=10, bias=True)

    """

    def __init__(
        self,
        config: RunConfig,
        history: History,
        summary: dict[str, Any],
        *,
        folder: Path | None = None,
        model: Callable[[], Any],
        exported: Callable[[], ExportedRun],
    ) -> None:
        self.config, self.history, self.summary, self.folder = config, history, summary, folder
        self._model, self._exported = model, exported

    def __repr__(self) -> str:
        reached = f"loss {self.loss:.4f}" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        if self.attack_success is not None:
            reached += f", attack success {self.attack_success:.1%}"
        return f"Result({reached} after {many(self.summary['rounds'], 'round')}, model {self.fingerprint})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what is stored of it, as when a process returns it to another one: the model too."""
        exported = self._exported() if self.config.algorithm == "cyber0" else None
        return {**self.__dict__, "model": self.model, "_model": None, "_exported": partial(_same, exported)}

    @property
    def accuracy(self) -> float | None:
        """The accuracy on the test samples after the last round; None for a task without classes."""
        return self.summary["final_accuracy"]

    @property
    def loss(self) -> float:
        """The mean loss on the test samples after the last round; NaN if the model has diverged."""
        return float("nan") if self.summary["final_loss"] is None else self.summary["final_loss"]

    @property
    def attack_success(self) -> float | None:
        """How often the attack reaches its goal after the last round, of an attack that has one, such as `backdoor`."""
        return self.summary.get("final_attack_success")

    @property
    def metrics(self) -> dict[str, float]:
        """The user's own metrics after the last round; NaN where one was not finite."""
        found = self.history.evaluations[-1].get("metrics", {})
        return {name: float("nan") if value is None else value for name, value in found.items()}

    @property
    def best_on_test(self) -> dict[str, Any]:
        """The evaluation that is best on the test samples: the paper's measure, which knows the test samples."""
        return self._evaluation(self.summary["best_round_on_test"])

    @property
    def best_on_validation(self) -> dict[str, Any]:
        """The evaluation that is best on the validation samples: a choice that does not know the test samples."""
        if "best_round_on_validation" not in self.summary:
            raise InvalidConfig(
                "validation = 0.0: no samples were held out; simulate with validation=0.1, for instance"
            )
        return self._evaluation(self.summary["best_round_on_validation"])

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the final weights, in hexadecimal digits: equal bits, equal fingerprints."""
        return self.summary["model_fingerprint"]

    @cached_property
    def model(self) -> Any:
        """The trained torch module."""
        return self._model()

    def save(self, path: str | Path) -> Path:
        """Write the run as one small file, which with the initial weights is the trained model: `cyber0 replay`."""
        if self.config.algorithm != "cyber0":
            raise InvalidExport(
                f"algorithm = {self.config.algorithm!r} sends weights: only a run by cyber0 is so small"
            )
        export.write(Path(path), self._exported())
        return Path(path)

    def plot(self, axes: Any = None, *, metric: str = "accuracy", over: str = "round", label: str | None = None) -> Any:
        """Draw a measure over rounds or bytes, and return the matplotlib axes: several results can share them.

        Args:
            axes: Where to draw; a new figure if not given.
            metric: "accuracy", "loss", "attack_success", or the name of a metric of your own.
            over: "round", or "bytes" that each client has sent.
            label: What the line is called; by default the rule and the attack.

        >>> import cyber0
        >>> result = cyber0.run(cyber0.RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2))
        >>> result.plot(metric="loss").get_ylabel()
        'loss on test samples'

        """
        return plots.draw_measure(self.history, axes, metric, over, self._label(label))

    def plot_votes(self, axes: Any = None, *, round: int = -1) -> Any:  # noqa: A002
        """Draw what each client sent in a round, liars marked, and what was made of it; return the axes.

        The votes must have been kept, by keep="votes". A negative round counts from the last.

        >>> import cyber0
        >>> config = cyber0.RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2, attack="sf")
        >>> cyber0.run(config, keep="votes").plot_votes(round=0).get_title(loc="left")
        'round 0: 5 votes, 1 by liars'

        """
        return plots.draw_votes(self.history.rounds, axes, round)

    def plot_report(self, axes: Any = None, *, report: str = "omega", label: str | None = None) -> Any:
        """Draw what the attack reported of each round, such as its strength `omega`; return the axes.

        The votes must have been kept, by keep="votes".
        """
        return plots.draw_report(self.history.rounds, axes, report, self._label(label))

    def _label(self, label: str | None) -> str:
        return f"{self.config.rule}, {self.config.attack}" if label is None else label

    def _evaluation(self, number: int) -> dict[str, Any]:
        return next(line for line in self.history.evaluations if line["round"] == number)


def _same(value: Any) -> Any:
    return value
