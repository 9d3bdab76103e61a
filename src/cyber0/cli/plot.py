"""`cyber0 plot`: pictures of runs that were kept in folders."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cyber0.errors import InvalidConfig, UnknownName
from cyber0.extras import require

__all__ = ["plot"]

KINDS = {
    "accuracy": "accuracy over rounds, or over bytes, a line for each run",
    "loss": "the same of the loss",
    "attack-success": "the same of how often an attack with a goal, such as backdoor, reaches it",
    "votes": "the votes of a round, liars marked; of one run with --keep votes",
    "omega": "the strength the attack chose in each round; of runs with --keep votes",
    "holdings": "who holds what; of one run",
}


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that have ended.", show_default=False)],
    kind: Annotated[
        str, typer.Option(help="; ".join(f"{kind}: {what}" for kind, what in KINDS.items()) + ".")
    ] = "accuracy",
    over: Annotated[
        str | None,
        typer.Option(help="round, or bytes that each client has sent. \\[default: round]", show_default=False),
    ] = None,
    round_: Annotated[
        int | None,
        typer.Option(
            "--round",
            help="Of votes: which round; negative ones count from the last. \\[default: -1]",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="What a run is called, in their order. Repeatable. \\[default: its folder]", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture to write: .svg, .pdf or .png.")] = Path("plot.svg"),
) -> None:
    """Draw runs that were kept in folders: accuracy over rounds or bytes, the votes of a round, who holds what."""
    require("torch", extra="train")
    require("matplotlib", extra="study")
    if kind not in KINDS:
        raise UnknownName("kind of picture", kind, KINDS)
    if kind in ("votes", "holdings") and len(runs) > 1:
        raise InvalidConfig(f"--kind {kind} shows one run, and {len(runs)} are given: name one")
    _check_used(kind, over, round_)
    if label and len(label) != len(runs):
        raise InvalidConfig(f"--label is given {len(label)} times for {len(runs)} runs: give it once for each")
    from cyber0.simulation.plots import save

    if kind == "holdings":
        _draw_holdings(runs[0], out)
    else:
        save(_drawn(runs, kind, over or "round", -1 if round_ is None else round_, label or _names(runs)), out)
    typer.echo(f"written to {out}")


def _check_used(kind: str, over: str | None, round_: int | None) -> None:
    """Refuse an option that says nothing about this kind of picture."""
    if over is not None and kind in ("votes", "omega", "holdings"):
        raise InvalidConfig(
            f"--over {over} is for accuracy, loss and attack-success, not for --kind {kind}: leave it out"
        )
    if round_ is not None and kind != "votes":
        raise InvalidConfig(f"--round {round_} is for --kind votes, not for {kind}: leave it out")


def _drawn(runs: list[Path], kind: str, over: str, number: int, labels: list[str]) -> Any:
    from cyber0.simulation import open_run

    axes: Any = None
    for path, label in zip(runs, labels, strict=True):
        result = open_run(path)
        try:
            if kind == "votes":
                axes = result.plot_votes(round=number)
            elif kind == "omega":
                axes = result.plot_report(axes, report=kind, label=label)
            else:
                axes = result.plot(axes, metric=kind.replace("-", "_"), over=over, label=label)
        except InvalidConfig as error:
            raise InvalidConfig(f"{path}: {error}") from error
    return axes


def _names(runs: list[Path]) -> list[str]:
    """Return the name of each folder, or its whole path where two have the same name."""
    names = [path.resolve().name for path in runs]
    return names if len(set(names)) == len(names) else [str(path) for path in runs]


def _draw_holdings(run: Path, out: Path) -> None:
    """Draw how the samples of a run were dealt to its clients."""
    from cyber0.participant import load_task
    from cyber0.simulation.folder import RunFolder
    from cyber0.tasks.convert import GIVEN
    from cyber0.tasks.holdings import write
    from cyber0.tasks.partition import count, shares_of

    config, lines = RunFolder.configuration(run), RunFolder.read(run).lines
    if lines and lines[0].get("data") == GIVEN:
        raise InvalidConfig(f"{run}: the data of this run were given in Python, so who holds what is not known here")
    dataset = load_task(config, config.data, config.source).dataset
    if dataset.classes is None:
        raise InvalidConfig(f"{run}: the task {config.task!r} has no classes, so there is nothing to show by class")
    if config.validation > 0:
        dataset, _ = dataset.split_validation(config.validation, config.seed)
    options = {} if config.alpha is None else {"alpha": config.alpha}
    shares = shares_of(dataset, config.partition, config.clients, config.seed, **options)
    counts = count(dataset.train_labels, shares, dataset.classes)
    write(out, counts, f"{config.clients} clients, {config.partition}, seed {config.seed}\n{dataset.source}")
