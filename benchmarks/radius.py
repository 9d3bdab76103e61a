"""How far to move words: accuracy of `cyber0 study minilm-radius` by radius, on sentences that no client holds.

    python -m benchmarks.radius --model minilm --data DATA --device cuda

SST-2's training file has phrases of its sentences, and clients hold 1,024 of those; its test set has whole sentences.
Runs are judged on rows of the training file that end as a sentence does, are not the end of a longer one, and contain
no phrase of three tokens or more that a client holds: 3,000 of these, drawn at random. `--jobs 6 --job 0` to `--job 5`
play the rows in six processes.
"""

import argparse
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import Row, report
from cyber0.config import RunConfig
from cyber0.participant import load_task
from cyber0.simulation import Simulation
from cyber0.study.recipe import get_recipe
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import Task

SETTINGS: list[dict[str, Any]] = [
    {"objective": "calibrated(radius=0.05)", "lr": 5e-4},
    {"objective": "calibrated(radius=0.03)", "lr": 5e-4},
    {"objective": "calibrated(radius=0.08)", "lr": 5e-4},
    {"objective": "calibrated(radius=0.05)", "lr": 7.5e-4},
    {"objective": "calibrated", "lr": 4e-4},
    {"objective": "calibrated(radius=0.05)", "lr": 5e-4, "attack": "foe(search='zoom')"},
]
LEAST, PHRASE, HELD = 6, 3, 3000  # tokens of a sentence, tokens of a phrase that counts, and how many are judged on
ENDS = (".", "!", "?")
Tokens = tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="fewer than the study's, to try it out")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--job", type=int, default=0)
    given = parser.parse_args()
    rounds = {} if given.rounds is None else {"rounds": given.rounds}
    keys: dict[str, Any] = {**get_recipe("minilm-radius").base, **rounds, "model": given.model, "data": given.data}
    held = sentences(keys)
    chosen = list(product(SETTINGS, range(given.seeds)))[given.job :: given.jobs]
    rows: list[Row] = []
    for setting, seed in chosen:
        options: dict[str, Any] = {**keys, **setting, "seed": seed, "device": given.device}
        rows.append(play(RunConfig(**options), held))
    report("radius", rows, "python -m benchmarks.radius")


def play(config: RunConfig, held: tuple[torch.Tensor, torch.Tensor]) -> Row:
    """Return the accuracies of a run's last round, in percent."""
    run = Simulation(config)
    for _ in run.play():
        pass
    inputs, labels = (part.to(run.device) for part in held)
    found = [
        evaluate(run.task, run.participant.model, data, run.device, size=1000).accuracy or 0.0
        for data in ((inputs, labels), None)
    ]
    setting = {"objective": config.objective, "lr": config.lr, "attack": config.attack, "seed": config.seed}
    return setting | {"sentences held out": round(100 * found[0], 2), "test": round(100 * found[1], 2)}


def sentences(keys: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences of the training file that clients know nothing of, and their labels."""
    options: list[dict[str, Any]] = [{**keys, "task": name} for name in names(keys["task"])]
    task, whole = (load_task(RunConfig(**each), keys["data"]) for each in options)
    transformers: Any = import_module("transformers")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(keys["model"])
    ends = set(tokenizer.convert_tokens_to_ids(list(ENDS)))
    held, tested = set(_rows(task.dataset.train_inputs)), set(_rows(task.dataset.test_inputs))
    rows = _rows(whole.dataset.train_inputs)
    complete = [
        number
        for number, row in enumerate(rows)
        if len(row) >= LEAST and row[-1] in ends and row not in held and row not in tested
    ]
    unknown = [number for number in _longest(complete, rows) if not _contains(rows[number], held)]
    numbers = np.random.default_rng(0).permutation(unknown)[:HELD]
    return _cut(whole, numbers)


def names(task: str) -> tuple[str, str]:
    """Return the texts of a task as clients have it, and with all samples.

    >>> names("sst2(scale=10)")
    ('sst2(scale=10)', 'sst2(scale=10, shots=None)')
    """
    return task, task.removesuffix(")") + ", shots=None)"


def _rows(inputs: NDArray[Any]) -> list[Tokens]:
    """Return the tokens of each text without the first and the last, which mark its ends."""
    return [tuple(int(token) for token in row if token >= 0)[1:-1] for row in inputs]


def _longest(numbers: list[int], rows: list[Tokens]) -> list[int]:
    """Return those that are not the end of another one."""
    kept: list[int] = []
    endings: set[Tokens] = set()
    for number in sorted(numbers, key=lambda number: -len(rows[number])):
        row = rows[number]
        if row not in endings:
            kept.append(number)
            endings.update(row[first:] for first in range(1, len(row) - 3))
    return kept


def _contains(row: Tokens, phrases: set[Tokens]) -> bool:
    longest = min(len(row), max(map(len, phrases)))
    return any(
        row[first : first + size] in phrases
        for size in range(PHRASE, longest + 1)
        for first in range(len(row) - size + 1)
    )


def _cut(task: Task, numbers: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples of a task, no wider than the longest of them."""
    inputs, labels = task.dataset.train_inputs[numbers], task.dataset.train_labels[numbers]
    return torch.as_tensor(inputs[:, : int((inputs >= 0).sum(1).max())]), torch.as_tensor(labels)


if __name__ == "__main__":
    main()
