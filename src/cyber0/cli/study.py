"""`cyber0 study`: a grid of runs over several seeds, and the tables, figures and report made of them."""

import shlex
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.study.recipe import Recipe, get_recipe, shipped

if TYPE_CHECKING:
    from cyber0.study.results import Failure, Results
    from cyber0.study.statistics import Measured
    from cyber0.study.study import Watch
    from cyber0.study.work import Batch, Outcome

__all__ = ["study"]


def study(
    recipe: Annotated[
        str, typer.Argument(help=f"A study that comes with cyber0 ({', '.join(shipped())}), or a file in TOML.")
    ],
    out: Annotated[Path | None, typer.Option(help="The folder of the results. \\[default: studies/RECIPE]")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; the recipe says, unless given.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of the data files.")] = None,
    model: Annotated[str | None, typer.Option(help="The folder, or hub id, of the recipe's language model.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = None,
    engine: Annotated[str, typer.Option(help="local: processes of this machine. ray: a Ray cluster.")] = "local",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many processes; one for each core, unless given.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key of the recipe's base, e.g. --set rounds=50. Repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Play only cells with this label now, e.g. --only attack=ALIE. Repeatable."),
    ] = None,
    show: Annotated[bool, typer.Option("--print-recipe", help="Show the recipe and stop.")] = False,
) -> None:
    """Play a study and write its report. A study that was stopped goes on where it was: give the same command."""
    chosen = _changed(get_recipe(recipe), seeds, change or [])
    if show:
        typer.echo(chosen.to_toml(), nl=False)
        return
    for needed in ("matplotlib", "pandas", "jinja2", "scipy"):
        require(needed, extra="study")
    folder = out or Path("studies") / Path(recipe).stem
    here = _here(data, model, device)
    asked = [f"--seeds {chosen.seeds}", *(f"--set {shlex.quote(text)}" for text in change or [])]
    asked += [f"--only {shlex.quote(text)}" for text in only or []]
    asked += [f"--engine {engine}"] * (engine != "local") + ["--data DIR"] * (data is not None)
    asked += [f"--model {'DIR' if Path(model).is_dir() else shlex.quote(model)}"] if model else []
    _play(
        chosen,
        folder,
        {
            "engine": engine,
            "jobs": jobs,
            "options": here,
            "only": _only(only or []),
            "command": _command(recipe, asked),
        },
    )


def _here(data: Path | None, model: str | None, device: str | None) -> dict[str, Any]:
    """What is of this machine, as keys of a run; folders by their whole paths."""
    if data is not None and not data.is_dir():
        raise InvalidConfig(f"--data {data}: there is no such folder")
    folder = str(Path(model).resolve()) if model and Path(model).is_dir() else model
    keys = {"data": None if data is None else str(data.resolve()), "model": folder, "device": device}
    return {key: value for key, value in keys.items() if value is not None}


def _command(recipe: str, asked: list[str]) -> str:
    return " ".join(["cyber0 study", shlex.quote(recipe), *asked])


def _changed(recipe: Recipe, seeds: int | None, changes: list[str]) -> Recipe:
    base = dict(recipe.base)
    for text in changes:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidConfig(f"--set {text!r}: write key=value, e.g. rounds=50")
        if (axis := recipe.axis_of(key.strip())) is not None:
            raise InvalidConfig(
                f"--set {text!r} would change nothing: the axis {axis!r} sets {key.strip()} in every run; "
                f"play some of them by --only {axis}=LABEL, or write a recipe of your own that extends this one"
            )
        base[key.strip()] = _value(value.strip())
    keys = recipe.model_dump(exclude_defaults=True) | {"base": base, "seeds": seeds or recipe.seeds}
    return Recipe.of(keys)


def _only(texts: list[str]) -> dict[str, list[str]]:
    """The labels of each axis that was named."""
    found: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, label = (part.strip() for part in text.partition("="))
        if not equals:
            raise InvalidConfig(f"--only {text!r}: write axis=label, e.g. attack=ALIE")
        found.setdefault(axis, []).append(label)
    return found


def _value(text: str) -> Any:
    """A value as TOML writes it; a word needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _play(recipe: Recipe, folder: Path, options: dict[str, Any]) -> None:
    from cyber0.study.study import study as play

    console = Console(soft_wrap=True)
    try:
        with _watching(console, recipe) as watch:
            results = play(recipe, folder, watch=watch, **options)
    except KeyboardInterrupt:
        console.print(_stopped(folder), markup=False, highlight=False)
        raise typer.Exit(130) from None
    if len(results.frame):
        _show(console, results)
        console.print(f"report    {folder / 'report.html'}", markup=False, highlight=False)
    if results.failures:
        _lament(console, results.failures)
        raise typer.Exit(1)


def _lament(console: Console, failures: "list[Failure]") -> None:
    """Say why runs failed: each reason once, with the first run that met it."""
    reasons: dict[str, list[Failure]] = {}
    for failure in failures:
        reasons.setdefault(failure.message, []).append(failure)
    for message, those in list(reasons.items())[:5]:
        name = ", ".join([*those[0].labels.values(), f"seed {those[0].seed}"])
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        console.print(f"failed    {name}{more}: {message}", style="red", markup=False)
    runs = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
    console.print(f"{runs} failed: give the same command to try again", style="red", highlight=False)


def _stopped(folder: Path) -> str:
    begun = any((folder / "unfinished").glob("*/metrics.jsonl"))
    too = ", and runs under way up to their last evaluation" if begun else ""
    return f"stopped; what has ended is kept{too}. Give the same command to go on."


@contextmanager
def _watching(console: Console, recipe: Recipe) -> "Generator[Watch]":
    """A live display of all that is being played; on a pipe a line for each cell that is complete."""
    from cyber0.study.study import Watch

    display = _Display(console, recipe)
    with Live(display.view, console=console, transient=True, refresh_per_second=4) if console.is_terminal else console:
        yield Watch(display.begin, display.progress, display.end)


class _Display:
    """A line for each cell that is complete; below, a bar for each batch that is being played, and one for all runs."""

    def __init__(self, console: Console, recipe: Recipe) -> None:
        self.console, self.recipe = console, recipe
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.overall, self.active = Progress(*columns, console=console), Progress(*columns[:3], console=console)
        self.view = Group(self.active, self.overall)
        self.bars: dict[int, TaskID] = {}
        self.batches: list[Batch] = []
        self.found: dict[str, list[float]] = {}

    def begin(self, batches: "list[Batch]", done: int) -> None:
        """Show how much there is to do."""
        self.batches = batches
        if done:
            self._say(f"{done} of {len(self.recipe.cells()) * self.recipe.seeds} runs are done already")
        self.whole = self.overall.add_task("rounds of all runs", total=sum(b.config.rounds for a in batches for b in a))

    def progress(self, number: int, round_: int) -> None:
        """Advance a batch."""
        batch = self.batches[number]
        if number not in self.bars:
            names = list(dict.fromkeys(", ".join(job.labels.values()) for job in batch))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self.bars[number] = self.active.add_task(names[0] + more, total=batch[0].config.rounds)
        bar = self.active.tasks[self.active.task_ids.index(self.bars[number])]
        self.overall.advance(self.whole, max(0.0, round_ - bar.completed) * len(batch))
        self.active.update(self.bars[number], completed=max(round_, bar.completed))

    def end(self, number: int, outcomes: "list[Outcome]") -> None:
        """Say what has become of cells."""
        self.progress(number, self.batches[number][0].config.rounds)
        self.active.remove_task(self.bars[number])
        for outcome in outcomes:
            name = ", ".join(outcome.job.labels.values())
            if outcome.error is not None:
                self._say(f"failed: {name}, seed {outcome.job.config.seed}")
                continue
            self.found.setdefault(name, []).append(100 * outcome.lines[-1]["max_accuracy"])
            if len(self.found[name]) == self.recipe.seeds:
                self._say(f"{name}: {sum(self.found[name]) / self.recipe.seeds:.1f} %{self._published(outcome)}")

    def _published(self, outcome: "Outcome") -> str:
        known = self.recipe.published(outcome.job.labels)
        return f" (paper {known[0]:.1f} %)" if known else ""

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)


def _show(console: Console, results: "Results") -> None:
    """The table on the terminal: means in percent, the paper's in parentheses, the worst of each row in bold."""
    from cyber0.study.statistics import agreement, measure
    from cyber0.study.tables import grid

    cells = measure(results)
    shown = grid(results.recipe, cells)
    table = Table(*shown.axes, title=results.recipe.title)
    for column in shown.columns:
        table.add_column(column or "best accuracy", justify="right")
    for row in shown.rows:
        table.add_row(*row, *(_entry(shown.cells.get((row, c)), shown.worst.get(row)) for c in shown.columns))
    console.print(table)
    for cell in shown.beside:
        console.print(f"{cell.name}: {_entry(cell, None)}", highlight=False)
    found = agreement([cell for cell in cells if not cell.beside])
    if found is not None:
        console.print(f"against the paper: RMSE {found.rmse:.1f} points, bias {found.bias:+.1f}", highlight=False)


def _entry(cell: "Measured | None", worst: "Measured | None") -> str:
    if cell is None or cell.best is None:
        return "" if cell is None else "not run"
    ours = f"[bold]{cell.best.mean:.1f}[/]" if cell is worst else f"{cell.best.mean:.1f}"
    return ours if cell.paper is None else f"{ours} [dim]({cell.paper.mean:.1f})[/]"
