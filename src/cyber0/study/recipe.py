"""The recipe of a study in TOML: a base configuration, axes over it, exclusions, and how results are shown.

title = "Two rules under two attacks"
seeds = 3
[base]
rounds = 100
[axes]
rule = ["cwtm", "nnm+cwtm"]   # a list: values of the key that the axis is named after
[axes.attack]                 # a table: labels, each with the axis's value or with several keys
FOE = "foe(search='line')"
none = { attack = "none", byzantine = 0 }
[[exclude]]                   # no cell has all of these labels
rule = "cwtm"
attack = ["FOE", "none"]
"""

from collections.abc import Mapping
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cyber0.config import RunConfig, load, sentences
from cyber0.errors import InvalidConfig, UnknownName

__all__ = ["Cell", "Figure", "Labels", "Pattern", "Recipe", "Table", "get_recipe", "shipped"]

Labels = dict[str, str]
Pattern = Mapping[str, str | list[str]]
STRICT = ConfigDict(frozen=True, extra="forbid")


class Cell(BaseModel):
    """A point of the grid: its label on each axis, and the keys these set.

    >>> cell = Cell(labels={"rule": "Krum"}, values={"rule": "krum", "rounds": 2})
    >>> cell.name, cell.config(seed=7).rule
    ('Krum', 'krum')
    """

    model_config = STRICT
    labels: Labels
    values: dict[str, Any]

    @property
    def name(self) -> str:
        """Return its labels, separated by commas."""
        return ", ".join(self.labels.values())

    @property
    def attacked(self) -> bool:
        """Whether somebody lies in it."""
        return self.values.get("attack", "none") != "none"

    def config(self, seed: int) -> RunConfig:
        """Return the configuration of its run with a seed."""
        values: dict[str, Any] = {**self.values, "seed": seed}
        return RunConfig(**values)


class Table(BaseModel):
    """Which axes are the rows of the table and which its columns."""

    model_config = STRICT
    rows: list[str]
    columns: list[str]


class Figure(BaseModel):
    """Curves of the mean over seeds: a line for each set of labels on the axes `line`, a panel for each on `panel`.

    `where` keeps cells with these labels. `worst` names an axis: the least mean over it, at each evaluation.
    """

    model_config = STRICT
    name: str = Field(pattern=r"^[a-z0-9.-]+$")
    title: str
    x: Literal["round", "bytes"] = "round"
    line: list[str]
    panel: str | None = None
    worst: str | None = None
    where: Pattern = {}


