"""`cyber0 demo`: a federation in one process, on real digits, and its model rebuilt from the commits alone."""

from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from cyber0.commit import Commit
from cyber0.directions import DirectionKey
from cyber0.extras import require
from cyber0.tasks import mnist

__all__ = ["demo"]

SEED, LEARNING_RATE, DIRECTIONS, BATCH = 7, 0.01, 64, 64


def demo(
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds to train.")] = 150,
    clients: Annotated[int, typer.Option(min=1, help="How many clients measure in each round.")] = 8,
) -> None:
    """Train logistic regression on embedded MNIST images with 64 numbers per client and round."""
    torch = require("torch", extra="train")
    from cyber0.estimate import estimate
    from cyber0.parameters import Parameters

    console = Console()
    images, labels = mnist.embedded()
    order = np.random.default_rng(SEED).permutation(len(labels))
    test, train = order[:1000], np.array_split(order[1000:], clients)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    model = torch.nn.Linear(784, 10)
    parameters = Parameters.of(model)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)

    def losses(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(x[batch]), y[batch], reduction="none")

    commits: list[Commit] = []
    for t in track(range(rounds), f"{clients} clients, {DIRECTIONS} directions", console=console):
        keys = [DirectionKey(SEED, t, index=r) for r in range(DIRECTIONS)]
        votes = [
            estimate(
                parameters,
                losses,
                np.random.default_rng((SEED, client, t)).choice(train[client], BATCH),
                keys,
            )
            for client in range(clients)
        ]
        commits.append(Commit(SEED, t, LEARNING_RATE, [np.mean(votes, axis=0)], family="sphere"))
        parameters.apply(commits[-1])

    with torch.no_grad():
        accuracy = (model(x[test]).argmax(1) == y[test]).double().mean().item()
    replayed = Parameters({entry.name: np.zeros(entry.shape, np.float32) for entry, _ in parameters})
    for commit in commits:
        replayed.apply(commit, backend="numpy")
    sent = rounds * DIRECTIONS * 4
    console.print(f"accuracy on {len(test)} unseen digits      {accuracy:.1%}")
    console.print(
        f"sent by each client              {sent / 1e3:,.1f} kB (exchanging weights: {rounds * 31.4:,.0f} kB)"
    )
    console.print(f"the trained model                {parameters.fingerprint():016x}")
    console.print(f"rebuilt from the commits alone   {replayed.fingerprint():016x}")
    if replayed.fingerprint() != parameters.fingerprint():
        raise typer.Exit(1)
