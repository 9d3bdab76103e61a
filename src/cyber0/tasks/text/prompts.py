"""Prompt files, in TOML: how a row of a data file becomes a prompt, and which words stand for the classes.

title = "Reviews"
length = 128                          # tokens at most; a longer prompt is cut in its texts only
[words]                               # each class, and the word whose logit is its score
bad = "terrible"
good = { masked = "great", causal = "good" }   # or a word for each kind of model, or several: ["great", "very good"]
[labels]                              # how data files write the classes; one written by its name needs no entry
0 = "bad"
1 = "good"
[prompts]                             # one for each kind of model; columns of the data stand in braces
masked = "{review} It was{mask}."
causal = "{review:drop-last}. It was"
pooled = "{review}"
[data]
label = "stars"                       # the column of the label
train = "train.jsonl"
test = "test.csv"                     # without it, some rows of train, chosen by seed
"""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cyber0.config import load as load_toml
from cyber0.config import sentences
from cyber0.errors import InvalidConfig, UnknownName

__all__ = ["FILTERS", "Files", "Kind", "Piece", "Prompt", "check_template", "columns_of", "load", "pieces"]

Kind = Literal["masked", "causal", "pooled", "seq2seq"]
Words = str | list[str]
Piece = tuple[str, bool]
"""A piece of a prompt, and whether it comes from the data and may be cut."""
STRICT = ConfigDict(frozen=True, extra="forbid")
MASK = "mask"

FILTERS: dict[str, Callable[[str], str]] = {
    "": lambda text: text,
    "drop-last": lambda text: text[:-1],
    "lower-first": lambda text: text[:1].lower() + text[1:],
}


class Files(BaseModel):
    """Where rows lie, and the column that holds their labels."""

    model_config = STRICT
    label: str = "label"
    train: str | None = None
    test: str | None = None


