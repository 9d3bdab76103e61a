"""Rebuild a model: open the run's ledger, check the base weights, apply the commits."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cyber0 import registry
from cyber0.config import Agreement, file_name
from cyber0.errors import InvalidConfig, InvalidLedger, InvalidParameters
from cyber0.extras import require
from cyber0.parameters import Manifest, Parameters
from cyber0.plan import CommitSequence
from cyber0.protocol.export import exported_run, is_export, read
from cyber0.protocol.identity import Identity, base_digest
from cyber0.protocol.ledger import Ledger, Memory
from cyber0.protocol.sqlite import File
from cyber0.replay.checkpoint import Checkpoint
from cyber0.replay.convert import convert, missing_tensors
from cyber0.replay.weights import Weights

__all__ = ["base", "begun", "open_ledger", "rebuild"]

AT_ONCE = 2**31  # numbers of directions between two reports of progress: some seconds,
LEAST = 32  # or as many rounds, so that reading and writing the weights takes little of the time


@contextmanager
def open_ledger(path: Path) -> Generator[Ledger]:
    """Open the run in a file: a ledger, which a federator may be writing meanwhile, or an exported run.

    >>> with open_ledger(Path("no/such/run.ledger")) as ledger:
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
    """Return the weights that a run starts from, from a file, or built by the run's task if `path` is None.

    `data` and `model` say where the task's data and model are, if they have moved. A pretrained file may have another
    precision than the run, and lacks the layers that the run has added: it is converted, and such a layer starts at
    zero. The digest shows whether the run started so, too; if not, InvalidParameters is raised.

    The parameters share the memory of the weights: `Weights.write` writes what they have become.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "base.safetensors"
    >>> Weights.of({"w": np.zeros(3, dtype=np.float32)}).write(path)
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> identity = Identity.of(Agreement(clients=1, byzantine=0), ["ann"], zeros)
    >>> base(identity, path)[1].fingerprint() == zeros.fingerprint()
    True
    """
    return begun(identity, _built(identity.agreement, data, model) if path is None else Weights.read(path))


def begun(identity: Identity, found: Weights) -> tuple[Weights, Parameters]:
    """Return weights as a run starts from them, and its parameters in their memory; other weights are refused."""
    layout = _layout(identity, found)
    weights = convert(found, layout)
    parameters = weights.parameters(layout)
    if (digest := base_digest(parameters)) != identity.base:
        if missing := missing_tensors(found, layout):
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
    checkpoint: Checkpoint | None = None,
) -> int:
    """Apply the first `rounds` commits of a ledger (default: all) to base parameters; return their fingerprint.

    The parameters are NumPy's, and are changed in place; `device` is where the commits are applied. With a
    `checkpoint`, what is stored there is not done again; it is for the caller to remove it at the end.

    >>> from cyber0.protocol.records import Decision
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> ledger = Memory()
    >>> ledger.found(Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros))
    >>> head = ledger.append(Decision(0, np.ones(1, dtype="<f4").tobytes(), ()))
    >>> hex(rebuild(ledger, zeros))
    '0xaba0f08711114966'
    """
    run = exported_run(ledger, rounds)
    if run.head.commit != ledger.head_at(run.rounds).commit:
        raise InvalidLedger("the scalars of this ledger do not match its hash chain: cyber0 verify names the round")
    done, moment = (0, 0.0) if checkpoint is None else checkpoint.resume(run, parameters)
    there = _moved(parameters, device)
    sequence, width = CommitSequence(run.identity.plan, moment), 4 * run.identity.plan.scalars
    step = max(LEAST, AT_ONCE // (run.identity.plan.scalars * parameters.size))
    for first in range(done, run.rounds, step):
        last = min(first + step, run.rounds)
        there.apply_all(sequence.commits(first, run.scalars[first * width : last * width]))
        watch(last)
        if checkpoint is not None and last < run.rounds:
            checkpoint.keep(run, last, sequence.moment, partial(_brought_back, there, parameters))
    return _brought_back(there, parameters).fingerprint()


def _brought_back(there: Parameters, here: Parameters) -> Parameters:
    """Return the parameters on the host, with the weights of those on a device, if these are others."""
    if there is not here:
        for (_, flat), (_, tensor) in zip(here, there, strict=True):
            flat[:] = _host(tensor)
    return here


def _layout(identity: Identity, weights: Weights) -> Manifest:
    """Return the run's layout; if the run has only its digest, the layout of the file, which must have that digest."""
    layout = weights.order if identity.layout is None else identity.layout
    if layout.digest != identity.manifest:
        raise InvalidParameters(
            f"these weights have another layout: their manifest is {layout.digest}, the run's {identity.manifest}"
        )
    return layout


def _built(agreement: Agreement, data: Path | None, model: str | None) -> Weights:
    name = registry.map_options("task", agreement.task, lambda value: present(value, data))
    if ":" in name:  # of the task itself, or of an option that is one
        raise InvalidConfig(f"task = {name!r} would run code from outside the library: give the base as a file")
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
    """Return the parameters as tensors on a device; on the CPU the NumPy ones themselves, without torch."""
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
