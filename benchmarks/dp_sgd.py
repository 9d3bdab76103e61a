"""A reference: one party that trains logistic regression on MNIST by DP-SGD, with Opacus.

    pip install opacus
    python -m benchmarks.dp_sgd DIR

DIR has the four files of MNIST. The same model, loss and preprocessing as the task `mnist`; one party holds all 60,000
samples, sees every gradient as a whole, and nobody lies. Batches of 2,560 samples, as many as 40 clients measure in a
round, and 400 steps.
"""

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import report
from cyber0.extras import require
from cyber0.tasks.task import mnist

STEPS, BATCH, DELTA, CLIP, RATE = 400, 2560, 1e-5, 10.0, 0.03


def accuracy(directory: str, epsilon: float | None) -> float:
    """Return the test accuracy after 400 steps, with a budget or without."""
    task = mnist(directory)
    data = task.dataset
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model: Any = task.build(0).train()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE)
    inputs, labels = torch.as_tensor(data.train_inputs), torch.as_tensor(data.train_labels)
    batches: Any = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH, shuffle=True)
    epochs = STEPS / len(batches)
    if epsilon is not None:
        engine = require("opacus", extra="privacy").PrivacyEngine(accountant="prv")
        model, optimizer, batches = engine.make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=batches,
            target_epsilon=epsilon,
            target_delta=DELTA,
            epochs=round(epochs),
            max_grad_norm=CLIP,
        )
    done = 0
    while done < STEPS:
        for x, y in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()  # pyright: ignore[reportUnknownMemberType]
            optimizer.step()
            done += 1
            if done == STEPS:
                break
    model.eval()
    with torch.no_grad():
        right = model(torch.as_tensor(data.test_inputs)).argmax(1) == torch.as_tensor(data.test_labels)
    return float(right.float().mean())


def main() -> None:
    directory = sys.argv[1]
    rows = [
        {"epsilon": "none" if epsilon is None else epsilon, "test accuracy": round(accuracy(directory, epsilon), 4)}
        for epsilon in (1.0, 2.0, 4.0, 8.0, None)
    ]
    report("dp_sgd", rows, "python -m benchmarks.dp_sgd DIR")


if __name__ == "__main__":
    main()
