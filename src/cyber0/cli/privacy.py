"""`cyber0 privacy`: the noise for a budget, or the budget that noise spends, and how it is spent over the rounds."""

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cyber0.config import DELTA
from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.privacy.accounting import Step, check_delta, check_epsilon, epsilon_of, noise_for
from cyber0.privacy.sampling import sampling_rate

__all__ = ["privacy"]

SHOWN = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)  # of the rounds, in the table
POINTS = 25  # of the plot


def privacy(
    samples: Annotated[int, typer.Option(min=1, help="How many samples the client has.", show_default=False)],
    epsilon: Annotated[
        float | None, typer.Option(help="The budget: print the noise for it.", show_default=False)
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="The noise multiplier: print the epsilon that it spends.", show_default=False)
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of the budget, below 1 / samples.")] = DELTA,
    batch: Annotated[int, typer.Option(min=0, help="The expected size of a batch; 0: all samples.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to vote in.")] = 400,
    local_epochs: Annotated[int, typer.Option(min=1, help="Local steps per round.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="A file for a plot of epsilon over rounds, as privacy.svg.", show_default=False)
    ] = None,
) -> None:
    """Compute what a run costs a client's data: the noise for an epsilon, or the epsilon of a noise."""
    if (epsilon is None) == (noise is None):
        raise InvalidConfig("give --epsilon to learn the noise, or --noise to learn epsilon: one of the two")
    check_delta(delta, samples)
    rate, steps = sampling_rate(batch, samples), rounds * local_epochs
    if epsilon is not None:
        check_epsilon(epsilon)
        noise = noise_for(epsilon, delta, rate, steps)
    if noise is None or not 0 < noise < math.inf:
        raise InvalidConfig(f"noise = {noise}: it must be a number above 0, as 0.8; without noise nothing is private")
    step, console = Step(noise, rate), Console(soft_wrap=True)
    console.print(f"noise multiplier  {noise:.4g}", highlight=False)
    console.print(f"sampling rate     {rate:.4g}: Poisson batches of {rate * samples:.4g} expected", highlight=False)
    console.print(_table(step, rounds, local_epochs, delta))
    console.print(
        f"Epsilon at delta = {delta:g} of one sample of one client, in {steps:,} local steps: two data sets are\n"
        "neighbours if one has one sample more than the other. It holds against everybody who reads\n"
        "the votes, if noise and batches come from the client's own secret randomness."
    )
    if plot is not None:
        _plot(plot, step, rounds, local_epochs, delta)
        console.print(f"written to        {plot}", highlight=False)


def _table(step: Step, rounds: int, local_epochs: int, delta: float) -> Table:
    table = Table("rounds", "epsilon")
    for number in sorted({max(1, round(share * rounds)) for share in SHOWN}):
        table.add_row(f"{number:,}", f"{epsilon_of([(step, number * local_epochs)], delta):.3f}")
    return table


def _plot(path: Path, step: Step, rounds: int, local_epochs: int, delta: float) -> None:
    figure = require("matplotlib.figure", extra="study").Figure(figsize=(5, 3.2), layout="constrained")
    numbers = sorted({max(1, round(rounds * place / POINTS)) for place in range(POINTS + 1)})
    spent = [epsilon_of([(step, number * local_epochs)], delta) for number in numbers]
    axes = figure.subplots()
    axes.plot(numbers, spent)
    axes.set(xlabel="rounds", ylabel=f"epsilon at delta = {delta:g}", ylim=(0, None), xlim=(0, rounds))
    axes.set_title(f"noise {step.noise:.3g}, sampling rate {step.rate:.3g}")
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise InvalidConfig(f"--plot {path}: {error}; name it .svg, .png or .pdf") from None
