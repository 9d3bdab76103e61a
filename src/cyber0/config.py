"""The configuration of a run, in three parts that are written flat, in TOML as on the command line.

- `Agreement`: what all parties of a run share. It is hashed into the run's identity.
- `SimulationOptions`: what only a simulation has: the attack, how the data are split, who fails.
- `MachineOptions`: what belongs to one machine: where the data are, the device, how often to evaluate.
"""

import tomllib
from collections.abc import Callable
from math import ceil
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal, Self, TypeVar, cast

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from cyber0 import aggregation, registry
from cyber0.directions.key import Family
from cyber0.errors import Cyber0Error, InvalidConfig, UnknownName
from cyber0.objective import Objective
from cyber0.objective import parse as parse_objective
from cyber0.plan import Plan, Scale, Scheme
from cyber0.schedule import parse as parse_schedule
from cyber0.step_rule import parse as parse_step_rule

__all__ = [
    "Agreement",
    "MachineOptions",
    "Options",
    "RunConfig",
    "SimulationOptions",
    "canonical_rule",
    "load",
    "sentences",
    "why_not_private",
]

T = TypeVar("T")
Positive = Annotated[int, Field(ge=1)]
LATER = {
    "step_rule": "plain",
    "train": "all",
    "blocks": 1,
    "objective": "plain",
    **dict.fromkeys(("clip", "least_noise", "epsilon", "delta", "noise")),
}  # keys that earlier versions had not: left out of what is written if as it was then
LANGUAGE_TASKS = frozenset(
    {"completion", "snli", "sst2", "text-classification", "text-regression", "token-classification", "trec"}
)  # tasks by name that train a language model
LANGUAGE_PACKAGE = "cyber0.tasks.text."  # in which they are, as task = "package.module:object" may say
ALPHA = 0.1  # of the Dirichlet partition: the paper's, though it does not say so
DELTA = 1e-5
CLIP = 10.0
UNCOUNTED = "its loss depends on a client's shares of the classes, which no budget accounts for; leave one of them out"
UNTRIED = "private clients measure the slopes of single samples, without a radius; leave one of them out"


def why_not_private(objective: Objective) -> str | None:
    """Return why clients that measure an objective cannot be private; None if they can.

    >>> why_not_private(Objective()) is None, why_not_private(Objective(radius=0.1)) == UNTRIED
    (True, True)
    """
    if objective.calibrated:
        return UNCOUNTED
    return None if objective.radius is None else UNTRIED


class Options(BaseModel):
    """Options that are frozen, complete and checked; every problem is named in one `InvalidConfig`.

    >>> class Box(Options):
    ...     width: Positive = 1
    >>> Box(width=0)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: width = 0: input should be greater than or equal to 1
    >>> Box(wdith=2)
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown key 'wdith': use one of width (did you mean 'width'?)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:
        for key in values:
            if key not in type(self).model_fields:
                raise UnknownName("key", key, type(self).model_fields)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidConfig(sentences(error)) from None

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys without those that earlier versions had not, so that the identity of a run stays the same."""
        return {key: value for key, value in write(self).items() if key not in LATER or value != LATER[key]}

    def updated(self, **values: Any) -> Self:
        """Return a copy with other values, checked like a new one; what was not given follows from these.

        >>> RunConfig(task="sst2").updated(task="mnist").family
        'sphere'
        """
        return type(self)(**{**self.model_dump(exclude_unset=True), **values})


