"""`cyber0 study`: a grid of runs over several seeds, and the tables, figures and report made of them."""

import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import TaskID
from rich.table import Table

from cyber0.cli.errors import keeping, traceback_wanted
from cyber0.cli.track import Track, track_run
from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig, InvalidUserCode, UnknownName
from cyber0.extras import require
from cyber0.printable import many
from cyber0.progress import Lines, bars, count
from cyber0.study.recipe import Recipe, get_recipe, shipped
from cyber0.tracking import get_tracker

if TYPE_CHECKING:
    from cyber0.study.results import Failure, Results
    from cyber0.study.statistics import Measured
    from cyber0.study.study import Watch
    from cyber0.study.work import Batch, Job, Outcome

__all__ = ["show", "study"]


def study(
    recipe: Annotated[
        str, typer.Argument(help=f"A study that comes with cyber0 ({', '.join(shipped())}), or a file in TOML.")
    ],
    out: Annotated[Path | None, typer.Option(help="The folder of the results. \\[default: studies/RECIPE]")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds. \\[default: as in the recipe]")] = None,
    first_seed: Annotated[
        int | None, typer.Option(min=0, help="The first of the seeds. \\[default: as in the recipe]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder of the data files, if they are not where runs look for them.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The folder, or hub id, of the recipe's language model.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, ... \\[default: as in the recipe]")
    ] = None,
    engine: Annotated[str, typer.Option(help="local: processes of this machine. ray: a Ray cluster.")] = "local",
    jobs: Annotated[int | None, typer.Option(min=1, help="How many processes. \\[default: one for each core]")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key of all runs, e.g. --set rounds=50; may be repeated."),
    ] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option(
            help="Choose a key by validation, e.g. --choose lr=[0.01,0.1]; may be repeated.", show_default=False
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Play only the cells with this label, e.g. --only attack=ALIE; may be repeated."),
    ] = None,
    track: Track = None,
    show: Annotated[bool, typer.Option("--print-recipe", help="Show the recipe and stop.")] = False,
) -> None:
    """Play a grid of runs over several seeds and write its report. After a stop, the same command continues it."""
    chosen = _changed(get_recipe(recipe), {"seeds": seeds, "first_seed": first_seed}, change or [], choose or [])
    if show:
        typer.echo(chosen.to_toml(), nl=False)
        return
    for needed in ("matplotlib", "pandas", "jinja2", "scipy"):
        require(needed, extra="study")
    folder = out or Path("studies") / Path(recipe).stem
    here = _here(data, model, device)
    asked = [f"--seeds {chosen.seeds}", *([] if first_seed is None else [f"--first-seed {first_seed}"])]
    asked += [f"--set {shlex.quote(text)}" for text in change or []]
    asked += [f"--choose {shlex.quote(text)}" for text in choose or []]
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
            "command": " ".join(["cyber0 study", shlex.quote(recipe), *asked]),
        },
        track or [],
    )


def _here(data: Path | None, model: str | None, device: str | None) -> dict[str, Any]:
    """Return the keys of a run that belong to this machine, with whole paths of folders."""
    if data is not None and not data.is_dir():
        raise InvalidConfig(f"--data {data}: there is no such folder")
    folder = str(Path(model).resolve()) if model and Path(model).is_dir() else model
    keys = {"data": None if data is None else str(data.resolve()), "model": folder, "device": device}
    return {key: value for key, value in keys.items() if value is not None}


def _changed(recipe: Recipe, seeds: dict[str, int | None], changes: list[str], choose: list[str]) -> Recipe:
    """Return the recipe with other seeds, with the changes of --set in its base, and with what is to be chosen."""
    base = dict(recipe.base)
    for text in changes:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise InvalidConfig(f"--set {text!r}: write key=value, e.g. rounds=50")
        _check_change(recipe, text, key)
        base[key] = _value(value)
    keys = recipe.model_dump(exclude_defaults=True) | {"base": base}
    for text in choose:
        key, _, values = (part.strip() for part in text.partition("="))
        if not isinstance(_value(values), list):
            raise InvalidConfig(f"--choose {text!r}: write key=[value, value], e.g. lr=[0.01,0.1]")
        keys["choose"] = {**keys.get("choose", {}), key: _value(values)}
    if "lr" in {text.partition("=")[0].strip() for text in (*changes, *choose)}:
        keys.pop("rates", None)  # said of other rates
    return Recipe.of(keys | {key: value for key, value in seeds.items() if value is not None})


