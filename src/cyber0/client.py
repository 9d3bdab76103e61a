"""What a client does in a round: drift from the global model along the plan's directions, and say how.

This is the code a client of a real federation runs, and the simulator's `sequential` engine.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyber0.directions import COMPRESSED_EPOCH, Backend, combine, project
from cyber0.directions.select import device_of
from cyber0.errors import NonFiniteLoss
from cyber0.estimate import Losses, estimate
from cyber0.layerwise.fixed_shapes import FixedShapes
from cyber0.layerwise.measure import Measure
from cyber0.parameters import Parameters
from cyber0.plan import Plan
from cyber0.privacy.client_steps import PrivateSteps
from cyber0.privacy.mechanism import gradient_unit

__all__ = ["Client", "projected"]


class Client:
    """A client's side of a federation: its copy of the global model, and its own data behind `batch(round, epoch)`.

    With `private` steps every local step is clipped and noised before it is applied or sent; batches are then pairs of
    tensors, of any number of samples, each of which is measured as if it were alone.

    >>> import torch
    >>> from cyber0.plan import Plan
    >>> model = torch.nn.Linear(3, 1)
    >>> def losses(model, batch):
    ...     return model(batch).square().squeeze(1)
    >>> plan = Plan(seed=1, directions=4, local_epochs=2, scheme="unbiased", mu=1e-3, lr=0.1)
    >>> client = Client(Parameters.of(model), losses, lambda round, epoch: torch.ones(5, 3), plan)
    >>> client.vote(round=0).shape
    (2, 4)
    """

    def __init__(
        self,
        parameters: Parameters,
        losses: Losses,
        batch: Callable[[int, int], Any],
        plan: Plan,
        backend: str | Backend | None = None,
        measure: Measure = estimate,
        private: PrivateSteps | None = None,
    ) -> None:
        self.parameters, self.losses, self.batch, self.plan, self.backend = parameters, losses, batch, plan, backend
        self.measure, self.problem, self.private = measure, "", private
        self._sample_slopes = None if private is None else FixedShapes(measure, private.mechanism.batch, private.probes)
        self.moment = 0.0  # what the step rule has derived from the commits so far
        self._local = parameters
        if plan.local_epochs > 1 and parameters.module is not None:
            self._local = Parameters.of(deepcopy(parameters.module))

    def vote(self, round: int) -> NDArray[np.float32]:  # noqa: A002
        """Return the scalars to send for a round, [rows, directions] (Alg. 1, lines 4 to 10). The global model stays.

        Where a loss is not finite they are NaN, which does not count; `problem` then says what was wrong.
        """
        self.problem = ""
        try:
            return self._measured(round)
        except NonFiniteLoss as error:
            self.problem = str(error)
            return np.full((self.plan.rows, self.plan.directions), np.nan, dtype=np.float32)

    def _measured(self, round: int) -> NDArray[np.float32]:  # noqa: A002
        plan, local = self.plan, self._reset()
        steps: list[NDArray[np.float32]] = []
        for epoch in range(plan.local_epochs):
            steps.append(self._step(local, round, epoch))
            if epoch + 1 < plan.local_epochs:
                local.apply(plan.step(round, epoch, steps[-1], self.moment), self.backend)

        def project() -> NDArray[np.float32]:
            moved = self.parameters.block(plan.blocks, plan.seed, round)
            return projected(moved, plan, round, np.concatenate(steps), self.backend)

        return plan.message(steps, project)

    def _step(self, local: Parameters, round: int, epoch: int) -> NDArray[np.float32]:  # noqa: A002
        """Return the scalars of one local step (Alg. 1, lines 5 to 8)."""
        plan, batch = self.plan, self.batch(round, epoch)
        local = local.block(plan.blocks, plan.seed, round)
        keys = plan.keys(round, plan.epoch(epoch))
        options: dict[str, Any] = {"mu": plan.mu, "family": plan.family, "backend": self.backend}
        slopes, private = self._sample_slopes, self.private
        if slopes is None or private is None:
            return self.measure(local, self.losses, batch, keys, **options)
        unit = gradient_unit(local.size, len(keys), plan.family)
        return private.vote(
            lambda part: slopes(local, self.losses, part, keys, **options), batch, len(keys), unit, round, epoch
        )

    def _reset(self) -> Parameters:
        """The local model, back at the global one."""
        if self._local is not self.parameters:
            self.parameters.settle()
            for (_, local), (_, flat) in zip(self._local, self.parameters, strict=True):
                local.copy_(flat)
        return self._local


def projected(
    parameters: Parameters,
    plan: Plan,
    round: int,  # noqa: A002
    scalars: NDArray[np.float32],
    backend: str | Backend | None = None,
) -> NDArray[np.float32]:
    """A whole local update of what a round moves, the scalars of all its steps, projected on directions of its own.

    >>> import torch
    >>> plan = Plan(seed=1, directions=4, local_epochs=2, scheme="compressed", mu=1e-3, lr=0.1)
    >>> projected(Parameters.of(torch.nn.Linear(3, 1)), plan, 0, np.ones(8, dtype=np.float32)).shape
    (4,)
    """
    size = parameters.size
    keys = [key for epoch in range(plan.local_epochs) for key in plan.keys(round, epoch)]
    where: dict[str, Any] = {"family": plan.family, "dimension": size, "backend": backend}
    totals = np.zeros(plan.directions)
    for entry, flat in parameters:
        update = combine(keys, scalars, entry.size, start=entry.start, device=device_of(flat), **where)
        part = project(update, plan.keys(round, COMPRESSED_EPOCH), start=entry.start, **where)
        totals += part.cpu().numpy()
    return (totals * plan.projection(size)).astype(np.float32)