class Agreement(Options):
    """What all parties of a run share; the defaults are the paper's MNIST study.

    >>> agreement = Agreement(rule="nnm+cwtm", clients=12, byzantine=3)
    >>> agreement.plan.scalars, agreement.invited
    (64, 12)
    >>> agreement.family, Agreement(task="sst2").family, Agreement(task="sst2", family="gaussian").family
    ('sphere', 'rademacher', 'gaussian')
    """

    task: str = Field(default="mnist", description="What to train: a task's name, or package.module:object.")
    model: str | None = Field(default=None, description="The language model: a hub id or a folder.")
    train: str = Field(
        default="all",
        description="What of the model: e.g. head, last(layers=2)+head, all-embeddings, encoder.layer.5.*.",
    )
    blocks: Annotated[int, Field(ge=1, le=2**16)] = Field(
        default=1, description="A round moves one of so many blocks of the model, in turn; 1: all of it."
    )
    objective: str = Field(
        default="plain",
        description="What clients measure: plain, the loss, or calibrated, less what their shares of classes teach; "
        "with radius=0.05 where words are moved to make it larger.",
    )
    clients: Annotated[int, Field(ge=1, lt=2**32)] = Field(
        default=40, description="How many clients there are (the paper's n)."
    )
    byzantine: Annotated[int, Field(ge=0)] = Field(default=10, description="How many of them may lie (the paper's b).")
    rule: str = Field(default="cwtm", description="How votes are aggregated, e.g. mean, nnm+cwtm, krum(power=1).")
    quorum: Positive | None = Field(
        default=None, description="The fewest votes that decide a round of a federation, more than twice byzantine."
    )
    directions: Annotated[int, Field(ge=1, le=2**16)] = Field(
        default=64, description="Directions per step (the paper's nu)."
    )
    rounds: Annotated[int, Field(ge=1, lt=2**32 - 1)] = Field(default=400, description="Global epochs (the paper's T).")
    local_epochs: Annotated[int, Field(ge=1, lt=2**32 - 1)] = Field(
        default=1, description="Local steps per round (the paper's K)."
    )
    scheme: Scheme = Field(default="unbiased", description="What local epochs send.")
    scale: Scale = Field(default="unbiased", description="The compressed scheme's factor, or none, as in the paper.")
    mu: Annotated[FiniteFloat, Field(ge=0, lt=1e30)] = Field(
        default=0.001, description="How far to perturb; 0: exact derivatives."
    )
    lr: Annotated[FiniteFloat, Field(gt=0, lt=1e30)] = Field(
        default=0.01, description="The learning rate (the paper's eta)."
    )
    schedule: str = Field(
        default="constant",
        description="How the learning rate changes, e.g. cosine, warmup(rounds=100)+linear(end=0.1).",
    )
    horizon: Annotated[int, Field(ge=1, lt=2**32 - 1)] | None = Field(
        default=None, description="The round at which the schedule ends; the number of rounds if not given."
    )
    step_rule: str = Field(
        default="plain",
        description="How far a round moves: plain, or normalised(beta=0.99), by what scalars usually are.",
    )
    batch: Annotated[int, Field(ge=0)] = Field(
        default=64, description="Samples per local step; 0: all that a client holds."
    )
    family: Family = Field(
        default=cast("Any", None),  # it follows from the others
        json_schema_extra=lambda schema: cast("None", schema.pop("default", None)),
        description="The distribution of directions; if not given, rademacher for a language model, sphere for others.",
    )
    participation: Annotated[FiniteFloat, Field(gt=0, le=1)] = Field(
        default=1.0, description="The fraction of clients invited to each round, drawn by the seed."
    )
    precision: Literal["float32", "mixed", "bf16"] = Field(
        default="float32", description="Of a language model: mixed computes in bf16, bf16 also keeps its weights so."
    )
    seed: Annotated[int, Field(ge=0, lt=2**64)] = Field(default=0, description="Everything random follows from it.")
    clip: Annotated[FiniteFloat, Field(gt=0, lt=1e30)] | None = Field(
        default=None,
        description=f"Of private clients: the length to which each sample's slopes are clipped; {CLIP:g} if not given.",
    )
    least_noise: Annotated[FiniteFloat, Field(gt=0, lt=1e6)] | None = Field(
        default=None, description="The least noise multiplier that each client must promise; none if not given."
    )

    @model_validator(mode="after")
    def _agreed(self) -> Self:
        if 2 * self.byzantine >= self.clients:
            most = (self.clients - 1) // 2
            raise ValueError(
                f"byzantine = {self.byzantine} of clients = {self.clients}: at most {most} may lie"
                + ("" if "byzantine" in self.model_fields_set else f"; {self.byzantine} is the default, give another")
            )
        if self.invited <= 2 * self.byzantine:
            raise ValueError(
                f"participation = {self.participation} invites {self.invited} of clients = {self.clients}: more than "
                f"2 x byzantine = {2 * self.byzantine} must be, or no round can be decided"
            )
        if self.quorum is not None and not 2 * self.byzantine < self.quorum <= self.invited:
            raise ValueError(
                f"quorum = {self.quorum}: it must be from {2 * self.byzantine + 1} (more than 2 x byzantine) to "
                f"{self.invited}, how many are invited to a round"
            )
        self._check_objective()
        if 0 < self.mu < 2.0**-126:
            raise ValueError(f"mu = {self.mu} is too small for float32: use 0 for exact derivatives")
        if cast("Any", self.family) is None:
            object.__setattr__(self, "family", "rademacher" if self._trains_a_language_model else "sphere")
        schedule, _ = _parsed(parse_schedule, self.schedule), _parsed(parse_step_rule, self.step_rule)
        if schedule.needs_horizon and self.horizon is None:
            object.__setattr__(self, "horizon", self.rounds)
            self.model_fields_set.add("horizon")  # written down: a run that is extended keeps it
        try:
            schedule.check_horizon(self.horizon)
        except Cyber0Error as error:
            raise ValueError(str(error)) from None
        return self

    def _check_objective(self) -> None:
        """Refuse an objective that does not go with the other keys."""
        objective, given = _parsed(parse_objective, self.objective), f"objective = {self.objective!r} and"
        if objective.radius is not None and self.mu != 0:
            raise ValueError(f"{given} mu = {self.mu}: a radius needs gradients; use mu = 0")
        if self.least_noise is not None and (why := why_not_private(objective)):
            raise ValueError(f"{given} least_noise = {self.least_noise}: {why}")

    @property
    def _trains_a_language_model(self) -> bool:
        task = self.task.partition("(")[0].strip()
        named = task.replace("_", "-") in LANGUAGE_TASKS or task.startswith(LANGUAGE_PACKAGE)
        return named or self.model is not None

    @property
    def invited(self) -> int:
        """How many clients are invited to each round."""
        return self.invited_of(self.clients)

    def invited_of(self, clients: int) -> int:
        """Return how many of so many clients are invited to a round.

        >>> Agreement(clients=7, byzantine=1, participation=0.5).invited_of(9)
        4
        """
        return max(1, round(self.participation * clients))

    @property
    def clip_length(self) -> float:
        """The length to which private clients clip."""
        return CLIP if self.clip is None else self.clip

    @property
    def private_steps(self) -> int:
        """How many local steps a private client reckons with: those of the rounds that it is likely invited to."""
        return ceil(self.participation * self.rounds) * self.local_epochs

    @property
    def trained_by(self) -> Objective:
        """What clients measure."""
        return parse_objective(self.objective)

    @property
    def plan(self) -> Plan:
        """What clients agree on before each round."""
        return Plan(
            seed=self.seed,
            directions=self.directions,
            local_epochs=self.local_epochs,
            scheme=self.scheme,
            mu=self.mu,
            lr=self.lr,
            family=self.family,
            scale=self.scale,
            schedule=_parsed(parse_schedule, self.schedule),
            horizon=self.horizon,
            step_rule=_parsed(parse_step_rule, self.step_rule),
            blocks=self.blocks,
        )


