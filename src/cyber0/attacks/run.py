"""An attack within a run: the context it is given, what it reports, and what it remembers."""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, isbuiltin, isfunction, signature
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from array_api_compat import is_torch_array
from numpy.random import Generator as RandomGenerator
from numpy.typing import NDArray

from cyber0 import registry
from cyber0.aggregation import convert_like, to_numpy
from cyber0.attacks.registry import get_attack, name_of, searches
from cyber0.attacks.scene import CONTEXT, Attack, Liars, Rule, namespace, rows, rows_of
from cyber0.errors import Cyber0Error, InvalidAggregation, InvalidAttack

__all__ = ["AttackRun", "AttackWithState", "CorruptsLabels", "CorruptsSamples", "HasGoal", "mount"]

DOMAIN = 0x41545441  # "ATTA": keeps these draws apart from others of the same seed
SAMPLES = 0x53414D50  # "SAMP": of these, the draws of attacks on samples
KNOWLEDGE = ("model", "votes")
COLUMNS = ("round", "client", "byzantine", "admitted", "scalar", "honest", "sent", "aggregate")  # of a table of votes


@runtime_checkable
class AttackWithState(Protocol):
    """An attack whose memory can be stored, so that a run can be resumed."""

    def state(self) -> dict[str, Any]:
        """Return what it remembers: numbers, texts, lists, dictionaries and arrays, which are stored as lists."""
        ...

    def restore(self, state: dict[str, Any], /) -> None:
        """Take up what `state` returned, with lists in place of arrays."""
        ...


@runtime_checkable
class CorruptsLabels(Protocol):
    """An attack that changes the labels that Byzantine clients train on."""

    def corrupt_labels(self, labels: NDArray[np.int64], classes: int, /) -> Any:
        """Return other labels from 0 to `classes` - 1, as many as were given."""
        ...


@runtime_checkable
class CorruptsSamples(Protocol):
    """An attack that changes the samples that Byzantine clients train on."""

    def corrupt_samples(
        self, inputs: NDArray[Any], labels: NDArray[Any], classes: int | None, rng: RandomGenerator, /, **options: Any
    ) -> Any:
        """Return other inputs and labels of the same shapes; a function is given its options, too."""
        ...


@runtime_checkable
class HasGoal(Protocol):
    """An attack that wants samples to be taken for something: how often they are is its success."""

    def goal(self, inputs: NDArray[Any], labels: NDArray[Any], classes: int | None, /, **options: Any) -> Any:
        """Return inputs made of test samples, and the class that each is to be taken for."""
        ...


