"""The results of a study: a row for each run and evaluation, and the runs that failed."""

from dataclasses import dataclass, field
from typing import Any

from cyber0.study.recipe import Labels, Recipe

__all__ = ["Failure", "Results"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed, with its error in a sentence and the traceback."""

    labels: Labels
    seed: int
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a study, from which its report is made.

    `frame`, of pandas, has a row for each run and evaluation: a column of labels for each axis, then seed, round,
    accuracy (0 to 1), loss, scalars_up_per_client, scalars_down_per_client, bytes_up_per_client,
    bytes_down_per_client, seconds; with held-out samples also validation_accuracy and validation_loss, and where the
    attack has a goal attack_success. `about` says how it was measured: the command, versions, the device, the data, the
    time it took. `choices` says which values were chosen where the recipe says `choose`.
    """

    recipe: Recipe
    frame: Any
    failures: list[Failure] = field(default_factory=list[Failure])
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    choices: list[Any] = field(default_factory=list[Any])

    @property
    def validated(self) -> bool:
        """Whether a run counts with the round that validation samples choose, rather than the best on test samples."""
        return "validation_accuracy" in self.frame.columns
