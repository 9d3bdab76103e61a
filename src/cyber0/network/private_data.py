"""Data that a client keeps private: secret batches, noise of its own, a budget that is charged before each vote."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cyber0.config import CLIP, DELTA, Agreement
from cyber0.errors import InvalidConfig, Refused
from cyber0.extras import require
from cyber0.files import state_directory
from cyber0.network.log import Said
from cyber0.privacy.accounting import Step, check_epsilon
from cyber0.privacy.budget import Budget, budget_of, data_digest
from cyber0.privacy.client_steps import PrivateSteps, system_noise
from cyber0.privacy.mechanism import Mechanism
from cyber0.privacy.sampling import poisson_batch, sampling_rate
from cyber0.protocol.promise import Promise

__all__ = ["PrivacyOptions", "PrivateData", "check_rounding", "check_terms", "warn_of_budget"]

SPARE = (
    100  # one round in so many, and two more, are kept for crashes: a vote that was charged may not have been stored
)
ROUNDING = 0.1  # how much of a loss may be lost by rounding, over mu
SHOWN = 20  # times that a client says in a run what it has spent


@dataclass(frozen=True, slots=True)
class PrivacyOptions:
    """What a client wants of its privacy. What makes no sense is refused.

    Args:
        epsilon: The budget of its data set, for all runs together.
        folder: Where budgets are kept: one for all ways to take part, since a data set has one budget.
        delta: Its delta.
        clip: The length to which each sample's slopes are clipped; that of the run's terms, if they have one.
        dataset: The name of the data set, to which the budget belongs.
        accept_changed: Whether data that have changed may go on with what is left of their budget.

    >>> PrivacyOptions(8.0, clip=0.0)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: clip = 0: it must be a length above 0, as 1.0; with 0 only noise is sent

    """

    epsilon: float
    folder: Path = field(default_factory=lambda: _budgets())
    delta: float = DELTA
    clip: float | None = None
    dataset: str = "data"
    accept_changed: bool = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not 0 < self.delta < 1:
            raise InvalidConfig(f"delta = {self.delta:g}: it must be above 0, and below 1 / your samples")
        if self.clip is not None and not self.clip > 0:
            raise InvalidConfig(f"clip = {self.clip:g}: it must be a length above 0, as 1.0; with 0 only noise is sent")
        require("dp_accounting", extra="privacy")

    def clip_of(self, agreement: Agreement) -> float:
        """Return the clip for a run: that of its terms, the client's own, or the default."""
        if self.clip is not None and agreement.clip not in (None, self.clip):
            raise InvalidConfig(f"clip = {self.clip:g}: this run's terms say {agreement.clip:g}; leave --clip out")
        clip = agreement.clip or (CLIP if self.clip is None else self.clip)
        Mechanism(clip, 1.0, 1.0)  # refuses a clip of 0
        return clip


def check_terms(agreement: Agreement, private: PrivacyOptions | None) -> None:
    """Refuse a run that asks for privacy, where this client has none.

    >>> check_terms(Agreement(least_noise=0.5), None)
    Traceback (most recent call last):
    cyber0.errors.Refused: this run asks every client for a noise multiplier of at least 0.5: join with --epsilon
    """
    if agreement.least_noise is not None and private is None:
        least = f"{agreement.least_noise:g}"
        raise Refused(f"this run asks every client for a noise multiplier of at least {least}: join with --epsilon")


def check_rounding(agreement: Agreement, dimension: int, *, double: bool) -> None:
    """Refuse a mu at which slopes are rounding: a difference of two losses keeps their rounding, over 2 mu.

    Samples are measured apart, so that rounding tells nothing of others. But where that fails unnoticed, as by a kernel
    that is not deterministic, such a mu would make the most of it, and nothing is learned from it.

    Args:
        agreement: The run's.
        dimension: How many weights are trained.
        double: Whether losses are computed in float64.

    >>> check_rounding(Agreement(), dimension=7850, double=True)
    >>> check_rounding(Agreement(mu=1e-14), dimension=7850, double=True)
    Traceback (most recent call last):
    cyber0.errors.Refused: mu = 1e-14, family = 'sphere': slopes would be nothing but rounding: a private client \
needs a mu of at least 1e-13

    """
    length = math.sqrt(dimension) if agreement.family == "sphere" else 1.0
    least = length * (2.0**-53 if double else 2.0**-24) / ROUNDING
    if 0 < agreement.mu < least:
        raise Refused(
            f"mu = {agreement.mu:g}, family = {agreement.family!r}: slopes would be nothing but rounding: a private "
            f"client needs a mu of at least {least:.0e}"
        )