class AttackRun:
    """An attack within one run: it makes an instance of a class, draws by the run's seed, and keeps what is reported.

    `knows` is what the attacker knows: the "votes" of all clients, or the "model" too.

    >>> from cyber0.aggregation import cwtm
    >>> run = AttackRun("foe(omega=3)", seed=7)
    >>> run.mount(np.array([[1.0], [2.0], [4.0]]), [2], cwtm, 1, round=0)
    array([[ 1.],
           [ 2.],
           [-3.]])
    >>> run.reports
    {'omega': array(3.)}
    """

    name: str
    """The text by which the attack is found, or, of an instance or a local function, a text to print."""
    reports: dict[str, Any]
    """What the attack reported about the last round. For votes with two or more axes before `[n, k]` one of which
    is not finite, each value is a list along the first of them, with None where nothing was reported."""
    corrupt_labels: Callable[[Any, int], Any] | None
    """What Byzantine clients do to their labels: from (labels, classes) to labels; None where they keep them."""
    corrupt_samples: Callable[[Any, Any, int | None], tuple[Any, Any]] | None
    """What they do to their inputs and labels: from (inputs, labels, classes) to both; None where they keep them."""
    goal: Callable[[Any, Any, int | None], tuple[Any, Any]] | None
    """From test samples to inputs and the classes that the liars want the model to take them for; None without."""
    searches: bool
    """Whether one call can serve several runs: the attack searches for its strength, without chance or memory."""
    has_memory: bool
    """Whether a round may depend on earlier ones: the attack is an instance, not a function."""

    def __init__(self, attack: str | Attack | type, *, seed: int, knows: str = "votes") -> None:
        found = get_attack(attack)
        self.name, self.seed, self.reports = name_of(found), seed, {}
        if knows not in KNOWLEDGE:
            raise InvalidAttack(f"knows = {knows!r}: an attacker knows 'votes', or the 'model' too")
        self.has_memory = registry.is_class(found) or not _is_function(found)
        self.attack = self._instance(found) if self.has_memory else found
        self._asks = _asked(self.attack)
        if "model" in self._asks and knows != "model":
            raise InvalidAttack(f"attack {self.name!r} asks for the model: grant it by knows = 'model'")
        self.searches = searches(found)
        declared = found.func if isinstance(found, partial) and not self.has_memory else self.attack
        self.corrupt_labels = self._corrupted(declared) if isinstance(declared, CorruptsLabels) else None
        options = {} if self.has_memory else _options(cast("Attack", found))
        self.corrupt_samples = self._poisoned(declared, options) if isinstance(declared, CorruptsSamples) else None
        self.goal = self._aimed(declared, options) if isinstance(declared, HasGoal) else None

    def mount(
        self,
        vectors: Any,
        liars: Liars,
        rule: Rule,
        byzantine: int,
        *,
        round: int,  # noqa: A002
        model: Any = None,
        rng: RandomGenerator | None = None,
    ) -> Any:
        """Return the votes `[..., n, k]` of a round with the lies in the rows of the liars; without liars, unchanged.

        The attack is not shown honest votes that are not finite: they stay as they are, and the votes are returned
        unchanged if no others are left. A liar's vote that is not finite is shown as the mean of the honest ones.
        Chance comes from `rng`, by default a generator derived from the seed and the round.
        """
        self.reports = {}
        lying, honest = rows_of(vectors, liars)
        if len(lying) == 0 or len(honest) == 0:
            return vectors
        if "model" in self._asks and model is None:
            raise InvalidAttack(f"attack {self.name!r} asks for the model, and there is none to show")
        supplied = {"model": model, "report": self._report, "round": round, "seed": self.seed}
        context = {name: supplied[name] for name in self._asks}
        rng = np.random.default_rng([self.seed, round, DOMAIN]) if rng is None else rng

        def lies(shown: Any, places: Liars) -> Any:
            with self._calling():
                own = namespace(shown).asarray(
                    shown, copy=True
                )  # an attack may compute in place, and honest votes stay
                return convert_like(vectors, self.attack(own, copy.copy(places), rule, byzantine, rng, **context))

        if bool(namespace(vectors).all(namespace(vectors).isfinite(vectors))):
            return self._replaced(vectors, lying, lies(vectors, liars))
        if vectors.ndim > 3:  # several runs: a client left out in one of them is not left out in the others
            return self._mount_each(vectors, liars, rule, byzantine, round=round, model=model, rng=rng)
        shown, places = _finite(vectors, to_numpy(lying), to_numpy(honest))
        try:
            return vectors if shown is None else self._replaced(vectors, lying, lies(shown, places))
        except InvalidAggregation:  # too few votes are left for the rule: the round will make no commit
            return vectors

    @property
    def resumable(self) -> bool:
        """Whether the attack can go on after an interruption: it has no memory, or can store it."""
        return not self.has_memory or isinstance(self.attack, AttackWithState)

    def state(self) -> dict[str, Any]:
        """Return what the attack remembers, as JSON can hold it; {} for one without memory."""
        if not self.has_memory:
            return {}
        with self._calling():
            state = self._resumed().state()
        stored = self._storable(state, "state()")
        if not isinstance(stored, dict):
            raise InvalidAttack(f"attack {self.name!r}: state() must return a dictionary, not {type(state).__name__}")
        return cast("dict[str, Any]", stored)

    def restore(self, state: dict[str, Any]) -> None:
        """Give back to the attack what `state` returned."""
        if self.has_memory:
            with self._calling():
                self._resumed().restore(state)

    def _report(self, name: str, value: Any) -> None:
        """Add a value to the reports of the round; refuse what a table of votes could not hold."""
        if not isinstance(name, str) or name in COLUMNS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidAttack(f"attack {self.name!r} reports {name!r}: give a text, and none of {', '.join(COLUMNS)}")
        numbers = to_numpy(value) if is_torch_array(value) else np.asarray(value)
        if numbers.dtype.kind not in "biuf":
            raise InvalidAttack(
                f"attack {self.name!r} reports {name!r} as {type(value).__name__}: give a number or an array of numbers"
            )
        self.reports[name] = value

    def _mount_each(self, vectors: Any, *arguments: Any, **options: Any) -> Any:
        sent: list[Any] = []
        reports: list[dict[str, Any]] = []
        for own in vectors:
            sent.append(self.mount(own, *arguments, **options))
            reports.append(self.reports)
        names = dict.fromkeys(name for report in reports for name in report)
        self.reports = {name: [report.get(name) for report in reports] for name in names}
        return namespace(vectors).stack(sent)

    def _replaced(self, vectors: Any, lying: Any, lies: Any) -> Any:
        """Return a copy of the votes with the lies in the rows `lying`."""
        expected = (*vectors.shape[:-2], len(lying), vectors.shape[-1])
        if tuple(lies.shape) != expected:
            raise InvalidAttack(
                f"attack {self.name!r} gave an array of shape {tuple(lies.shape)}: {len(lying)} liars send {expected}"
            )
        sent = namespace(vectors).asarray(vectors, copy=True)
        sent[..., lying, :] = lies
        return sent

    def _instance(self, found: Attack) -> Attack:
        with self._calling():
            made = found() if registry.is_class(found) else copy.deepcopy(found)  # its state belongs to this run
        if not callable(made):
            raise InvalidAttack(f"attack {self.name!r}: its instances must be callable, like an attack function")
        return made

    def _resumed(self) -> AttackWithState:
        if not isinstance(self.attack, AttackWithState):
            raise InvalidAttack(
                f"attack {self.name!r} may keep state and cannot be resumed: give it state() and restore(state)"
            )
        return self.attack

    def _storable(self, value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray | np.generic) or is_torch_array(value):
            value = cast("Any", value).tolist()
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {str(key): self._storable(own, f"{path}[{key!r}]") for key, own in items}
        if isinstance(value, list | tuple):
            owns = cast("Sequence[Any]", value)
            return [self._storable(own, f"{path}[{place}]") for place, own in enumerate(owns)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise InvalidAttack(f"attack {self.name!r}: {path} is a {type(value).__name__}, which cannot be stored")

    def _corrupted(self, attack: CorruptsLabels) -> Callable[[Any, int], Any]:
        def corrupt_labels(labels: Any, classes: int) -> Any:
            with self._calling():
                changed = convert_like(labels, attack.corrupt_labels(labels, classes))
            if changed.shape != labels.shape or ((changed < 0) | (changed >= classes)).any():
                raise InvalidAttack(
                    f"attack {self.name!r}: corrupt_labels must return as many labels, from 0 to {classes - 1}"
                )
            return changed

        return corrupt_labels

    def _poisoned(self, attack: CorruptsSamples, options: dict[str, Any]) -> Callable[..., tuple[Any, Any]]:
        def corrupt_samples(inputs: Any, labels: Any, classes: int | None) -> tuple[Any, Any]:
            rng = np.random.default_rng([self.seed, DOMAIN, SAMPLES])
            with self._calling():
                changed, known = attack.corrupt_samples(inputs.copy(), labels.copy(), classes, rng, **options)
                changed, known = convert_like(inputs, changed), convert_like(labels, known)
            if changed.shape != inputs.shape or not np.isfinite(changed).all():
                raise InvalidAttack(
                    f"attack {self.name!r}: corrupt_samples must return finite inputs of shape {inputs.shape}"
                )
            if known.shape != labels.shape or (classes is not None and not _within(known, classes)):
                most = "" if classes is None else f", from 0 to {classes - 1}"
                raise InvalidAttack(f"attack {self.name!r}: corrupt_samples must return as many labels{most}")
            return changed, known

        return corrupt_samples

    def _aimed(self, attack: HasGoal, options: dict[str, Any]) -> Callable[..., tuple[Any, Any]]:
        def goal(inputs: Any, labels: Any, classes: int | None) -> tuple[Any, Any]:
            if classes is None:
                raise InvalidAttack(
                    f"attack {self.name!r}: labels of this task are not classes, and its goal needs some"
                )
            with self._calling():
                shown, wanted = attack.goal(inputs.copy(), labels.copy(), classes, **options)
                shown, wanted = convert_like(inputs, shown), convert_like(labels, wanted)
            fits = shown.shape[1:] == inputs.shape[1:] and wanted.shape == (len(shown), *labels.shape[1:])
            if not fits or not len(shown) or not _within(wanted, classes):
                raise InvalidAttack(
                    f"attack {self.name!r}: goal must return inputs as it was given, and a class from 0 to "
                    f"{classes - 1} for each"
                )
            return shown, wanted

        return goal

    @contextmanager
    def _calling(self) -> Generator[None]:
        """Turn what a user's attack raises into an InvalidAttack that names it."""
        try:
            yield
        except Cyber0Error:
            raise
        except Exception as error:
            raise InvalidAttack(f"attack {self.name!r} cannot be used: {type(error).__name__}: {error}") from error


def mount(
    attack: str | Attack | type,
    vectors: Any,
    liars: Liars,
    rule: Rule,
    byzantine: int,
    rng: RandomGenerator,
    *,
    model: Any = None,
) -> Any:
    """Return the vectors `[..., n, k]` with the lies of a single round, round 0, in the rows of the liars.

    >>> from cyber0.aggregation import cwtm
    >>> mount("sf", np.array([[1.0], [2.0], [4.0]]), [1], cwtm, 1, np.random.default_rng(0))
    array([[ 1. ],
           [-2.5],
           [ 4. ]])
    """
    run = AttackRun(attack, seed=0, knows="votes" if model is None else "model")
    return run.mount(vectors, liars, rule, byzantine, round=0, model=model, rng=rng)


def _is_function(found: Attack) -> bool:
    function = found.func if isinstance(found, partial) else found
    return isfunction(function) or isbuiltin(function)


def _options(found: Attack) -> dict[str, Any]:
    """Return the options of an attack that is a function, those that were not given too."""
    function, given = (found.func, found.keywords) if isinstance(found, partial) else (found, {})
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature
        return dict(given)
    defaults = {each.name: each.default for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    return {name: value for name, value in defaults.items() if name not in CONTEXT} | given


def _within(labels: Any, classes: int) -> bool:
    return bool(((labels >= 0) & (labels < classes)).all())


def _asked(attack: Attack) -> tuple[str, ...]:
    """Return the names of the context that an attack asks for by its keyword-only parameters."""
    try:
        parameters = signature(attack).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return ()
    return tuple(name for name in CONTEXT if name in parameters and parameters[name].kind is Parameter.KEYWORD_ONLY)


def _finite(vectors: Any, lying: NDArray[np.int64], honest: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return the votes `[..., m, k]` that an attack can be shown, and the liars' rows in them; None without any."""
    xp = namespace(vectors)
    finite = to_numpy(xp.all(xp.isfinite(vectors), axis=-1 if vectors.ndim == 2 else (0, 2)))
    truthful = honest[finite[honest]]
    if len(truthful) == 0:
        return None, None
    shown = xp.asarray(vectors, copy=True)
    shown[..., lying[~finite[lying]], :] = xp.mean(rows(vectors, truthful), axis=-2, keepdims=True)
    kept = np.sort(np.concatenate([lying, truthful]))
    return rows(shown, kept), np.searchsorted(kept, lying)
