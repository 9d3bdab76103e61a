"""The front door: simulate a federation on a model and data of one's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from torch import nn

from cyber0.aggregation import Rule
from cyber0.attacks import Attack
from cyber0.callbacks import Callback
from cyber0.config import RunConfig
from cyber0.directions.key import Family
from cyber0.errors import InvalidConfig
from cyber0.plan import Scheme
from cyber0.simulation.metrics import Keep
from cyber0.simulation.result import Result
from cyber0.simulation.run import run
from cyber0.tasks.convert import task_of
from cyber0.tasks.partition import Partition
from cyber0.user_code import label_of

__all__ = ["simulate"]


def simulate(
    model: nn.Module | Callable[..., nn.Module],
    train: Any,
    test: Any,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    metrics: Mapping[str, Callable[[Any, Any], float]] | None = None,
    classes: int | Sequence[str] | None = None,
    clients: int | None = None,
    byzantine: int | None = None,
    partition: str | Partition | None = None,
    alpha: float | None = None,
    rule: str | Rule = "cwtm",
    attack: str | Attack | type = "none",
    knows: Literal["votes", "model"] | None = None,
    rounds: int | None = None,
    directions: int | None = None,
    lr: float | None = None,
    schedule: str | None = None,
    step_rule: str | None = None,
    objective: str | None = None,
    batch: int | None = None,
    local_epochs: int | None = None,
    scheme: Scheme | None = None,
    family: Family | None = None,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    clip: float | None = None,
    layerwise: bool = False,
    validation: float | None = None,
    evaluate_every: int | None = None,
    seed: int | None = None,
    callbacks: Iterable[Callback | type[Callback] | str] = (),
    keep: Keep | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    **options: Any,
) -> Result:
    """Simulate a federation that trains your model on your data, with liars among the clients.

    Args:
        model: A torch module, or a class or function that returns one, called with the run's seed if it takes a seed.
        train: (inputs, targets) as tensors or NumPy arrays, a torch data set, or a list with one of these per client.
        test: (inputs, targets) or a torch data set to evaluate on.
        loss: loss(outputs, targets) -> one value for each sample; cross-entropy of classes if not given. A torch loss
            will do as it is.
        metrics: What else to measure at each evaluation: functions of all outputs and all targets, by name.
        classes: How many classes there are, or their names; one more than the largest label if not given. Labels that
            are texts are numbered in the order of these names, or sorted.
        clients: How many clients there are; 40, or as many as `train` has data sets.
        byzantine: How many of them lie; a quarter.
        partition: How `train` is dealt to the clients: "dirichlet", "iid", "shards", "shuffled", or a function.
        alpha: The concentration of the dirichlet partition: the smaller, the fewer labels a client has.
        rule: How votes are aggregated: a name such as "nnm+cwtm", a name with options such as "krum(power=1)", or a
            function of votes [..., n, k] and the number of liars.
        attack: What the liars send: a name such as "foe" or "alie(omega=1.5)", a function, or a class, which is called
            once per run and whose instance may keep state.
        knows: What the liars know: the honest "votes", or the "model" too.
        rounds: Global epochs.
        directions: Scalars that a client sends per round and local epoch.
        lr: The learning rate.
        schedule: How it changes over the rounds, such as "cosine" or "warmup(rounds=100)+linear".
        step_rule: How far a round moves: "plain", or "normalised(beta=0.99)", by what scalars usually are.
        objective: What clients measure: the "plain" loss, or "calibrated", less what their own shares of classes teach;
            either with a radius, as "plain(radius=0.05)", for language models with mu = 0.
        batch: Samples per local step; 0: all that a client holds.
        local_epochs: Local steps per round.
        scheme: What local epochs send: "unbiased", "biased" or "compressed".
        family: The distribution of directions, "sphere", "gaussian" or "rademacher"; if not given, "rademacher" with
            `layerwise`, "sphere" without.
        mu: How far to perturb; 0 for exact derivatives.
        epsilon: The privacy budget of each client's data, for the whole run; by default nothing is private. Noise and
            batches follow from the seed here, so that a simulation shows what privacy costs and gives none.
        delta: The delta of that budget; 1e-5.
        clip: The length to which the slopes of each sample are clipped, in units of its gradient's length; 10.
        layerwise: Whether the model is measured a layer at a time, all clients in one batch: for large models, which
            then need little more memory than inference does.
        validation: The share of `train` that is held out to choose the best round by.
        evaluate_every: Rounds from one evaluation to the next.
        seed: Everything random follows from it.
        callbacks: Objects of subclasses of `cyber0.Callback`.
        keep: "votes" keeps every round's votes, lies and aggregate in the result's history.
        out: A new folder for everything there is to keep; `cyber0.open_run` reads it back.
        resume: Whether to continue the run in `out`: one that was stopped, or one that is to have more rounds.
        **options: Any other key of `cyber0.RunConfig`, such as device or engine.

    >>> import cyber0, torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(600, 2, generator=generator)
    >>> y = (x[:, 0] > x[:, 1]).long()
    >>> result = cyber0.simulate(
    ...     model=torch.nn.Linear(2, 2), train=(x[:500], y[:500]), test=(x[500:], y[500:]),
    ...     clients=8, partition="iid", rule="nnm+cwtm", attack="foe", rounds=60, lr=1.0)
    >>> result.accuracy > 0.9
    True

    """
    for key in ("task", "source", "data"):
        if key in options:
            raise InvalidConfig(
                f"{key} = {options[key]!r}: simulate trains the model and the data that it is given; for a task by "
                "name use cyber0.run(cyber0.RunConfig(...))"
            )
    task = task_of(model, train, test, loss=loss, metrics=metrics, classes=classes, layerwise=layerwise)
    if task.dataset.shares is not None:
        for key, value in {"partition": partition, "alpha": alpha}.items():
            if value is not None:
                raise InvalidConfig(
                    f"{key} = {value!r}: train is a list with the data of each client, and nothing is dealt out: leave "
                    f"{key} out, or give train as one data set"
                )
        partition = "natural"
    if clients is None:
        clients = 40 if task.dataset.shares is None else len(task.dataset.shares)
    given: dict[str, Any] = {
        "task": f"{getattr(model, '__module__', '__main__')}:{label_of(model).rpartition('.')[2]}",
        "clients": clients,
        "byzantine": clients // 4 if byzantine is None else byzantine,
        "rule": rule if isinstance(rule, str) else None,
        "attack": attack if isinstance(attack, str) else None,
        "partition": partition if isinstance(partition, str) else None,
        "alpha": alpha,
        "knows": knows,
        "rounds": rounds,
        "directions": directions,
        "lr": lr,
        "schedule": schedule,
        "step_rule": step_rule,
        "objective": objective,
        "batch": batch,
        "local_epochs": local_epochs,
        "scheme": scheme,
        "family": "rademacher" if family is None and layerwise else family,
        "mu": mu,
        "epsilon": epsilon,
        "delta": delta,
        "clip": clip,
        "validation": validation,
        "evaluate_every": evaluate_every,
        "seed": seed,
        **options,
    }
    config = RunConfig(**{key: _plain(value) for key, value in given.items() if value is not None})
    return run(
        config,
        out,
        task=task,
        rule=None if isinstance(rule, str) else rule,
        attack=None if isinstance(attack, str) else attack,
        partition=None if isinstance(partition, str | None) else partition,
        callbacks=callbacks,
        keep=keep,
        resume=resume,
    )


def _plain(value: Any) -> Any:
    """Return a number of NumPy, such as a seed out of np.arange(5), as one of Python, and anything else as it is."""
    return cast("Any", value).item() if isinstance(value, np.generic) else value