def _check_change(recipe: Recipe, text: str, key: str) -> None:
    """Refuse a --set that names no key of a run, or one that would change nothing."""
    if key in ("seed", "seeds"):
        raise InvalidConfig(f"--set {text!r}: say which seeds by --seeds and --first-seed")
    if key.startswith("base."):
        raise InvalidConfig(
            f"--set {text!r}: write {text.strip().removeprefix('base.')}; it is the base that it changes"
        )
    if key.partition(".")[0] in Recipe.model_fields:
        raise InvalidConfig(
            f"--set {text!r}: it changes keys of the runs, such as rounds; to change the study itself, write a recipe "
            "that extends it"
        )
    if key not in RunConfig.model_fields:
        raise UnknownName("key", key, RunConfig.model_fields)
    if (axis := recipe.axis_of(key)) is not None:
        raise InvalidConfig(
            f"--set {text!r} would change nothing: the axis {axis!r} sets {key} in every run; play some of them by "
            f"--only {axis}=LABEL, or write a recipe of your own that extends this one"
        )


def _only(texts: list[str]) -> dict[str, list[str]]:
    """Return the labels that --only names, by axis."""
    found: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, label = (part.strip() for part in text.partition("="))
        if not equals:
            raise InvalidConfig(f"--only {text!r}: write axis=label, e.g. attack=ALIE")
        found.setdefault(axis, []).append(label)
    return found


