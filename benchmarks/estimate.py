"""What an estimate costs, in forward passes of the same model: two points, forward mode, backward mode.

This is where `method="auto"` comes from: one backward pass is the cheaper, even for one direction.
"""

from typing import Any

import torch
from torch import nn

from benchmarks.measure import Row, cuda_seconds, report, seconds
from cyber0.directions import DirectionKey
from cyber0.estimate import estimate
from cyber0.parameters import Parameters

COMMAND = "python -m benchmarks.estimate"


class Block(nn.Module):
    """A transformer layer, without dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.first(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def losses(model: Any, batch: Any) -> torch.Tensor:
    return model(batch).square().flatten(1).mean(1)


def rows() -> list[Row]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, layers = (1024, 24) if device == "cuda" else (256, 4)
    timer = cuda_seconds if device == "cuda" else seconds
    cases: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "logistic regression, batch 64": (nn.Linear(784, 10), torch.randn(64, 784)),
        f"transformer {layers} x {width}, batch 16 x 32": (
            nn.Sequential(*(Block(width) for _ in range(layers))),
            torch.randn(16, 32, width),
        ),
    }
    out: list[Row] = []
    for name, (model, batch) in cases.items():
        parameters = Parameters.of(model.to(device).eval())
        batch = batch.to(device)

        def forward(model: nn.Module = model, batch: torch.Tensor = batch) -> torch.Tensor:
            with torch.no_grad():
                return losses(model, batch)

        for directions in (1, 2, 8):
            keys = [DirectionKey(1, 0, index=index) for index in range(directions)]

            def run(mu: float, method: Any, keys: Any = keys, parameters: Any = parameters, batch: Any = batch) -> Any:
                return estimate(parameters, losses, batch, keys, mu=mu, method=method, family="gaussian")

            one, two_point, forward_mode, backward = timer(
                forward, lambda: run(1e-3, "auto"), lambda: run(0, "forward"), lambda: run(0, "backward"), repeats=7
            )
            out.append(
                {
                    "model": name,
                    "directions": directions,
                    "forward pass, ms": one * 1e3,
                    "two points": two_point / one,
                    "forward mode": forward_mode / one,
                    "backward mode": backward / one,
                }
            )
    return out


def main() -> None:
    report("estimate_gpu" if torch.cuda.is_available() else "estimate_cpu", rows(), COMMAND)


if __name__ == "__main__":
    main()