class SimulationOptions(Options):
    """What only a simulation has."""

    algorithm: Literal["cyber0", "fedavg"] = Field(default="cyber0", description="The method, or the baseline FedAvg.")
    attack: str = Field(default="none", description="What the liars do, e.g. foe, alie(omega=1.5), sf, lf.")
    knows: Literal["votes", "model"] = Field(
        default="votes", description="What the liars know: all honest votes, or the model too."
    )
    partition: str = Field(
        default="dirichlet", description="How samples are dealt to clients, e.g. shards(per_client=3)."
    )
    alpha: Annotated[FiniteFloat, Field(gt=0)] | None = Field(
        default=None, description=f"The concentration of the dirichlet partition; {ALPHA} if not given."
    )
    dropout: Annotated[FiniteFloat, Field(ge=0, lt=1)] = Field(
        default=0.0, description="How likely an invited client fails to vote."
    )
    validation: Annotated[FiniteFloat, Field(ge=0, lt=1)] = Field(
        default=0.0, description="The share of the training samples that is held out to choose the best round by."
    )
    epsilon: Annotated[FiniteFloat, Field(gt=0)] | None = Field(
        default=None, description="The privacy budget of each client, for the whole run; without it nothing is private."
    )
    delta: Annotated[FiniteFloat, Field(gt=0, lt=1)] | None = Field(
        default=None, description=f"The delta of that budget; {DELTA:g} if not given."
    )
    noise: Annotated[FiniteFloat, Field(ge=0, lt=1e6)] | None = Field(
        default=None, description="The noise multiplier of each client, in place of the one that epsilon asks for."
    )

    @property
    def is_private(self) -> bool:
        """Whether clients clip and noise their steps."""
        return self.epsilon is not None or self.noise is not None

    @model_validator(mode="after")
    def _simulated(self) -> Self:
        if self.epsilon is not None and self.noise is not None:
            raise ValueError(f"epsilon = {self.epsilon} and noise = {self.noise}: one follows from the other; give one")
        if self.is_private and self.algorithm == "fedavg":
            raise ValueError("algorithm = 'fedavg' has no slopes of samples to clip: leave epsilon and noise out")
        name, _, options = self.partition.partition("(")
        if name.strip() == "dirichlet" and "alpha" in options:
            if self.alpha is not None:
                raise ValueError(f"alpha = {self.alpha} and partition = {self.partition!r}: give alpha once")
        elif name.strip() == "dirichlet" and self.alpha is None:
            object.__setattr__(self, "alpha", ALPHA)
        elif name.strip() in ("iid", "natural", "shards", "shuffled") and self.alpha is not None:
            raise ValueError(
                f"alpha = {self.alpha} is for partition = 'dirichlet', not {self.partition!r}: leave it out"
            )
        return self


