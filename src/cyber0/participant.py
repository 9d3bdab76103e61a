"""A model that is ready to be trained: built of a task as the parties agreed, on one device.

The simulator, a client of a real federation and a Flower node build theirs by the same function.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig
from cyber0.layerwise.base import frozen_digest
from cyber0.layerwise.frozen import is_streamed
from cyber0.layerwise.measure import Measure, evaluation_model, in_precision, measure_of
from cyber0.layerwise.nearby import lookups_of
from cyber0.layerwise.protocols import is_layerwise
from cyber0.layerwise.stream import stream_linears
from cyber0.parameters import Parameters
from cyber0.protocol.identity import FROZEN
from cyber0.tasks import memory
from cyber0.tasks.calibration import with_objective
from cyber0.tasks.loading import loading
from cyber0.tasks.task import Task, build_model, make
from cyber0.tasks.trained import choose

__all__ = ["Participant", "build_participant", "load_task"]


@dataclass(frozen=True, slots=True, eq=False)
class Participant:
    """A task's model on a device, its flat parameters, and how its losses are measured along directions.

    The losses of its task are those that clients train by.
    """

    task: Task
    parameters: Parameters
    measure: Measure
    device: torch.device

    @property
    def model(self) -> Any:
        """The model as it is evaluated: in the arithmetic that clients measure in."""
        return evaluation_model(self.measure, self.parameters, self.task.losses)

    @property
    def meaning(self) -> dict[str, str]:
        """The digests of what decides the meaning of its labels, and of what it does not train, which are read anew."""
        found = None if self.parameters.module is None else frozen_digest(self.parameters.module)
        return {**self.task.meaning, **({} if found is None else {FROZEN: found})}


def build_participant(
    task: Task,
    agreement: Agreement,
    device: torch.device,
    *,
    simulated: RunConfig | None = None,
    stream: str | None = None,
) -> Participant:
    """Build the initial model of a run on a device; what does not fit into its memory is refused.

    Args:
        task: What is trained.
        agreement: What the parties agreed on.
        device: Where the model is to be.
        simulated: The whole run, where all of its clients are simulated on this device; otherwise there is one.
        stream: How much of the device's memory the weights that are not trained may take, as 8GiB; None: all of it.

    >>> from cyber0.tasks.task import mnist
    >>> build_participant(mnist(source="embedded"), Agreement(), torch.device("cpu")).parameters.size
    7850

    """
    with loading(agreement.precision):
        built = build_model(task, agreement.seed)
    choose(built, agreement.train)
    module: Any = in_precision(built, agreement.precision)
    keys: dict[str, Any] = {key: getattr(agreement, key) for key in Agreement.model_fields}
    alone = RunConfig(**keys, engine="sequential", stream=stream).model_copy(update={"clients": 1})
    memory.check_run(module, simulated or alone, device, task.dataset)
    most = stream if simulated is None else simulated.stream
    module = module.to(device) if most is None else _streamed(module, device, most)
    trained = with_objective(task, agreement.trained_by)
    if agreement.trained_by.radius is not None:
        if not is_layerwise(built):
            raise InvalidConfig(
                f"objective = {agreement.objective!r} is for models that are measured layer by layer, as language "
                f"models are, and {type(built).__name__} is not: declare it by layerwise=True, or leave the radius out"
            )
        lookups_of(built)
    return Participant(trained, Parameters.of(module), measure_of(module, agreement.precision), device)


def _streamed(module: Any, device: torch.device, most: str) -> Any:
    """Move a model to a device, but for what is brought there when it is needed."""
    free = memory.available("cpu")
    stream_linears(module, device, memory.bytes_of(most), None if free is None else free // 2)
    if not is_streamed(module):
        raise InvalidConfig(
            f"stream = {most!r} is for weights that are not trained, and all linear layers of this model are: train an "
            "adapter, as by task = \"sst2(adapter='lora')\", or a part, as by train = 'head'; or leave it out"
        )
    return module


def load_task(
    agreement: Agreement, data: Path | str | None = None, source: str = "auto", model: str | None = None
) -> Task:
    """Make the task that was agreed on, with the data and the language model of this machine.

    >>> load_task(Agreement(), source="embedded").name
    'mnist'
    """
    return make(agreement.task, data, source, model or agreement.model)