def _value(text: str) -> Any:
    """Return a value as TOML reads it; a word needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _play(recipe: Recipe, folder: Path, options: dict[str, Any], track: list[str]) -> None:
    from cyber0.study.choose import played
    from cyber0.study.study import study as play

    console = Console(soft_wrap=True)
    for name in track:
        get_tracker(name)  # before the first run is played
    played(recipe).chosen(options["only"])  # refuses a label that there is not, with nothing to go on with
    display = _Display(console, played(recipe), track)
    with keeping(lambda: _kept(folder) if display.begun else ""), display as watch:
        results = play(recipe, folder, watch=watch, **options)
    if len(results.frame):
        show(console, results)
        console.print(f"report    {folder / 'report.html'}", markup=False, highlight=False)
    if results.failures:
        _say_failures(console, results.failures)
        raise typer.Exit(1)


def _say_failures(console: Console, failures: "list[Failure]") -> None:
    """Print why runs failed: each reason once, with the first run that failed for it."""
    reasons: dict[str, list[Failure]] = {}
    for failure in failures:
        reasons.setdefault(failure.message, []).append(failure)
    for message, those in list(reasons.items())[:5]:
        name = ", ".join([*those[0].labels.values(), f"seed {those[0].seed}"])
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        if traceback_wanted():
            console.print(those[0].traceback, markup=False, highlight=False)
        console.print(f"failed    {name}{more}: {message}", style="red", markup=False)
    runs = many(len(failures), "run")
    console.print(f"{runs} failed: give the same command to try again", style="red", highlight=False)


def _kept(folder: Path) -> str:
    """Return what is kept of a study that was stopped; nothing if no run has come far enough."""
    ended = any((folder / "runs").glob("*.json"))
    begun = any((folder / "unfinished").glob("*/metrics.jsonl"))
    kept = ["runs that have ended"] * ended + ["runs under way up to their last evaluation"] * begun
    return f"kept in {folder}: {', '.join(kept)}. Give the same command to go on" if kept else ""


class _Display:
    """What a person sees of a study: a line for each run or cell that ends, and how far all runs are.

    On a terminal that is a bar for each batch under way and one for all runs; elsewhere a plain line now and then.
    """

    def __init__(self, console: Console, recipe: Recipe, track: list[str]) -> None:
        self.track = list(track)
        self.console, self.recipe, self.lines = console, recipe, Lines(console, "all runs")
        self.live = bars(console) if console.is_terminal else None
        self.shown: dict[int, TaskID] = {}
        self.batches: list[Batch] = []
        self.rounds: dict[int, int] = {}  # rounds done of each batch
        self.ended = 0
        self.begun = False  # else there is nothing to go on with
        self.accuracies: dict[str, list[float]] = {}

    def __enter__(self) -> "Watch":
        from cyber0.study.study import Watch

        if self.live is not None:
            self.live.start()
        return Watch(self.begin, self.progress, self.end)

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def begin(self, batches: "list[Batch]", done: int) -> None:
        """Say how much there is to do."""
        self.batches, self.begun = batches, True
        runs = sum(map(len, batches))
        if done:
            whole = len(self.recipe.cells()) * self.recipe.seeds
            self.lines.say(f"{done} of {many(whole, 'run is', 'runs are')} done already")
        if runs:
            said = f"{many(runs, 'run')} to play, in {many(len(batches), 'batch', 'batches')}"
            self.lines.say(f"{self.recipe.title}: {said}")
        total = sum(job.config.rounds for batch in batches for job in batch)
        self.lines.total = total
        if self.live is not None:
            self.whole = self.live.add_task("all runs", total=total, count="", note="")

    def progress(self, number: int, round_: int) -> None:
        """Show that so many rounds of a batch are done."""
        self.rounds[number] = max(round_, self.rounds.get(number, 0))
        done = sum(len(self.batches[batch]) * rounds for batch, rounds in self.rounds.items())
        runs = f"{self.ended} of {many(sum(map(len, self.batches)), 'run has', 'runs have')} ended"
        if self.live is None:
            self.lines.update(done, runs)
            return
        rounds = self.batches[number][0].config.rounds
        if number not in self.shown:
            names = list(dict.fromkeys(", ".join(job.labels.values()) for job in self.batches[number]))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self.shown[number] = self.live.add_task(names[0] + more, total=rounds, count="", note="")
        shown = count(self.rounds[number], rounds, "rounds")
        self.live.update(self.shown[number], completed=self.rounds[number], count=shown)
        self.live.update(self.whole, completed=done, count=count(done, self.lines.total, "rounds"), note=runs)

    def end(self, number: int, outcomes: "list[Outcome]") -> None:
        """Say what has become of the runs of a batch, and of the cells they complete."""
        self.ended += len(outcomes)
        self.progress(number, self.batches[number][0].config.rounds)
        if self.live is not None:
            self.live.remove_task(self.shown[number])
        for outcome in outcomes:
            self._say_outcome(outcome)

    def _track(self, job: "Job", evaluations: list[dict[str, Any]]) -> None:
        """Log a run; a tracker that fails, such as one without a network, stops no study, and is not used again."""
        for name in list(self.track):
            try:
                track_run(name, job.config.model_dump(), evaluations, name=job.name, group=self.recipe.title)
            except InvalidUserCode as error:
                self.track.remove(name)
                self.lines.say(f"{error}: it is not used again")

    def _say_outcome(self, outcome: "Outcome") -> None:
        cell, seed = ", ".join(outcome.job.labels.values()), outcome.job.config.seed
        if outcome.error is not None:
            self.lines.say(f"failed: {cell}, seed {seed}")
            return
        *evaluations, _ = outcome.lines
        self._track(outcome.job, evaluations)
        accuracies = self.accuracies.setdefault(cell, [])
        accuracies.append(100 * outcome.lines[-1]["best_accuracy_on_test"])
        if self.live is None and self.recipe.seeds > 1:
            self.lines.say(f"ended: {cell}, seed {seed}, best accuracy {accuracies[-1]:.1f} %")
        if len(accuracies) == self.recipe.seeds:
            known = self.recipe.published(outcome.job.labels)
            paper = f" (paper {known[0]:.1f} %)" if known else ""
            self.lines.say(f"{cell}: best accuracy {sum(accuracies) / len(accuracies):.1f} %{paper}")


def show(console: Console, results: "Results") -> None:
    """Print the table: means and s.d. in percent, beside them the paper's or the last; the worst of a row in bold."""
    from cyber0.study.statistics import agreement, measure
    from cyber0.study.tables import grid

    cells = measure(results)
    shown, compared = grid(results.recipe, cells), any(cell.paper for cell in cells)
    table = Table(*shown.axes, title=results.recipe.title)
    for column in shown.columns:
        table.add_column(column or "accuracy", justify="right")
    for row in shown.rows:
        table.add_row(
            *row, *(_entry(shown.cells.get((row, c)), shown.worst.get(row), compared=compared) for c in shown.columns)
        )
    beside = "in parentheses the paper's" if compared else "in parentheses after the last round"
    spread = f"mean ± s.d. of {results.recipe.seeds} seeds" if results.recipe.seeds > 1 else "one seed"
    console.print(table)
    counted = "the round that validation chose" if results.validated else "the best round"
    aimed = "; attack: how often it reached its goal then" if any(cell.success for cell in cells) else ""
    console.print(f"test accuracy in {counted} of each run, in percent, {spread}; {beside}{aimed}", highlight=False)
    for choice in results.choices:
        console.print(f"chosen    {choice.text}", markup=False, highlight=False)
    for cell in shown.beside:
        console.print(f"{cell.name}: {_entry(cell, None, compared=compared)}", highlight=False)
    found = agreement([cell for cell in cells if not cell.beside])
    if found is not None:
        console.print(f"against the paper: RMSE {found.rmse:.1f} points, bias {found.bias:+.1f}", highlight=False)


def _entry(cell: "Measured | None", worst: "Measured | None", *, compared: bool) -> str:
    from cyber0.study.tables import accuracy

    if cell is None:
        return ""
    ours = f"[bold]{accuracy(cell)}[/]" if cell is worst else accuracy(cell)
    other = cell.paper if compared else cell.final
    success = "" if cell.success is None else f" [red]attack {cell.success.mean:.1f}[/]"
    return ours + ("" if other is None else f" [dim]({other.mean:.1f})[/]") + success
