"""Callbacks: code of a user's that is called as a run goes on, be it simulated or served to real clients."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.errors import InvalidUserCode
from cyber0.registry import resolve
from cyber0.user_code import calling, label_of

__all__ = ["Callback", "Callbacks", "Round"]


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What happened in a round.

    In a simulation clients are numbers; the votes are there too, as [rows, participants, directions]. In a federation
    clients are names, and the ledger has the votes.

    Attributes:
        number: Counted from 0.
        participants: Who voted.
        admitted: Whose votes counted.
        aggregate: What the rule made of them, [rows, directions]; None if there was no commit.
        liars: Who of the participants is Byzantine, as far as that is known.
        honest: What each participant would honestly have sent.
        sent: What each participant sent.
        reports: What the attack said of the round, such as its strength `omega`.

    """

    number: int
    participants: Sequence[Any] | NDArray[Any]
    admitted: Sequence[Any] | NDArray[Any] = ()
    aggregate: NDArray[np.float32] | None = None
    liars: Sequence[Any] | NDArray[Any] = ()
    honest: Any = None
    sent: Any = None
    reports: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Callback:
    """Override what you want to hear of. `run` is the `Simulation` or the `Federator` that is at work.

    >>> import cyber0
    >>> class Stopwatch(cyber0.Callback):
    ...     def after_evaluation(self, run, evaluation):
    ...         print(f"round {evaluation['round']}: accuracy {evaluation['accuracy']:.0%}")
    >>> config = cyber0.RunConfig(source="embedded", clients=5, byzantine=1, directions=4, rounds=2)
    >>> result = cyber0.run(config, callbacks=[Stopwatch()])
    round 0: accuracy 10%
    round 2: accuracy ...%
    """

    def before_run(self, run: Any) -> None:
        """Be called before the first round, or before the first one after a run is resumed."""

    def after_round(self, run: Any, round: Round) -> None:  # noqa: A002
        """Be called after each round."""

    def after_evaluation(self, run: Any, evaluation: Mapping[str, Any]) -> None:
        """Be called after each evaluation, with its round, accuracy, loss and so on."""


class Callbacks(Callback):
    """Several callbacks as one. What one of them raises is reported under its name.

    >>> Callbacks(["print"])
    Traceback (most recent call last):
    cyber0.errors.InvalidUserCode: callback 'print': give an object of a subclass of cyber0.Callback, or its name as \
package.module:object
    """

    def __init__(self, callbacks: Iterable[Any] = ()) -> None:
        if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidUserCode(f"callbacks = {callbacks!r}: give a list of callbacks")
        self._all = [_made(callback) for callback in callbacks]

    def before_run(self, run: Any) -> None:
        """Call all of them."""
        for callback in self._all:
            with calling("callback", callback):
                callback.before_run(run)

    def after_round(self, run: Any, round: Round) -> None:  # noqa: A002
        """Call all of them."""
        for callback in self._all:
            with calling("callback", callback):
                callback.after_round(run, _read_only(round))

    def after_evaluation(self, run: Any, evaluation: Mapping[str, Any]) -> None:
        """Call all of them."""
        for callback in self._all:
            with calling("callback", callback):
                callback.after_evaluation(run, deepcopy(evaluation))


def _read_only(played: Round) -> Round:
    """Return a round whose arrays cannot be written to: they are what the run keeps."""
    shown: dict[str, Any] = {"reports": dict(played.reports)}
    for name in ("participants", "admitted", "aggregate", "liars", "honest", "sent"):
        value = getattr(played, name)
        if isinstance(value, np.ndarray):
            shown[name] = value.view()
            shown[name].flags.writeable = False
    return replace(played, **shown)


def _made(given: Any) -> Callback:
    found: Any = resolve("callback", given, {}) if isinstance(given, str) and ":" in given else given
    if isinstance(found, type) and issubclass(found, Callback):
        with calling("callback", found):
            found = found()
    if not isinstance(found, Callback):
        shown = given if isinstance(given, str) else label_of(given)
        raise InvalidUserCode(
            f"callback {shown!r}: give an object of a subclass of cyber0.Callback, or its name as package.module:object"
        )
    for name in dir(type(found)):
        if name.startswith(("after_", "before_", "on_")) and not hasattr(Callback, name):
            raise InvalidUserCode(
                f"callback {label_of(found)} has {name}, which nothing calls: a callback has before_run, after_round "
                "and after_evaluation"
            )
    return found
