"""What gradients reach on the samples of `cyber0 study steps-line`: a linear probe and AdamW, without a federation.

    python -m benchmarks.first_order --model minilm --data DATA --only probe     # minutes on a CPU
    python -m benchmarks.first_order --model minilm --data DATA                  # with AdamW: for a GPU

The same training samples, of which the same fifth is held out. The probe is logistic regression on the embeddings that
the model has before training; its penalty, and rate and epoch of AdamW, are those that are best on the held-out fifth.
"""

import argparse
import math
from typing import Any

import torch
from torch import nn

from benchmarks.measure import Row, report
from cyber0.tasks.evaluation import evaluate
from cyber0.tasks.task import Task, make
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.tokens import PAD, trimmed

TASKS = {"SST-2": "sst2(scale=50)", "TREC": "trec(scale=50)"}
PENALTIES = tuple(10.0**power for power in range(-5, 2))
RATES, EPOCHS, BATCH = (2e-5, 5e-5, 1e-4), 3, 32
Data = tuple[torch.Tensor, torch.Tensor]


def parts(task: Task, device: str) -> list[Data]:
    """Return samples to train on, those held out, and test samples."""
    rest, held = task.dataset.split_validation(0.2, seed=0)
    pairs = (rest.train_inputs, rest.train_labels), held, (rest.test_inputs, rest.test_labels)
    return [(torch.as_tensor(x).to(device), torch.as_tensor(y).to(device)) for x, y in pairs]


def embeddings(model: Classifier, tokens: torch.Tensor) -> torch.Tensor:
    batches = [trimmed(tokens[first : first + 64]) for first in range(0, len(tokens), 64)]
    with torch.no_grad():
        found = [
            model.label_head.pool(model.base(**model.inputs(part)).last_hidden_state, part != PAD) for part in batches
        ]
    return torch.cat(found).double()


def probe(model: Classifier, data: list[Data]) -> Row:
    """Fit logistic regressions; return the accuracy of the one that is best on held-out samples."""
    features = [embeddings(model, x) for x, _ in data]
    mean, spread = features[0].mean(0), features[0].std(0)
    features = [(each - mean) / spread for each in features]
    best: Row = {"held out": -1.0}
    for penalty in PENALTIES:
        layer = nn.Linear(features[0].shape[1], model.label_head.classes, dtype=torch.float64, device=mean.device)
        nn.init.zeros_(layer.weight)
        optimiser: Any = torch.optim.LBFGS(layer.parameters(), max_iter=300, line_search_fn="strong_wolfe")

        def closure(layer: Any = layer, optimiser: Any = optimiser, penalty: float = penalty) -> torch.Tensor:
            optimiser.zero_grad()
            loss: Any = (
                nn.functional.cross_entropy(layer(features[0]), data[0][1]) + penalty * layer.weight.square().sum()
            )
            loss.backward()
            return loss

        optimiser.step(closure)
        scores = [float((layer(x).argmax(1) == y).double().mean()) for x, (_, y) in zip(features, data, strict=True)]
        if scores[1] > best["held out"]:
            best = {"setting": f"penalty {penalty:g}", "held out": scores[1], "test": scores[2]}
    return best


def adamw(task: Task, data: list[Data], rate: float, seed: int) -> Row:
    """Train all weights by AdamW; return the accuracy in the epoch that is best on held-out samples, and the last."""
    (x, y), held, tests = data
    model = task.build(seed).to(x.device)
    optimiser: Any = torch.optim.AdamW(model.parameters(), lr=rate)
    steps, rng = EPOCHS * math.ceil(len(y) / BATCH), torch.Generator().manual_seed(seed)
    schedule: Any = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    best: Row = {"held out": -1.0}
    scores = [0.0, 0.0]
    for epoch in range(EPOCHS):
        order = torch.randperm(len(y), generator=rng).to(x.device)
        for first in range(0, len(y), BATCH):
            chosen = order[first : first + BATCH]
            optimiser.zero_grad()
            loss: Any = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            loss.backward()
            optimiser.step()
            schedule.step()
        scores = [evaluate(task, model, part).accuracy or 0.0 for part in (held, tests)]
        if scores[0] > best["held out"]:
            best = {"setting": f"rate {rate:g}, epoch {epoch + 1}", "held out": scores[0], "test": scores[1]}
    return best | {"test, last epoch": scores[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--only", choices=["probe", "adamw"])
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="*", default=list(RATES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    rows: list[Row] = []
    for name in given.tasks:
        task = make(TASKS[name], given.data, "auto", given.model)
        data = parts(task, given.device)
        if given.only != "adamw":
            model: Any = task.build(0)
            rows.append({"task": name, "what": "linear probe", "seed": 0, **probe(model.to(given.device), data)})
        for seed in range(given.seeds if given.only != "probe" else 0):
            found = [adamw(task, data, rate, seed) for rate in given.rates]
            rows.append({"task": name, "what": "AdamW", "seed": seed, **max(found, key=lambda row: row["held out"])})
    keys = dict.fromkeys(key for row in rows for key in row)
    report("first_order", [{key: row.get(key, "") for key in keys} for row in rows], "python -m benchmarks.first_order")


if __name__ == "__main__":
    main()