class Prompt(BaseModel):
    """A prompt file.

    >>> prompt = Prompt.of({"words": {"bad": "terrible", "good": "great"}, "prompts": {"causal": "{review} It was"}})
    >>> prompt.classes
    ('bad', 'good')
    >>> prompt.class_of("good")
    1
    """

    model_config = STRICT
    title: str = "texts"
    length: int = Field(128, ge=4)
    words: dict[str, Words | dict[Kind, Words]] = Field(min_length=2)
    labels: dict[str, str] = {}
    prompts: dict[Kind, str] = Field(min_length=1)
    data: Files = Files()

    @classmethod
    def of(cls, keys: dict[str, Any], where: str = "the prompt") -> "Prompt":
        """Return the prompt that the keys of a file describe; one error names all problems with it.

        >>> Prompt.of({"words": {"bad": "terrible", "good": "great"}, "prompts": {"masked": "{review} It was"}})
        Traceback (most recent call last):
        cyber0.errors.InvalidConfig: the prompt: 'masked' must have {mask} once: '{review} It was'
        """
        try:
            return cls(**keys)
        except ValidationError as error:
            raise InvalidConfig(f"{where}: {sentences(error)}") from None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for label, name in self.labels.items():
            if name not in self.words:
                raise ValueError(f"label {label!r} is of class {name!r}, which has no word: add it to [words]")
        for kind, template in self.prompts.items():
            check_template(kind, template)
        for name, words in self.words.items():
            for own in words.values() if isinstance(words, dict) else [words]:
                if not own or (isinstance(own, list) and not all(own)):
                    raise ValueError(f"the class {name!r} has an empty word: give it a word, or a list of words")
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, in the order of their words."""
        return tuple(self.words)

    def class_of(self, label: Any) -> int | None:
        """Return the number of the class that a label in a data file stands for; None for an unknown label."""
        name = self.labels.get(str(label), str(label))
        return self.classes.index(name) if name in self.words else None

    def template(self, kind: Kind) -> str:
        """Return the prompt for a kind of model; a sequence-to-sequence model takes that of causal ones, if need be."""
        kind = kind if kind in self.prompts else _instead(kind)
        if kind not in self.prompts:
            raise InvalidConfig(
                f"the prompt of {self.title} for a {kind} model is missing: add {kind} = '...' to [prompts], "
                f"or use head='{next(iter(self.prompts))}'"
            )
        return self.prompts[kind]

    def words_of(self, kind: Kind) -> dict[str, tuple[str, ...]]:
        """Return the words of each class for a kind of model."""
        found: dict[str, tuple[str, ...]] = {}
        for name, words in self.words.items():
            own = words if isinstance(words, str | list) else words.get(kind, words.get(_instead(kind)))
            if own is None:
                raise InvalidConfig(
                    f"the class {name!r} of {self.title} has no word for a {kind} model: add it to [words]"
                )
            found[name] = tuple(word.strip() for word in ([own] if isinstance(own, str) else own))
        return found

    def columns(self, kind: Kind) -> tuple[str, ...]:
        """Return the columns of the data that a prompt shows."""
        return columns_of(self.template(kind))


def columns_of(template: str) -> tuple[str, ...]:
    """Return the columns of the data that a template shows.

    >>> columns_of("{title}: {body} It is{mask}.")
    ('title', 'body')
    """
    return tuple(name for _, name, _, _ in Formatter().parse(template) if name and name != MASK)


def _instead(kind: Kind) -> Kind:
    """Return the kind whose words and prompt another kind takes where it has none of its own."""
    return "causal" if kind == "seq2seq" else kind


def check_template(kind: str, template: str) -> None:
    """Refuse a template that shows nothing of the data, or has a mask too many or too few."""
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{kind!r}: {error}: {template!r}") from None
    if [name for _, name, _, _ in parsed].count(MASK) != (kind == "masked"):
        wanted = "must have {mask} once" if kind == "masked" else "has no {mask}"
        raise ValueError(f"{kind!r} {wanted}: {template!r}")
    for _, name, spec, _ in parsed:
        if name == "":
            raise ValueError(f"{kind!r} has braces without a column's name: {template!r}")
        if spec and spec not in FILTERS:
            raise UnknownName("filter", spec, [key for key in FILTERS if key], of="a prompt")
    if not any(name and name != MASK for _, name, _, _ in parsed):
        raise ValueError(f"{kind!r} shows nothing of the data: name a column in braces, as in '{{text}}'")


def pieces(template: str, row: dict[str, Any], mask: str = "") -> list[Piece]:
    """Return a row put into a prompt, as pieces of text.

    >>> pieces("{premise:drop-last}?{mask}, so", {"premise": "It rains."}, mask="<mask>")
    [('It rains', True), ('?', False), ('<mask>', False), (', so', False)]
    """
    found: list[Piece] = []
    for text, name, spec, _ in Formatter().parse(template):
        if text:
            found.append((text, False))
        if name == MASK:
            found.append((mask, False))
        elif name:
            found.append((FILTERS[spec or ""](str(row[name])), True))
    return found


def load(name: str | Path, folder: Path | None = None) -> Prompt:
    """Return a prompt of this package by its name, or yours by its file: in the folder, if it is there, or by its path.

    >>> load("sst2").words_of("masked")
    {'negative': ('terrible',), 'positive': ('great',)}
    >>> load("sts2")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown prompt 'sts2': use one of (a file).toml, snli, sst2, trec (did you mean 'sst2'?)
    """
    package = Path(str(files("cyber0.tasks.text") / "prompts"))
    shipped = {path.stem: path for path in package.glob("*.toml")}
    if str(name) not in shipped and not str(name).endswith(".toml"):
        raise UnknownName("prompt", str(name), [*shipped, "(a file).toml"])
    yours = Path(name) if folder is None or not (folder / name).is_file() else folder / name
    path = shipped.get(str(name), yours)
    if not path.is_file():
        raise InvalidConfig(f"there is no prompt file {path}: name one beside the data, or by its whole path")
    return Prompt.of(load_toml(path), str(path))
