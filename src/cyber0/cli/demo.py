"""`cyber0 demo`: the same liars against a mean and against a robust rule, on real digits."""

import asyncio
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from cyber0.config import RunConfig
from cyber0.extras import require
from cyber0.parameters import Parameters
from cyber0.progress import Progress

__all__ = ["demo"]

CASES = {
    "nobody lies": ("mean", "none"),
    "liars, mean": ("mean", "foe-nnm"),
    "liars, nnm+cwtm": ("nnm+cwtm", "foe-nnm"),
}


def demo(
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="How many rounds to train. \\[default: 120, with --live 400]", show_default=False),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            min=4,
            max=1000,
            help="How many clients; a quarter of them lie. \\[default: 40, with --live 16]",
            show_default=False,
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Play a real federation with liars instead, to be watched in the browser.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --live, the port of its page; 0 is any.")] = 0,
) -> None:
    """Train on 4,000 embedded digits with liars among the clients: once with the mean, once with a robust rule."""
    require("torch", extra="train")
    if live:
        from cyber0.cli.live_demo import play_live

        asyncio.run(play_live(rounds or 400, clients or 16, port, Console()))
    else:
        _compare(rounds or 120, clients or 40)


def _compare(rounds: int, clients: int) -> None:
    from cyber0.simulation import Simulation

    console = Console()
    table = Table("what", "rule", "accuracy on 1,000 unseen digits", "sent by each client")
    accuracy: dict[str, float] = {}
    last: Any = None
    aggregates: list[Any] = []
    with Progress(console, "training", len(CASES) * rounds) as progress:
        for place, (name, (rule, attack)) in enumerate(CASES.items()):
            last = Simulation(_config(rounds, clients, rule, attack))
            aggregates = []
            for played in last.play():
                aggregates.append(played.aggregate)
                progress.update(place * rounds + played.number + 1, note=name)
            accuracy[name] = last.evaluate().accuracy or 0.0
            table.add_row(name, rule, f"{accuracy[name]:.1%}", f"{rounds * last.config.plan.scalars * 4 / 1e3:,.1f} kB")
    console.print(table)
    console.print(_in_words(clients, accuracy))
    trained, rebuilt = last.parameters.fingerprint(), _rebuilt(last, aggregates)
    verdict = "the same model to the last bit" if trained == rebuilt else "ANOTHER MODEL"
    kept = f"{rounds * last.config.plan.scalars * 4 / 1e3:,.1f} kB"
    console.print(
        f"The last model is {trained:016x} as trained, and {rebuilt:016x} as rebuilt from its {kept} of scalars, "
        f"without torch: {verdict}."
    )
    if trained != rebuilt:
        raise typer.Exit(1)


def _config(rounds: int, clients: int, rule: str, attack: str) -> RunConfig:
    given: dict[str, Any] = {"rounds": rounds, "clients": clients, "byzantine": clients // 4, "alpha": 1.0}
    return RunConfig(source="embedded", rule=rule, attack=attack, evaluate_every=rounds, **given)


def _rebuilt(simulation: Any, aggregates: list[Any]) -> int:
    """Return the fingerprint of the model rebuilt from zeros and what was aggregated in each round, without torch."""
    entries = simulation.parameters.manifest.entries
    rebuilt = Parameters({entry.name: np.zeros(entry.shape, dtype=np.float32) for entry in entries})
    for number, aggregate in enumerate(aggregates):
        if aggregate is not None:
            rebuilt.apply(simulation.config.plan.commit(number, aggregate))
    return rebuilt.fingerprint()


def _in_words(clients: int, accuracy: dict[str, float]) -> str:
    honest, broken, robust = accuracy.values()
    return (
        f"{clients // 4} of {clients} clients lie together, knowing all votes and the rule (FOE). Averaging them in, "
        f"the model ends at {broken:.1%} instead of {honest:.1%}. Mixing each vote with its nearest and trimming the "
        f"extremes (nnm+cwtm), it ends at {robust:.1%}."
    )
