"""Problems of a study that can be found before its first run is played."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cyber0 import aggregation, attacks, registry
from cyber0.config import RunConfig
from cyber0.errors import Cyber0Error, InvalidConfig
from cyber0.protocol.decide import quorum
from cyber0.study.work import Job

__all__ = ["check_jobs"]


def check_jobs(jobs: Sequence[Job], *, here: bool = True) -> None:
    """Refuse runs that cannot be played; one error names every problem, and the cell that has it.

    Checked are rule, attack, partition, task and their options, whether the rule can decide on the votes of those
    invited and, where the runs are played `here`, the device. Code of the user's is imported, data are not loaded.

    >>> check_jobs([Job({"rule": "Krum"}, RunConfig(rule="krumm", attack="sff"))])
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: the study cannot be played:
      Krum: unknown rule 'krumm': use one of ... (did you mean 'krum'?)
      Krum: unknown attack 'sff': use one of ... (did you mean 'sf'?)
    """
    found: dict[str, list[str]] = {}  # the cells that have each problem
    known: dict[str, list[tuple[str, Exception]]] = {}
    causes: list[Exception] = []
    for job in jobs:
        key = job.config.model_dump_json(exclude={"seed"})
        if key not in known:
            known[key] = list(_problems(job.config, here))
            causes += [error for _, error in known[key]]
        for text, _ in known[key]:
            found.setdefault(text, []).append(", ".join(job.labels.values()))
    if found:
        raise InvalidConfig(
            "the study cannot be played:" + "".join(f"\n  {_cells(cells)}: {text}" for text, cells in found.items())
        ) from causes[0]


def _cells(cells: list[str]) -> str:
    names = list(dict.fromkeys(cells))
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _problems(config: RunConfig, here: bool) -> Iterator[tuple[str, Exception]]:
    checks: dict[str, Callable[[], object]] = {
        "rule": lambda: quorum(aggregation.get_rule(config.rule), config.byzantine, config.invited),
        "attack": lambda: attacks.get_attack(config.attack),
        "partition": lambda: _check_partition(config),
        "task": lambda: _check_task(config),
    }
    if here:
        checks["device"] = partial(_check_device, config.device)
    for key, check in checks.items():
        value = getattr(config, key)
        try:
            check()
        except Cyber0Error as error:
            text = str(error)
            yield text if repr(value) in text else f"{key} = {value!r}: {text}", error
        except Exception as error:  # a module of the user's that cannot be imported
            yield f"{key} = {value!r} cannot be imported: {type(error).__name__}: {error}", error


def _check_partition(config: RunConfig) -> None:
    from cyber0.tasks.partition import get_partition

    options = {} if config.alpha is None else {"alpha": config.alpha}
    registry.check_options(options, get_partition(config.partition), f"the partition {config.partition!r}")


def _check_task(config: RunConfig) -> None:
    from cyber0.tasks.task import get_task

    get_task(config.task)


def _check_device(name: str) -> None:
    from cyber0.tasks.devices import get_device

    get_device(name)
