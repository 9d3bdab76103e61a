"""How a federator was told to serve a run, kept in its ledger: a restart goes on so unless it is told otherwise."""

from collections.abc import Mapping
from typing import Any

from cyber0.config import Agreement
from cyber0.errors import Cyber0Error, InvalidLedger
from cyber0.protocol.settings import Settings
from cyber0.protocol.sqlite import File

__all__ = ["DEFAULTS", "asked_before", "keep_asked", "serving"]

DEFAULTS: dict[str, float | int] = {
    "deadline": 60.0,
    "patience": 2.0,
    "linger": 0.0,
    "fingerprint_every": 100,
    "evaluate_every": 10,
}
ASKED = "asked"


def serving(ledger: File, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options to serve a ledger with, and sentences about those that it keeps or that change.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> with File(Path(mkdtemp()) / "run.ledger") as ledger:
    ...     ledger.remember({"deadline": 2.0, "patience": 3.0})
    ...     options, said = serving(ledger, {"deadline": 5.0})
    >>> options["deadline"], options["patience"], options["linger"]
    (5.0, 3.0, 0.0)
    >>> said
    ['as before: patience 3', 'changed: deadline 5, which was 2']
    """
    kept = {name: value for name, value in ledger.settings.items() if name in DEFAULTS}
    for name, value in kept.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise InvalidLedger(f"{ledger.path} is damaged: {name} = {value!r} must be a number of at least 0")
        if isinstance(DEFAULTS[name], int) and not isinstance(value, int):
            raise InvalidLedger(f"{ledger.path} is damaged: {name} = {value!r} must be an integer")
    options = {**DEFAULTS, **kept, **given}
    same = [f"{name} {value:g}" for name, value in kept.items() if options[name] == value]
    other = [f"{name} {options[name]:g}, which was {kept[name]:g}" for name in kept if options[name] != kept[name]]
    sentences = [f"as before: {', '.join(same)}"] if same else []
    return options, sentences + ([f"changed: {', '.join(other)}"] if other else [])


def keep_asked(ledger: File, settings: Settings) -> None:
    """Keep which run was asked for, while it is not founded."""
    agreement, roster = settings.agreement.model_dump(mode="json"), list(settings.roster)
    ledger.remember({ASKED: {"agreement": agreement, "roster": roster, "keep_votes": settings.keep_votes}})


def asked_before(ledger: File) -> Settings | None:
    """Return which run was asked for before a ledger's run was founded; None if it is founded, or nobody knows."""
    asked = None if ledger.founded else ledger.settings.get(ASKED)
    if asked is None:
        return None
    try:
        roster = tuple(map(str, asked["roster"]))
        return Settings(Agreement(**asked["agreement"]), roster, keep_votes=asked["keep_votes"] is True)
    except (Cyber0Error, TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidLedger(f"{ledger.path} is damaged: what was asked for cannot be read: {error}") from None