class MachineOptions(Options):
    """What belongs to one machine, and changes no result beyond rounding."""

    data: str | None = Field(default=None, description="The folder of the data files.")
    source: str = Field(default="auto", description="Where the data come from: auto, embedded, or the full set's name.")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    engine: Literal["batched", "sequential", "ray", "ray-batched"] = Field(
        default="batched",
        description="All clients at once, or one by one; on Ray actors, shares of them one by one, or at once.",
    )
    actors: Positive | None = Field(
        default=None, description="How many Ray actors; one for each GPU or core if not given."
    )
    stream: str | None = Field(
        default=None,
        description="Memory of the device for weights that are not trained, as 8GiB; the rest is brought when needed.",
    )
    evaluate_every: Positive = Field(default=10, description="Rounds from one evaluation to the next.")


class RunConfig(MachineOptions, SimulationOptions, Agreement):
    """A whole run, flat: the keys of `Agreement`, `SimulationOptions` and `MachineOptions`.

    >>> config = RunConfig(rule="nnm+cwtm", attack="foe", data="/home/ann/digits")
    >>> config.clients, config.byzantine, config.directions
    (40, 10, 64)
    >>> config.agreement == RunConfig(rule="nnm+cwtm", device="cuda").agreement
    True
    >>> RunConfig(cleints=12)
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown key 'cleints': use one of ... (did you mean 'clients'?)
    """

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.actors is not None and not self.engine.startswith("ray"):
            raise ValueError(f"actors = {self.actors} are for engine = 'ray' or 'ray-batched', not {self.engine!r}")
        if self.algorithm == "fedavg" and self.engine.startswith("ray"):
            raise ValueError(f"engine = {self.engine!r} sends scalars alone, and FedAvg sends weights: use 'batched'")
        if self.algorithm == "fedavg" and self.plan.step_rule.normalises:
            raise ValueError(f"step_rule = {self.step_rule!r} is for algorithm = 'cyber0': FedAvg sends no scalars")
        if self.algorithm == "fedavg" and self.batch == 0:
            raise ValueError("batch = 0, all samples, is for algorithm = 'cyber0': give FedAvg a number of samples")
        if self.blocks > 1 and (self.algorithm == "fedavg" or self.is_private):
            other = "algorithm = 'fedavg' moves all weights" if self.algorithm == "fedavg" else "privacy is simulated"
            raise ValueError(f"blocks = {self.blocks}: {other} in every round; leave blocks out")
        self._check_simulated_objective()
        return self

    def _check_simulated_objective(self) -> None:
        """Refuse an objective that does not go with simulated privacy, or with the baseline."""
        objective, given = self.trained_by, f"objective = {self.objective!r}"
        if self.is_private and (why := why_not_private(objective)):
            private = f"noise = {self.noise}" if self.epsilon is None else f"epsilon = {self.epsilon}"
            raise ValueError(f"{given} and {private}: {why}")
        if objective.radius is not None and self.algorithm == "fedavg":
            raise ValueError(f"{given} is for algorithm = 'cyber0': leave the radius out")

    @property
    def agreement(self) -> Agreement:
        """What the parties of this run share: files go by their names alone, rule and objective by one spelling."""
        keys: dict[str, Any] = {key: getattr(self, key) for key in Agreement.model_fields}
        keys |= {"task": registry.map_options("task", self.task, file_name), "model": file_name(self.model)}
        keys |= {"rule": canonical_rule(self.rule), "objective": str(self.trained_by)}
        return Agreement(**keys)

    @property
    def simulation(self) -> SimulationOptions:
        """What only the simulation of this run has."""
        return SimulationOptions(**{key: getattr(self, key) for key in SimulationOptions.model_fields})

    def same_run(self, other: "RunConfig") -> bool:
        """Whether two configurations describe the same run, on whatever machines."""
        return self.agreement == other.agreement and self.simulation == other.simulation

    def to_toml(self, *, whole: bool = False) -> str:
        """Return the configuration as a recipe that runs again; `whole` with all keys that have a value.

        >>> print(RunConfig().to_toml().splitlines()[0])
        task = "mnist"
        """
        written = self.model_dump(exclude_none=True)
        if whole:
            written = {key: default for key, default in LATER.items() if default is not None} | written
        return tomli_w.dumps({key: written[key] for key in type(self).model_fields if key in written})


