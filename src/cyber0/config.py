"""The configuration of a run: frozen, complete, checked at the door; in TOML, key for key as on the command line."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cyber0.directions.key import Family
from cyber0.errors import InvalidConfig, UnknownName
from cyber0.plan import Plan, Scale, Scheme

__all__ = ["RunConfig", "load", "merged", "sentences"]

Positive = Annotated[int, Field(ge=1)]


class RunConfig(BaseModel):
    """One run; the defaults are the paper's MNIST study.

    >>> config = RunConfig(rule="nnm+cwtm", attack="foe")
    >>> config.clients, config.byzantine, config.directions
    (40, 10, 64)
    >>> config.plan.scalars
    64
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    algorithm: Literal["cyber0", "fedavg"] = Field("cyber0", description="The method, or the baseline FedAvg.")
    task: str = Field("mnist", description="What to train: a task's name, or package.module:object.")
    data: str | None = Field(None, description="The folder of the data files.")
    model: str | None = Field(None, description="The language model: a hub id or a folder.")
    source: str = Field("auto", description="Where the data come from: auto, embedded, or the full set's name.")
    clients: Positive = Field(40, description="How many clients there are (the paper's n).")
    byzantine: Annotated[int, Field(ge=0)] = Field(10, description="How many of them may lie (the paper's b).")
    rule: str = Field("cwtm", description="How votes are aggregated, e.g. mean, nnm+cwtm, krum(power=1).")
    attack: str = Field("none", description="What the liars do, e.g. foe, alie(omega=1.5), sf, lf.")
    partition: str = Field("dirichlet", description="How samples are dealt to clients: iid, dirichlet, shards.")
    alpha: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Dirichlet's concentration; 0.1 if not given."
    )
    directions: Annotated[int, Field(ge=1, le=2**16)] = Field(64, description="Directions per step (the paper's nu).")
    rounds: Annotated[int, Field(ge=1, lt=2**32 - 1)] = Field(400, description="Global epochs (the paper's T).")
    local_epochs: Annotated[int, Field(ge=1, lt=2**32 - 1)] = Field(
        1, description="Local steps per round (the paper's K)."
    )
    scheme: Scheme = Field("unbiased", description="What local epochs send.")
    scale: Scale = Field("unbiased", description="The compressed scheme's factor, or none, as in the paper.")
    mu: Annotated[float, Field(ge=0, lt=1e30)] = Field(0.001, description="How far to perturb; 0: exact derivatives.")
    lr: Annotated[float, Field(gt=0, lt=1e30)] = Field(0.01, description="The learning rate (the paper's eta).")
    batch: Positive = Field(64, description="Samples per local step.")
    family: Family = Field("sphere", description="The distribution of directions.")
    participation: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="The fraction invited to each round.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="How likely an invited client fails.")
    seed: Annotated[int, Field(ge=0, lt=2**64)] = Field(0, description="Decides everything random.")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    engine: Literal["batched", "sequential"] = Field("batched", description="All clients at once, or one by one.")
    precision: Literal["float32", "mixed", "bf16"] = Field(
        "float32", description="Of a language model: mixed computes in bf16, bf16 keeps its weights so too."
    )
    evaluate_every: Positive = Field(10, description="Rounds from one evaluation to the next.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if 2 * self.byzantine >= self.clients:
            most = (self.clients - 1) // 2
            raise ValueError(f"byzantine = {self.byzantine} of clients = {self.clients}: at most {most} may lie")
        if self.invited <= 2 * self.byzantine:
            raise ValueError(
                f"participation = {self.participation} invites {self.invited} of clients = {self.clients}: more than "
                f"2 x byzantine = {2 * self.byzantine} must be, or no round can be decided"
            )
        if 0 < self.mu < 2.0**-126:
            raise ValueError(f"mu = {self.mu} is too small for float32: use 0 for exact derivatives")
        return self

    @property
    def invited(self) -> int:
        """How many clients are invited to each round."""
        return max(1, round(self.participation * self.clients))

    @property
    def plan(self) -> Plan:
        """What clients agree on before each round."""
        return Plan(
            self.seed, self.directions, self.local_epochs, self.scheme, self.mu, self.lr, self.family, self.scale
        )

    def to_toml(self) -> str:
        """The whole configuration, as a recipe that runs again.

        >>> print(RunConfig().to_toml().splitlines()[0])
        algorithm = "cyber0"
        """
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def merged(recipe: dict[str, Any], options: dict[str, Any]) -> RunConfig:
    """A recipe with options over it, as a configuration; every problem with it is named in one error.

    >>> merged({"clients": 12, "byzantine": 3}, {"rounds": 5}).rounds
    5
    >>> merged({"cleints": 12}, {})
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown key 'cleints': use one of ... (did you mean 'clients'?)
    """
    values = {**recipe, **options}
    for key in values:
        if key not in RunConfig.model_fields:
            raise UnknownName("key", key, RunConfig.model_fields)
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise InvalidConfig(sentences(error)) from None


def load(path: Path) -> dict[str, Any]:
    """The keys of a recipe in TOML.

    >>> load(Path("no/such/recipe.toml"))
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: cannot read the recipe no/such/recipe.toml: No such file or directory
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"cannot read the recipe {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the recipe {path} is not TOML: {error}") from None


def sentences(error: ValidationError) -> str:
    """Every problem of a configuration: its field, its value, what would be right.

    >>> try:
    ...     RunConfig(rounds=0)
    ... except ValidationError as error:
    ...     print(sentences(error))
    rounds = 0: input should be greater than or equal to 1
    """
    return "; ".join(map(_sentence, error.errors()))


def _sentence(problem: Any) -> str:
    if not problem["loc"]:
        return problem["msg"].removeprefix("Value error, ")
    field = ".".join(map(str, problem["loc"]))
    return f"{field} = {problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
