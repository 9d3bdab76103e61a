"""`cyber0 theory`: what the paper proves of a run, and how robust each rule is, proven and measured."""

from fractions import Fraction
from math import isinf, log
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cyber0.aggregation import RULES, get_rule
from cyber0.config import RunConfig
from cyber0.errors import InvalidAggregation, InvalidConfig
from cyber0.progress import Progress
from cyber0.testing import measured_kappa
from cyber0.theory import Constants, distortion, largest_lr, least_directions, proven_kappa, theorem_2
from cyber0.theory_as_printed import FirstConstants, first_constants
from cyber0.theory_as_printed import largest_lr as printed_lr
from cyber0.theory_as_printed import theorem_2 as printed_theorem_2

__all__ = ["theory"]

PAPER = RunConfig()  # its MNIST study
MEASURABLE = 11  # so many vectors have at most 462 honest subsets: seconds for all rules
TRIALS = 100
MEASURED = [*RULES, *(f"nnm+{rule}" for rule in ("cwtm", "geometric_median", "krum", "median"))]


def theory(
    clients: Annotated[int, typer.Option(min=2, help="Clients (the paper's n).")] = PAPER.clients,
    byzantine: Annotated[int, typer.Option(min=0, help="How many of them may lie (b).")] = PAPER.byzantine,
    rounds: Annotated[int, typer.Option(min=1, help="Global epochs (T).")] = PAPER.rounds,
    local_epochs: Annotated[int, typer.Option(min=1, help="Local steps per round (K).")] = PAPER.local_epochs,
    directions: Annotated[int, typer.Option(min=1, help="Directions per step (nu).")] = PAPER.directions,
    delta: Annotated[float, typer.Option(help="How likely the guarantee may fail (Delta).")] = 0.05,
    dimension: Annotated[int, typer.Option(min=1, help="Parameters of the model (d).")] = 7850,
    lr: Annotated[float, typer.Option(help="The learning rate (eta).")] = PAPER.lr,
    mu: Annotated[float, typer.Option(help="How far to perturb (mu); 0 for derivatives.")] = PAPER.mu,
    rule: Annotated[str, typer.Option(help="The rule whose proven kappa enters the bound.")] = PAPER.rule,
    kappa: Annotated[
        float | None, typer.Option(help="The rule's kappa, instead of the proven one.", show_default=False)
    ] = None,
    loss_gap: Annotated[
        float, typer.Option(help="The first loss above the least one (F_H(w_1) - F_H*); by default log 10.")
    ] = round(log(10), 3),
    gradient_lipschitz: Annotated[float, typer.Option(help="How fast a client's gradient changes (L).")] = 1.0,
    objective_lipschitz: Annotated[float, typer.Option(help="How fast a client's loss changes (G).")] = 1.0,
    average_lipschitz: Annotated[
        float, typer.Option(help="How fast the average gradient leaves the gradient at the average (D).")
    ] = 1.0,
    divergence: Annotated[
        float, typer.Option(help="Squared distance of a client's gradient from the honest one (zeta^2).")
    ] = 1.0,
    gradient_variance: Annotated[
        float, typer.Option(help="Variance of a client's gradient on a batch (sigma^2).")
    ] = 1.0,
    numerical: Annotated[float, typer.Option(help="The paper's constant varphi, to which it gives no value.")] = 1.0,
) -> None:
    """Evaluate what is proven of a run, and what the paper says; by default of its MNIST study, with constants 1."""
    console = Console()
    run: dict[str, Any] = {"rounds": rounds, "local_epochs": local_epochs, "delta": delta}
    constants = Constants(
        loss_gap=loss_gap,
        gradient_lipschitz=gradient_lipschitz,
        divergence=divergence,
        average_lipschitz=average_lipschitz,
        objective_lipschitz=objective_lipschitz,
        gradient_variance=gradient_variance,
        numerical=numerical,
    )
    proven = proven_kappa(rule, clients, byzantine)
    run["honest"] = clients - byzantine
    least = least_directions(**run)
    run |= {"dimension": dimension, "mu": mu, "kappa": _finite(rule, proven) if kappa is None else kappa}
    choices = sorted({directions, least, 4 * least})
    ours = _ours(constants, {name: value for name, value in run.items() if name != "delta"}, choices, lr)
    printed = _as_printed(constants, run, choices, lr) if mu > 0 else "The paper's Theorem 2 is for mu above 0.\n"
    for shown in (*ours, _conditions(constants, run, directions, least, lr), printed, ""):
        console.print(shown)
    _robustness(console, clients, byzantine)


def _finite(rule: str, kappa: float | None) -> float:
    if kappa is None or isinf(kappa):
        raise InvalidConfig(f"rule = {rule!r}: no kappa is proven for it; give --kappa, or a rule such as cwtm")
    return kappa


def _ours(constants: Constants, run: dict[str, Any], choices: list[int], lr: float) -> tuple[str, Table]:
    largest = largest_lr(constants, run["local_epochs"])
    held = f"{lr:g} satisfies it." if lr <= largest else f"{lr:g} does not satisfy it: the bound is for {largest:.3g}."
    condition = (
        "Theorem 2, repaired (docs/theory.md): for any number of directions,\n"
        f"with a learning rate of {largest:.3g} or less.\n{held}\n"
    )
    title = f"Theorem 2, repaired: the bound on the average E |gradient|^2 (kappa = {run['kappa']:.3g})"
    table = Table("directions", "start", "drift", "variance", "bias", "byzantine", "bound", title=title)
    for directions in choices:
        slow: dict[str, Any] = {"lr": min(lr, largest)}
        bound = theorem_2(constants, directions=directions, **run, **slow)
        table.add_row(f"{directions:,}", *(f"{value:.3g}" for value in (*bound, bound.total)))
    return condition, table


