"""cyber0: train one model across clients that share no data and do not trust each other.

Each client sends a few numbers per round; everyone rebuilds the same model, bit for bit. Start with `cyber0.simulate`,
which trains your model on your data with liars among the clients; read on in `cyber0.simulation`, whose round is the
paper's Algorithm 1.

>>> import cyber0
>>> config = cyber0.RunConfig(source="embedded", clients=8, byzantine=2, attack="foe", rule="nnm+cwtm", rounds=20)
>>> result = cyber0.run(config)
>>> result.accuracy > 0.3
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyber0.aggregation import get_rule
    from cyber0.api import simulate
    from cyber0.attacks import get_attack
    from cyber0.callbacks import Callback
    from cyber0.config import RunConfig
    from cyber0.errors import Cyber0Error
    from cyber0.simulation import History, Result, open_run, run
    from cyber0.tasks.dataset import Dataset
    from cyber0.tasks.task import Task, get_task

__all__ = [
    "Callback",
    "Cyber0Error",
    "Dataset",
    "History",
    "Result",
    "RunConfig",
    "Task",
    "__version__",
    "get_attack",
    "get_rule",
    "get_task",
    "open_run",
    "run",
    "simulate",
]

__version__ = "0.1.0"

# Imported when they are first asked for, so that `import cyber0` needs no torch.
_HOMES = {
    "Callback": "cyber0.callbacks",
    "Cyber0Error": "cyber0.errors",
    "Dataset": "cyber0.tasks.dataset",
    "History": "cyber0.simulation",
    "Result": "cyber0.simulation",
    "RunConfig": "cyber0.config",
    "Task": "cyber0.tasks.task",
    "get_attack": "cyber0.attacks",
    "get_rule": "cyber0.aggregation",
    "get_task": "cyber0.tasks.task",
    "open_run": "cyber0.simulation",
    "run": "cyber0.simulation",
    "simulate": "cyber0.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cyber0' has no attribute {name!r}: it has {', '.join(__all__)}")
    try:
        found = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from cyber0.errors import MissingExtra

        if error.name not in ("torch", "safetensors"):
            raise
        raise MissingExtra(f"cyber0.{name} needs {error.name}: pip install 'cyber0[train]'") from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
