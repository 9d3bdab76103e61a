"""Writes the pages of docs/reference/ that list what there is: names, configuration, commands. `make docs` runs it.

The pages are made of the code itself, so a new attack, option or key is in them; they are not kept in the repository.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import typer.main
from pydantic.fields import FieldInfo

from cyber0.cli.catalogue import entries
from cyber0.cli.commands import app
from cyber0.config import Agreement, MachineOptions, Options, SimulationOptions
from cyber0.study.recipe import Recipe

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
LIMITS = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
TABLES = {  # names that keys of a run may have, and the page about them
    "schedules": "schedules.md",
    "step-rules": "schedules.md#normalised-steps",
    "families": "stream.md",
    "schemes": "local-epochs.md",
    "engines": "simulate.md#engines-and-the-baseline",
    "trackers": "track.md",
}
WORDS = {int: "an integer", float: "a number", str: "a text", bool: "`true` or `false`", list: "a list"}

RULES = """# Rules

Name a rule by `--rule`, `rule=` or `cyber0.get_rule`: `cwtm`, with options `krum(power=1)`, after pre-aggregations
`nnm+cwtm`, or yours as [`package.module:function`](../extend.md#a-rule). [Which to choose](../rules.md), and what each
guarantees, is a page of its own; `cyber0 list rules` shows this table.
"""
ATTACKS = """# Attacks

Name an attack by `--attack`, `attack=` or `cyber0.get_attack`: `foe`, with options `alie(omega=1.5)`, or yours as
[`package.module:function`](../extend.md#an-attack). [What they aim at](../attacks.md) is a page of its own; this table
is that of `cyber0 list attacks`.
"""
TASKS = """# Tasks

Name a task by `--task`, `task =` or `cyber0.get_task`: `mnist`, with options `mnist-mlp(hidden=32)`, or yours as
[`package.module:function`](../extend.md#a-task). Those on texts take [a language model](../text.md) and, besides their
own, the [options of all tasks on texts](#cyber0.tasks.text.tasks.Options).
"""
PARTITIONS = """# Partitions

Name a partition by `--partition` or `partition=`: `iid`, with options `shards(per_client=3)`, or yours as
[`package.module:function`](../extend.md#a-partition). `cyber0 data` shows who holds what.
"""
CONFIGURATION = """# Configuration

Every key of a run: as an option of `cyber0 run` (`--local-epochs 3`), as a line of a recipe in TOML
(`local_epochs = 3`), as an argument of `cyber0.simulate` and of `cyber0.RunConfig`. An unknown key, or a value out of
range, is an error that names it. `cyber0 run --print-config` prints a whole configuration.
"""
COMMANDS = """# Commands

Made of the commands' own help. Any command takes `--help`, and `--traceback` to see where an error comes from.
"""


def pages() -> dict[str, str]:
    """Return each generated page by the name of its file."""
    return {
        "rules.md": RULES + _names("rules") + "\n## Pre-aggregations\n" + _names("pre-aggregations", level=3),
        "attacks.md": ATTACKS + _names("attacks"),
        "tasks.md": TASKS + _names("tasks") + "\n::: cyber0.tasks.text.tasks.Options\n",
        "partitions.md": PARTITIONS + _names("partitions"),
        "configuration.md": CONFIGURATION + "".join(_configuration()),
        "commands.md": COMMANDS + "".join(_commands()),
    }


def _names(kind: str, level: int = 2) -> str:
    details = [
        f"\n::: {entry.path}\n    options:\n      heading_level: {level}\n      show_root_full_path: false\n"
        for entry in entries(kind)
        if entry.found is not None
    ]
    return _table(kind) + "".join(details)


def _table(kind: str) -> str:
    lines = ["\n| name | options | what it is |", "|---|---|---|"]
    for entry in entries(kind):
        names = ", ".join(f"`{name}`" for name in (entry.name, *entry.others))
        lines.append(f"| {names} | {_code(entry.options)} | {_cell(entry.summary)} |")
    return "\n".join(lines) + "\n"


def _configuration() -> Iterator[str]:
    parts: dict[str, type[Options]] = {
        "What all parties of a run share": Agreement,
        "What only a simulation has": SimulationOptions,
        "What belongs to one machine": MachineOptions,
    }
    for title, part in parts.items():
        yield f"\n## {title}\n\n`cyber0.config.{part.__name__}`: {(part.__doc__ or '').partition('.')[0].strip()}.\n"
        yield _fields(part.model_fields)
    for kind, page in TABLES.items():
        title = kind.replace("-", " ").capitalize()
        yield f"\n## {title}\n\n[More about them](../{page}).\n" + _table(kind)
    yield "\n## A study\n\nThe keys of [a study's recipe](../study.md#a-recipe-of-your-own).\n"
    yield _fields(Recipe.model_fields)


def _fields(fields: dict[str, FieldInfo]) -> str:
    lines = ["\n| key | default | values | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = "" if field.is_required() or field.default is None else _code(_toml(field.default))
        lines.append(f"| `{name}` | {default} | {_cell(_values(field))} | {_cell(field.description or '')} |")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _values(field: FieldInfo) -> str:
    """Return which values a key may have, in words."""
    kind, bounds = field.annotation, list(field.metadata)
    for inner in get_args(kind):  # Annotated[int, ...] | None
        if get_origin(inner) is not None and hasattr(inner, "__metadata__"):
            bounds += [each for meta in inner.__metadata__ for each in getattr(meta, "metadata", [meta])]
            kind = get_args(inner)[0]
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    limits = [
        words.format(_bound(getattr(each, name)))
        for name, words in LIMITS.items()
        for each in bounds
        if hasattr(each, name)
    ]
    return ", ".join([_kind(kind), *limits])


def _bound(value: float) -> str:
    """Return a limit as a reader writes it: 2**32 - 1 rather than 4294967295."""
    for power in (16, 32, 64):
        if value in (2**power, 2**power - 1):
            return f"2**{power}" + (" - 1" if value == 2**power - 1 else "")
    return f"{value:g}"


def _kind(kind: Any) -> str:
    several = get_args(kind) if get_origin(kind) not in (list, dict, None) else (kind,)
    found = [WORDS.get(get_origin(each) or each, "a table") for each in several if each is not type(None)]
    return " or ".join(dict.fromkeys(found))


def _commands() -> Iterator[str]:
    root: Any = typer.main.get_command(app)
    for path, command in _walk(root, ("cyber0",)):
        context = click.Context(command, info_name=" ".join(path))
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"\n## {' '.join(path)}\n\n```text\n{' '.join(path)} {usage}\n```\n\n{_plain(command.help or '')}\n"
        rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows:
            yield "\n| argument or option | what it is |\n|---|---|\n" + "\n".join(rows) + "\n"


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from _walk(inner, (*path, name))


def _row(parameter: Any) -> str:
    if isinstance(parameter, click.Argument):
        return f"| `{(parameter.name or '').upper()}` | {_cell(_plain(getattr(parameter, 'help', None) or ''))} |"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    shown = not parameter.is_flag and parameter.show_default and parameter.default is not None
    default = f" [default: {parameter.default}]" if shown else ""
    return f"| {names} | {_cell(_plain(parameter.help or '') + default)} |"


def _plain(text: str) -> str:
    r"""Return a help text without the marks of rich: \[default: 3] is [default: 3]."""
    return re.sub(r"\n(?!\n)\s*", " ", text.replace("\\[", "[").replace("\f", "")).strip()


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
