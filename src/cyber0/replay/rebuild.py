"""Rebuilding a model: find the run, check that the base is its own, apply all commits."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cyber0 import registry
from cyber0.config import Agreement, file_name
from cyber0.errors import InvalidConfig, InvalidLedger, InvalidParameters
from cyber0.extras import require
from cyber0.parameters import Manifest, Parameters
from cyber0.protocol.export import history, is_export, read
from cyber0.protocol.identity import Identity, base_digest
from cyber0.protocol.ledger import Ledger, Memory
from cyber0.protocol.sqlite import File
from cyber0.replay.convert import fitted, lacking
from cyber0.replay.weights import Weights

__all__ = ["base", "opened", "rebuild"]

AT_ONCE = 2**17  # bytes of scalars from one sign of progress to the next


@contextmanager
def opened(path: Path) -> Generator[Ledger]:
    """The run in a file, be it a ledger, read while a federator may write it, or an exported run.

    >>> with opened(Path("no/such/run.ledger")) as ledger:
    ...     pass
    Traceback (most recent call last):
    cyber0.errors.InvalidLedger: there is no ledger no/such/run.ledger
    """
    with _found(path) as ledger:
        yield ledger


def _found(path: Path) -> File | Memory:
    try:
        return File(path, read_only=True)
    except InvalidLedger:
        if not is_export(path):
            raise
    memory = Memory()
    memory.adopt(read(path))
    return memory


def base(
    identity: Identity, path: Path | None, data: Path | None = None, model: str | None = None
) -> tuple[Weights, Parameters]:
    """The weights a run starts from, out of a file, or built by its own task where there is none; checked.

    `data` and `model` say where those of the task are now, if elsewhere.

    A pretrained file may be of another precision than the run's, and has no layer that the run put on top of it: it is
    converted, and such a layer begins at zero. The digest proves that the run began so, too.

    The parameters share the weights' memory: what advances them changes what `Weights.write` writes.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "base.safetensors"
    >>> Weights.of({"w": np.zeros(3, dtype=np.float32)}).write(path)
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> identity = Identity.of(Agreement(clients=1, byzantine=0), ["ann"], zeros)
    >>> base(identity, path)[1].fingerprint() == zeros.fingerprint()
    True
    """
    found = _built(identity.agreement, data, model) if path is None else Weights.read(path)
    layout = _layout(identity, found)
    weights = fitted(found, layout)
    parameters = weights.parameters(layout)
    if (digest := base_digest(parameters)) != identity.base:
        if missing := lacking(found, layout):
            raise InvalidParameters(
                f"the weights have no tensor {missing[0]!r}, which the run trains and did not begin at zero"
            )
        raise InvalidParameters(
            f"this is not the base of the run: its weights have SHA-256 {digest}, the run began with {identity.base}"
        )
    return weights, parameters


def rebuild(
    ledger: Ledger,
    parameters: Parameters,
    rounds: int | None = None,
    device: str = "cpu",
    watch: Callable[[int], None] = lambda _: None,
) -> int:
    """Advance base parameters (NumPy) by a ledger's first rounds, all unless said; returns their fingerprint.

    >>> from cyber0.protocol.records import Decision
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> ledger = Memory()
    >>> ledger.found(Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros))
    >>> head = ledger.append(Decision(0, np.ones(1, dtype="<f4").tobytes(), ()))
    >>> hex(rebuild(ledger, zeros))
    '0xaba0f08711114966'
    """
    there = _moved(parameters, device)
    run = history(ledger, rounds)
    if run.head.commit != ledger.head_at(run.rounds).commit:
        raise InvalidLedger("the scalars of this ledger do not fit its chain: cyber0 verify names the round")
    width = 4 * run.identity.plan.scalars
    step = max(1, AT_ONCE // width)
    for first in range(0, run.rounds, step):
        last = min(first + step, run.rounds)
        there.apply_all(run.identity.plan.commits(first, run.scalars[first * width : last * width]))
        watch(last)
    if there is not parameters:
        for (_, here), (_, flat) in zip(parameters, there, strict=True):
            here[:] = _host(flat)
    return there.fingerprint()


def _layout(identity: Identity, weights: Weights) -> Manifest:
    """The run's flat order: its own, or where its founder knew only the digest, the file's if that is it."""
    layout = weights.order if identity.layout is None else identity.layout
    if layout.digest != identity.manifest:
        raise InvalidParameters(
            f"these weights are laid out otherwise: their manifest is {layout.digest}, the run's {identity.manifest}"
        )
    return layout


def _built(agreement: Agreement, data: Path | None, model: str | None) -> Weights:
    name = registry.map_options("task", agreement.task, lambda value: present(value, data))
    if ":" in name:  # of the task itself, or of an option that is one
        raise InvalidConfig(f"task = {name!r} is code of somebody: give the base as a file")
    require("torch", extra="train")
    from cyber0.tasks.task import make

    module: Any = make(name, data, "auto", model or agreement.model).build(agreement.seed)
    return Weights.of({name: _host(value.detach()) for name, value in module.named_parameters()})


def present(value: Any, data: Path | None) -> Any:
    """Return a file of a task's options by its name alone, if it is not at its whole path but in the data folder."""
    name = file_name(value)
    moved = name != value and data is not None and (data / name).exists() and not Path(value).exists()
    return name if moved else value


def _moved(parameters: Parameters, device: str) -> Parameters:
    """The parameters on a device; on the CPU NumPy's own, without torch."""
    if device == "cpu":
        return parameters
    torch = require("torch", extra="train")
    tensors: dict[str, Any] = {}
    for entry, flat in parameters:
        tensor: Any = torch.from_numpy(flat.view(np.int16) if flat.itemsize == 2 else flat).reshape(entry.shape)
        tensors[entry.name] = (tensor.view(torch.bfloat16) if flat.itemsize == 2 else tensor).to(device)
    return Parameters(tensors)


def _host(tensor: Any) -> Any:
    from cyber0.directions.select import host

    return host(tensor.cpu())