class Recipe(BaseModel):
    """The recipe of a study.

    >>> recipe = Recipe.of({"base": {"rounds": 2}, "axes": {"rule": ["mean", "cwtm"], "speed": {"fast": {"lr": 0.1}}}})
    >>> [cell.name for cell in recipe.cells()]
    ['mean, fast', 'cwtm, fast']
    >>> recipe.cells()[1].config(seed=7).lr
    0.1
    """

    model_config = STRICT
    title: str = Field("A study", description="What the report is called.")
    note: str = Field("", description="What a reader should know: the choices made, and why.")
    rates: str = Field("", description="How the learning rates were chosen.")
    seeds: int = Field(5, ge=1, description="How many seeds.")
    first_seed: int = Field(0, ge=0, lt=2**32, description="The first of them; the others follow it.")
    keep: bool = Field(False, description="Whether each run is kept as a file that rebuilds its model.")
    base: dict[str, Any] = Field({}, description="Keys of all runs.")
    axes: dict[str, list[Any] | dict[str, Any]] = Field(
        {}, description="The grid; without one there is a single cell, the base."
    )
    exclude: list[Pattern] = Field([], description="Cells with all of these labels are left out.")
    also: list[Cell] = Field([], description="Cells outside the grid.")
    choose: dict[str, list[Any]] = Field(
        {}, description="Keys whose values are chosen on validation samples, e.g. `lr = [0.01, 0.1]`."
    )
    choose_for: list[str] | None = Field(
        None, description="Axes each label of which has a choice of its own; all but `attack` if not given."
    )
    table: Table | None = Field(None, description="Which axes are its `rows` and which its `columns`.")
    figures: list[Figure] = Field([], description="Curves; by default accuracy over rounds.")
    paper: dict[str, dict[str, tuple[float, float]]] = Field(
        {}, description="Published numbers, in percent: row, column, (mean, s.d.)."
    )
    references: dict[str, float] = Field(
        {}, description="Numbers of something else to compare with, in percent, listed below the table: name, accuracy."
    )
    claims: str | None = Field(None, description="The name of the published claims to test.")

    @classmethod
    def of(cls, keys: dict[str, Any]) -> "Recipe":
        """Return the recipe with the keys of a file; an error says what is wrong with them.

        >>> Recipe.of({"axes": {"ruel": ["mean"]}})
        Traceback (most recent call last):
        cyber0.errors.InvalidConfig: unknown axis 'ruel': use one of ... (did you mean 'rule'?)
        """
        unknown = [key for key in keys if key not in cls.model_fields]
        if of_run := [key for key in unknown if key in RunConfig.model_fields and key != "seed"]:
            raise InvalidConfig(
                f"{', '.join(of_run)}: keys of a run, not of a study; write them below [base], or play the recipe of "
                "a single run by cyber0 run"
            )
        if unknown:
            raise UnknownName("key", unknown[0], cls.model_fields, of="a study")
        try:
            return cls(**keys)
        except ValidationError as error:
            raise InvalidConfig(sentences(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """Give a study without axes one of a single label; make all labels of an axis tables if one is.

        TOML writes tables last, and labels have an order.
        """
        axes: Any = keys.get("axes") or {"cell": {"base": {}}}
        if not hasattr(axes, "items"):
            return keys  # refused by its type
        return {**keys, "axes": {axis: _alike(axis, given) for axis, given in axes.items()}}

    @model_validator(mode="after")
    def _given(self) -> Self:
        if "seed" in self.base:
            raise ValueError("base.seed: a study has several seeds; leave it out, and give seeds and first_seed")
        for axis, given in self.axes.items():
            if not given:
                raise ValueError(f"axes.{axis} = {given!r}: give it values, or leave it out")
        return self

    @model_validator(mode="after")
    def _choosable(self) -> Self:
        for key, values in self.choose.items():
            if key not in RunConfig.model_fields or key in ("seed", "validation"):
                raise UnknownName(
                    "key", key, [key for key in RunConfig.model_fields if key not in ("seed", "validation")]
                )
            if not values or len(set(map(str, values))) < len(values):
                raise ValueError(f"choose.{key} = {values!r}: give different values to choose from")
            if key in self.axes or self.axis_of(key) is not None:
                raise ValueError(f"choose.{key}: the axis {self.axis_of(key) or key!r} sets it in every run")
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for axis in self._axes_named():
            if axis not in self.axes:
                raise UnknownName("axis", axis, self.axes)
        for cell in self.also:
            if missing := [axis for axis in self.axes if axis not in cell.labels]:
                raise ValueError(f"also: the cell {cell.name!r} has no label on {missing[0]!r}: give one for each axis")
        if not self.cells():
            raise ValueError("the grid is empty: `exclude` leaves none of its cells")
        for pattern in (*self.exclude, *(figure.where for figure in self.figures)):
            self._check_labels(pattern)
        return self

    def cells(self) -> list[Cell]:
        """Return the cells of the grid that are not excluded, in the order of the axes, and those beside it."""
        points = product(*(_points(axis, given) for axis, given in self.axes.items()))
        grid = [_cell(self.base, self.axes, point) for point in points]
        beside = [Cell(labels=cell.labels, values=self.base | cell.values) for cell in self.also]
        return [cell for cell in grid if not any(_fits(cell.labels, p) for p in self.exclude)] + beside

    def chosen(self, pattern: Pattern) -> list[Cell]:
        """Return the cells that have these labels.

        >>> recipe = Recipe.of({"axes": {"rule": ["mean", "cwtm"], "directions": [2, 4]}})
        >>> [cell.name for cell in recipe.chosen({"rule": "cwtm"})]
        ['cwtm, 2', 'cwtm, 4']
        """
        self._check_labels(pattern)
        return [cell for cell in self.cells() if _fits(cell.labels, pattern)]

    @property
    def every_seed(self) -> range:
        """Return the seeds that each cell is played with.

        >>> Recipe.of({"seeds": 3, "first_seed": 10}).every_seed
        range(10, 13)
        """
        return range(self.first_seed, self.first_seed + self.seeds)

    def labels(self, axis: str) -> list[str]:
        """Return the labels of an axis, in order; those of cells beside the grid last."""
        return list(dict.fromkeys(cell.labels[axis] for cell in self.cells()))

    def axis_of(self, key: str) -> str | None:
        """Return the axis that sets a key in all its labels, so that the base's is never used; None without one.

        >>> recipe = Recipe.of({"axes": {"rule": ["mean"], "who": {"all": {"dropout": 0.0}, "some": {"dropout": 0.5}}}})
        >>> recipe.axis_of("rule"), recipe.axis_of("dropout"), recipe.axis_of("lr")
        ('rule', 'who', None)
        """
        points = {axis: _points(axis, given) for axis, given in self.axes.items()}
        return next((axis for axis, labels in points.items() if all(key in values for _, values in labels)), None)

    def published(self, labels: Labels) -> tuple[float, float] | None:
        """Return the published mean and s.d. of a cell, in percent, if there are any."""
        if self.table is None:
            return None
        row, column = (", ".join(labels[axis] for axis in axes) for axes in (self.table.rows, self.table.columns))
        return self.paper.get(row, {}).get(column)

    def to_toml(self) -> str:
        """Return the recipe as a file that makes the same study."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_defaults=True))

    def _axes_named(self) -> list[str]:
        table = [] if self.table is None else [*self.table.rows, *self.table.columns]
        drawn = [axis for figure in self.figures for axis in (*figure.line, figure.panel, figure.worst) if axis]
        patterns = [axis for pattern in (*self.exclude, *(figure.where for figure in self.figures)) for axis in pattern]
        return [
            *table,
            *drawn,
            *patterns,
            *(axis for cell in self.also for axis in cell.labels),
            *(self.choose_for or []),
        ]

    def _check_labels(self, pattern: Pattern) -> None:
        for axis, wanted in pattern.items():
            if axis not in self.axes:
                raise UnknownName("axis", axis, self.axes)
            known = [label for label, _ in _points(axis, self.axes[axis])]
            known += [cell.labels[axis] for cell in self.also]
            for label in [wanted] if isinstance(wanted, str) else wanted:
                if label not in known:
                    raise UnknownName("label", label, list(dict.fromkeys(known)), of=f"axis {axis!r}")


def shipped() -> dict[str, Path]:
    """Return the files of the recipes that come with the package, by name.

    >>> "table1" in shipped()
    True
    """
    folder = Path(str(files("cyber0.study") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def get_recipe(name: str) -> Recipe:
    """Return the recipe of a name, or in a file.

    >>> get_recipe("table1").table.columns
    ['attack']
    >>> get_recipe("tabel1")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown study 'tabel1': use one of ... (did you mean 'table1'?)
    """
    keys = _keys(name, ())
    recipe = Recipe.of(keys)
    if not any(keys.get(part) for part in ("base", "axes", "also", "choose")):
        raise InvalidConfig(
            f"the recipe {name} says nothing to play: write keys of all runs below [base], as rounds = 100, and what "
            'to compare below [axes], as rule = ["mean", "cwtm"]; cyber0 study table1 --print-recipe shows one'
        )
    return recipe


def _keys(name: str, heirs: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of a recipe over those of the one it extends: `base` and `axes` key by key, others whole."""
    known = shipped()
    if name not in known and not name.endswith(".toml") and not Path(name).exists():
        raise UnknownName("study", name, [*known, "(a file).toml"])
    if name not in known and Path(name).is_dir():
        hint = f": its recipe is {Path(name) / 'study.toml'}" if (Path(name) / "study.toml").exists() else ""
        raise InvalidConfig(f"{name} is a folder, not a recipe in TOML{hint}")
    if name in heirs:
        raise InvalidConfig(f"extends = {name!r}: a recipe cannot extend itself")
    keys = load(known.get(name, Path(name)))
    if "extends" not in keys:
        return keys
    parent = _keys(str(keys.pop("extends")), (*heirs, name))
    if "lr" in {**keys.get("base", {}), **keys.get("choose", {})}:
        parent.pop("rates", None)  # said of other rates
    joined = {key: parent.get(key, {}) | keys.get(key, {}) for key in ("base", "axes")}
    return parent | keys | joined


def _alike(axis: str, given: list[Any] | dict[str, Any]) -> list[Any] | dict[str, Any]:
    """Return the labels of an axis with tables of keys, if one of them has a table."""
    if not isinstance(given, dict) or not any(isinstance(value, dict) for value in given.values()):
        return given
    return {label: value if isinstance(value, dict) else {axis: value} for label, value in given.items()}


def _points(axis: str, given: list[Any] | dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return each label of an axis and the keys it sets."""
    labelled: dict[str, Any] = given if isinstance(given, dict) else {str(value): value for value in given}
    keys: dict[str, dict[str, Any]] = {
        label: value if isinstance(value, dict) else {axis: value} for label, value in labelled.items()
    }
    for values in keys.values():
        for key in values:
            if key == "seed":
                raise InvalidConfig(f"the axis {axis!r} sets seed: the keys seeds and first_seed do, and no axis")
            if key not in RunConfig.model_fields:
                if key == axis:
                    raise UnknownName("axis", key, RunConfig.model_fields)
                raise UnknownName("key", key, RunConfig.model_fields, of=f"axis {axis!r}")
    return list(keys.items())


def _cell(base: dict[str, Any], axes: dict[str, Any], point: tuple[tuple[str, dict[str, Any]], ...]) -> Cell:
    values = dict(base)
    for _, keys in point:
        values |= keys
    return Cell(labels=dict(zip(axes, (label for label, _ in point), strict=True)), values=values)


def _fits(labels: Labels, pattern: Pattern) -> bool:
    return all(labels[axis] in ([wanted] if isinstance(wanted, str) else wanted) for axis, wanted in pattern.items())