def _conditions(constants: Constants, run: dict[str, Any], directions: int, least: int, lr: float) -> str:
    largest = printed_lr(constants, run["local_epochs"])
    enough = (
        f"{directions:,} directions satisfy it."
        if directions >= least
        else f"{directions:,} directions do not satisfy it: the theorems say nothing of such a run,\n"
        "nor of the paper's own, which have 64 or fewer."
    )
    slow = (
        f"{lr:g} satisfies it." if lr <= largest else f"{lr:g} does not satisfy it: the formula is for {largest:.3g}."
    )
    third = _condition_c(constants, {**run, "lr": lr}, max(directions, least)) if run["mu"] > 0 else ""
    return (
        "\nThe paper's theorems, as printed. They are false: docs/theory.md has a counterexample.\n"
        f"Condition (b) of both theorems: {least:,} directions or more\n(honest clients: {run['honest']:,}, rounds: "
        f"{run['rounds']:,}, local epochs: {run['local_epochs']:,}, probability: {1 - run['delta']:g}).\n{enough}\n"
        f"Condition (a) of Theorem 2: a learning rate of {largest:.3g} or less. {slow}\n{third}"
    )


def _condition_c(constants: Constants, run: dict[str, Any], directions: int) -> str:
    found: FirstConstants = first_constants(constants, directions=directions, **run)
    holds = "holds" if found.condition_c <= 0.5 else "does not hold"
    named = ", ".join(f"{name} = {value:.3g}" for name, value in zip("LMNOP", found, strict=True))
    return (
        f"Condition (c) of Theorem 1: N + O L <= 1/2. With {directions:,} directions it {holds}:\n"
        f"{found.condition_c:.3g} ({named}).\n"
    )


def _as_printed(constants: Constants, run: dict[str, Any], choices: list[int], lr: float) -> Table:
    table = Table("directions", "epsilon", "start", "drift", "variance", "bias", "sum", title="Theorem 2, as printed")
    names = ("honest", "rounds", "local_epochs", "delta")
    for directions in choices:
        epsilon = distortion(directions, **{name: run[name] for name in names})
        shown = ["-"] * 5
        if epsilon < 1:
            slow: dict[str, Any] = {"lr": min(lr, printed_lr(constants, run["local_epochs"]))}
            bound = printed_theorem_2(constants, directions=directions, **run, **slow)
            shown = [f"{value:.3g}" for value in (*bound, bound.total)]
        table.add_row(f"{directions:,}", f"{epsilon:.5g}", *shown)
    return table


def _robustness(console: Console, n: int, byzantine: int) -> None:
    few, liars = _measurable(n, byzantine)
    same = few * byzantine == n * liars  # proven kappas depend on b / n only
    pairs = [(n, byzantine)] if same else [(n, byzantine), (few, liars)]
    title = "How robust each rule is: kappa (Definition 2)"
    table = Table("rule", *(f"proven\nn={n} b={b}" for n, b in pairs), f"measured\nn={few} b={liars}", title=title)
    measured = _measured(console, few, liars)
    for rule in sorted(measured, key=lambda rule: _order(measured[rule])):
        table.add_row(rule, *(_shown(proven_kappa(rule, *pair)) for pair in pairs), _shown(measured[rule]))
    console.print(table)
    if few != n:
        console.print(
            f"Measured with {liars} of {few}, {'the same' if same else 'the nearest'} ratio:\n"
            f"{byzantine} of {n} have too many honest subsets to try them all."
        )
    console.print(
        f"No rule is below b / (n - 2b) = {byzantine / (n - 2 * byzantine):.3g}. A true kappa is between the two:\n"
        "measured is the worst seen over all honest subsets, proven the most it can be.\n"
        "inf: one liar moves it anywhere. -: no proof is known to us, or too few votes."
    )


def _measurable(n: int, byzantine: int) -> tuple[int, int]:
    """Return the pair if it is small, otherwise the largest small pair of the nearest ratio; it keeps a liar."""
    if n <= MEASURABLE:
        return n, byzantine
    pairs = [(m, b) for m in range(3, MEASURABLE + 1) for b in range(min(byzantine, 1), (m + 1) // 2)]
    return min(pairs, key=lambda pair: (abs(Fraction(pair[1], pair[0]) - Fraction(byzantine, n)), -pair[0]))


def _measured(console: Console, n: int, byzantine: int) -> dict[str, float | None]:
    kappas: dict[str, float | None] = {}
    with Progress(console, "measuring", len(MEASURED), unit="rules") as progress:
        for done, rule in enumerate(MEASURED):
            progress.update(done)
            try:
                kappas[rule] = measured_kappa(get_rule(rule), n, byzantine, trials=TRIALS)
            except InvalidAggregation:  # Bulyan needs more vectors
                kappas[rule] = None
    return kappas


def _order(kappa: float | None) -> tuple[bool, float]:
    """Return a sort key by which what could not be measured comes last."""
    return kappa is None, kappa or 0.0


def _shown(kappa: float | None) -> str:
    return "-" if kappa is None else "inf" if isinf(kappa) else f"{kappa:.2f}"
