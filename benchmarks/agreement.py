"""How far honest clients agree on a direction, and what a rule leaves of the gradient under attack.

    python -m benchmarks.agreement --model minilm --data DATA

A vote along a random direction is the product of a client's gradient with it, so all votes follow from the products of
the clients' gradients with each other: no direction is drawn in the space of the weights. Here MiniLM, as in the study
`minilm-calibrated` (12 clients, embeddings of words not trained), follows the mean of all clients' gradients for a
while (time is the sum of the rates); then the votes of 12 clients, the last three of whom lie, are drawn many times.

- `gradient`: the square of the length of the mean gradient, E[m^2] of the mean vote m.
- `clients`: how much clients differ from it, on all their samples, E[(vote - m)^2]; `sample`: the variance of a single
  sample's slope within a client, of which a batch of B adds up to 1 / B to a vote.
- `kept`, by rule and attack: E[c m] / E[m^2] for what the rule makes of the votes, c. A step of plain descent gets on
  so much of the way that it would without liars and noise, and where it is negative, liars turn the model back.
- `walk`: E[c^2] / E[m^2], how far the model is moved along directions, of which only m helps.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.measure import Row, report
from cyber0.aggregation import get_rule
from cyber0.attacks.run import AttackRun
from cyber0.tasks.calibration import calibrated, with_shares
from cyber0.tasks.partition import dirichlet
from cyber0.tasks.task import Task, make
from cyber0.tasks.text.tokens import PAD, trimmed
from cyber0.tasks.trained import choose

TASKS: dict[str, tuple[float, ...] | None] = {"sst2": None, "trec": (512, 512, 86, 512, 512, 512)}
CLIENTS, LIARS, ALPHA, SEED = 12, 3, 1.0, 0
RULES = ("cwtm", "median", "meamed", "minimum_diameter", "nnm+cwtm")
ATTACKS = ("none", "foe(search='zoom')", "alie(search='zoom')", "sf")
TOKENS, GROUPS, DRAWS = 12_000, 8, 1_000

Array = NDArray[Any]


class Clients:
    """A model, and the samples of all clients."""

    def __init__(self, task: Task, shares: Sequence[float] | None, objective: str, device: str) -> None:
        data, rng = task.dataset, np.random.default_rng(SEED)
        self.model: Any = task.build(SEED).to(device)
        choose(self.model, "all-embeddings")
        self.weights = [each for each in self.model.parameters() if each.requires_grad]
        self.held = dirichlet(data.train_labels, CLIENTS, SEED, alpha=ALPHA)
        agreed = None if shares is None else tuple(each / sum(shares) for each in shares)
        targets = np.zeros((len(data.train_labels), 1 + (data.classes or 0)), dtype=np.float32)
        for own in self.held:
            targets[own] = with_shares(data.train_labels[own], data.classes or 0, agreed)
        targets[:, 1:] *= objective == "calibrated"
        self.inputs, self.targets, self.device = data.train_inputs, targets, device
        self.groups = [  # of each client, parts whose gradients tell how samples differ
            (client, part)
            for client, own in enumerate(self.held)
            for part in np.array_split(rng.permutation(own), min(GROUPS, len(own)))
        ]

    def gradient(self, chosen: Array, factors: Array) -> torch.Tensor:
        """The gradient of the sum of these samples' losses, each times its factor."""
        for weight in self.weights:
            weight.grad = None
        sizes = (self.inputs[chosen] != PAD).sum(1)
        order = np.argsort(sizes, kind="stable")
        for part in np.array_split(order, -(-int(len(order) * sizes.max()) // TOKENS)):
            rows = chosen[part]
            tokens = trimmed(torch.as_tensor(self.inputs[rows])).to(self.device)
            labels = torch.as_tensor(self.targets[rows]).to(self.device)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                losses: Any = calibrated(self.model, (tokens, labels))
            (losses.float() @ torch.as_tensor(factors[part].astype(np.float32)).to(self.device)).backward()
        return torch.cat([weight.grad.flatten() for weight in self.weights if weight.grad is not None])

    def descend(self, time: float, rate: float) -> None:
        """Follow the mean of the clients' gradients."""
        chosen = np.concatenate(self.held)
        factors = np.concatenate([np.full(len(own), 1 / (CLIENTS * len(own))) for own in self.held])
        for _ in range(round(time / rate)):
            flat = self.gradient(chosen, factors)
            with torch.no_grad():
                nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(self.weights) - rate * flat, self.weights)

    def products(self) -> tuple[Array, Array]:
        """The products of the clients' gradients, [clients, clients], and the variance of a sample's, [clients]."""
        size = sum(weight.numel() for weight in self.weights)
        means = torch.zeros(CLIENTS, size, device=self.device)
        squares, counts = np.zeros(CLIENTS), np.bincount([client for client, _ in self.groups])
        for client, part in self.groups:
            flat = self.gradient(part, np.full(len(part), 1 / len(part)))
            means[client] += flat * (len(part) / len(self.held[client]))
            squares[client] += len(part) * flat.square().sum().item()
        found: Array = (means @ means.T).double().cpu().numpy()
        held = np.array([len(own) for own in self.held])
        return found, (squares - held * np.diag(found)) / np.maximum(counts - 1, 1)


def rows_of(products: Array, variances: Array, held: Array, batches: Sequence[int], about: Row) -> list[Row]:
    """What each rule makes of votes with these products, under each attack."""
    values, vectors = np.linalg.eigh(products)
    rng = np.random.default_rng(SEED)
    whole = rng.standard_normal((DRAWS, CLIENTS)) @ (vectors * np.sqrt(values.clip(0))).T
    mean: Array = whole.mean(1)
    length = float(np.mean(mean**2))
    spread = {"gradient": products.mean(), "clients": np.trace(products) / CLIENTS - products.mean()}
    rows: list[Row] = []
    for batch in batches:
        noise = variances * np.where(held > batch, 1 - batch / held, 1.0) / batch if batch else np.zeros(CLIENTS)
        votes = (whole + rng.standard_normal(whole.shape) * np.sqrt(noise.clip(0)))[..., None]
        for name in RULES:
            rule = get_rule(name)
            row: Row = {**about, **spread, "sample": variances.mean(), "batch": batch or "all", "rule": name}
            for attack in ATTACKS:
                sent = AttackRun(attack, seed=SEED).mount(
                    votes.copy(), list(range(CLIENTS - LIARS, CLIENTS)), rule, LIARS, round=0
                )
                combined: Array = np.asarray(rule(sent, LIARS))[:, 0]
                short = attack.partition("(")[0]
                row[f"{short} kept"] = float(np.mean(combined * mean)) / length
                row[f"{short} walk"] = float(np.mean(combined**2)) / length
            rows.append({key: round(float(v), 3) if isinstance(v, float) else v for key, v in row.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--objectives", nargs="*", default=["plain", "calibrated"])
    parser.add_argument("--scale", type=float, default=20, help="what logits are multiplied by")
    parser.add_argument("--times", type=float, nargs="*", default=[0.6])
    parser.add_argument("--rate", type=float, default=0.008)
    parser.add_argument("--batches", type=int, nargs="*", default=[0, 64])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    rows: list[Row] = []
    for name in given.tasks:
        task = make(f"{name}(scale={given.scale:g})", given.data, "auto", given.model)
        for objective in given.objectives:
            clients, now = Clients(task, TASKS[name], objective, given.device), 0.0
            held = np.array([len(own) for own in clients.held])
            for time in given.times:
                clients.descend(time - now, given.rate)
                now = time
                about: Row = {"task": name, "objective": objective, "scale": given.scale, "time": time}
                rows += rows_of(*clients.products(), held, given.batches, about)
                print(rows[-1], flush=True)
    report("agreement", rows, "python -m benchmarks.agreement --model minilm --data DATA")


if __name__ == "__main__":
    main()