def warn_of_budget(inputs: torch.Tensor, labels: torch.Tensor, notice: Callable[[str], None]) -> None:
    """Warn who votes without privacy on data that have a budget on this machine."""
    folder = _budgets()
    if not any(folder.glob("*.jsonl")):  # nearly always: the data need not be read
        return
    try:
        name = budget_of(folder, _digest(inputs, labels))
    except (OSError, TypeError):  # budgets of somebody else, or data that no budget could be opened for
        return
    if name is not None:
        notice(
            Said(
                f"these data have a privacy budget, as {name!r}, and this client votes without privacy: such votes "
                f"are not counted, and void its promise; to keep it, stop now and join with --epsilon and "
                f"--dataset {name}",
                "warning",
            )
        )


def _budgets() -> Path:
    return state_directory() / "budgets"


def _digest(inputs: torch.Tensor, labels: torch.Tensor) -> str:
    return data_digest(part.cpu().numpy() for part in (inputs, labels))


class PrivateData:
    """A client's data with their budget: batches by secret coins, noise from the operating system.

    Args:
        options: What the client wants.
        agreement: The run's.
        inputs: All of its training inputs, on its device.
        labels: Their labels.
        notice: A function that is called with a sentence when something happens.
        probes: Inputs and labels that are not trained on, as `PrivateSteps` takes them.

    `begin` is called with the digest of the run's terms before the first vote.

    """

    def __init__(
        self,
        options: PrivacyOptions,
        agreement: Agreement,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        notice: Callable[[str], None] = lambda _: None,
        probes: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        self.probes = probes
        self.agreement, self.inputs, self.labels, self.notice = agreement, inputs, labels, notice
        self.clip, samples = options.clip_of(agreement), len(labels)
        self.rate = sampling_rate(agreement.batch, samples)
        self.budget = Budget(
            options.folder,
            options.dataset,
            epsilon=options.epsilon,
            delta=options.delta,
            samples=samples,
            digest=_digest(inputs, labels),
            accept_changed=options.accept_changed,
        )
        self.run, self.stopped, self._charged, self._shown = "", False, 0, 0
        self.mechanism = Mechanism(self.clip, 0.0, self.rate * samples)

    def begin(self, terms: bytes) -> Promise:
        """Choose the noise for a run, by its terms and what is left of the budget, and return what is promised."""
        self.run, agreement = terms.hex(), self.agreement
        steps = agreement.private_steps + agreement.private_steps // SPARE + 2 * agreement.local_epochs
        noise = self.budget.noise_for(self.run, self.rate, steps, agreement.least_noise or 0.0)
        self.mechanism = Mechanism(self.clip, noise, self.mechanism.batch)
        budget, steps = self.budget, agreement.local_epochs
        if budget.left(self.step, steps) < steps:
            raise InvalidConfig(
                f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g}: {budget.spent():.3g} of the budget of "
                f"{budget.name!r} is spent, and one round costs more than is left; nothing is sent"
            )
        self.notice(
            f"privacy of {len(self.labels):,} samples: epsilon {budget.epsilon:g} at delta {budget.delta:g} for the "
            f"data {budget.name!r}, {budget.spent():.3g} of it spent; noise {noise:g} x clip {self.clip:g}, "
            f"sampling rate {self.rate:.3g}"
        )
        return Promise(self.clip, noise)

    @property
    def step(self) -> Step:
        """A local step, for the accountant."""
        return Step(self.mechanism.noise, self.rate)

    @property
    def steps(self) -> PrivateSteps:
        """How steps are made private."""
        return PrivateSteps(self.mechanism, system_noise(self.mechanism), self.probes)

    def batch(self, _round: int, _epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a batch that nobody else can derive."""
        drawn = poisson_batch(len(self.labels), self.rate)
        chosen = torch.from_numpy(drawn).to(self.labels.device)  # pyright: ignore[reportUnknownMemberType]
        return self.inputs[chosen], self.labels[chosen]

    def charge(self, number: int) -> bool:
        """Charge the budget for a round, durably; return False, for good, once it does not suffice for another."""
        steps = self.agreement.local_epochs
        if self.stopped or self.budget.left(self.step, steps) < steps:
            if not self.stopped:
                self.stopped = True
                self.notice(
                    f"the budget of {self.budget.name!r} is spent, epsilon {self.budget.spent():.3g} of "
                    f"{self.budget.epsilon:g}: this client stops voting at round {number}, and stays for the model"
                )
            return False
        self.budget.charge(self.run, number, self.step, steps)
        self._charged += 1
        if self._charged >= self._shown:
            self._shown += max(1, self.agreement.rounds // SHOWN)
            self.notice(f"epsilon {self.budget.spent():.3g} of {self.budget.epsilon:g} is spent, with round {number}")
        return True
