"""`--track`: the trackers of a command."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cyber0.tracking import TRACKERS, Tracker, get_tracker
from cyber0.user_code import calling

__all__ = ["Track", "track_run", "tracking"]

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help=f"Log to a tracker, with options as in \"tensorboard(logs='logs')\": {', '.join(TRACKERS)}. Repeatable.",
        show_default=False,
    ),
]


@contextmanager
def tracking(names: Sequence[str], folder: Path | None) -> Generator[list[Tracker]]:
    """Make the trackers of a run, and end their runs with it; in a folder they remember them, to go on there."""
    found = [get_tracker(name, folder=folder) for name in names]
    try:
        yield found
    finally:
        for tracker in found:
            tracker.close()


def track_run(name: str, /, config: dict[str, Any], lines: Sequence[dict[str, Any]], **options: Any) -> None:
    """Log a run that has ended, by its evaluations."""
    tracker = get_tracker(name, **options)
    with calling("tracker", tracker):
        tracker.begin(config)
        for line in lines:
            tracker.add(line)
        tracker.close()