def canonical_rule(rule: str) -> str:
    """Return the one name of a rule of this package, however it is spelled; a rule of the user's is not imported.

    >>> canonical_rule("nnm+trimmed-mean"), canonical_rule("my_package:my_rule")
    ('nnm+cwtm', 'my_package:my_rule')
    """
    return rule if ":" in rule else aggregation.get_rule(rule).name


def file_name(text: Any) -> Any:
    r"""Return the name of a file or folder that is given by its whole path, of any system; anything else as it is.

    >>> file_name("/home/ann/minilm"), file_name(r"C:\models\minilm"), file_name("org/minilm"), file_name(3)
    ('minilm', 'minilm', 'org/minilm', 3)
    """
    if isinstance(text, list):
        return [file_name(each) for each in cast("list[Any]", text)]
    if isinstance(text, str):
        for kind in (PurePosixPath, PureWindowsPath):
            if kind(text).is_absolute() or text.startswith("~/"):
                return kind(text).name or text
    return text


def load(path: Path) -> dict[str, Any]:
    """Return the keys of a recipe in TOML.

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
    """Return every problem of a configuration: its field, its value, what would be right."""
    return "; ".join(map(_sentence, error.errors()))


def _sentence(problem: Any) -> str:
    if not problem["loc"]:
        return problem["msg"].removeprefix("Value error, ")
    field = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"{field} is missing: give it a value"
    return f"{field} = {problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except Cyber0Error as error:
        raise ValueError(str(error)) from None
