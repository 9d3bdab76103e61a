"""Full MNIST, alpha = 0.1, five seeds: our maximum accuracies beside the paper's Table 1.

    python -m benchmarks.mnist --data DIR [--seeds 5] [--jobs 2] [--local-epochs 1] [--search line]

The paper fixes neither K nor the details of the omega search; every row says which were used.
"""

import argparse
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks.measure import Row, report

TABLE = {  # of cyber0, the columns of the paper's Table 1
    "cwtm": {"alie": 87.4, "foe": 69.9, "sf": 71.2, "lf": 87.6},
    "nnm+cwtm": {"alie": 90.3, "alie-nnm": 88.9, "foe": 74.0, "foe-nnm": 58.9, "sf": 59.2, "lf": 90.1},
    "krum": {"alie": 65.1, "foe": 34.7, "sf": 44.1, "lf": 66.3},
    "nnm+krum": {"alie": 90.6, "alie-nnm": 89.9, "foe": 70.4, "foe-nnm": 56.9, "sf": 58.2, "lf": 87.1},
}
PAPER: dict[tuple[str, str, str], float | None] = {
    **{("cyber0", rule, attack): value for rule, cells in TABLE.items() for attack, value in cells.items()},
    ("fedavg", "mean", "none"): 91.0,
    ("cyber0", "mean", "none"): None,
}


def play(options: dict[str, Any]) -> float:
    import torch

    torch.set_num_threads(1)
    from cyber0.config import RunConfig
    from cyber0.simulation.run import run

    return 100 * run(RunConfig(**options))["max_accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--local-epochs", type=int, default=1)
    parser.add_argument("--search", default="line")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    grid: list[tuple[tuple[str, str, str], dict[str, Any]]] = []
    for algorithm, rule, attack in PAPER:
        searched = attack.startswith(("alie", "foe"))
        strong = f"{attack}(search={args.search!r})" if searched else attack
        base = {"algorithm": algorithm, "rule": rule, "attack": strong, "data": args.data, "source": "mnist"}
        extra = {"local_epochs": args.local_epochs, "byzantine": 0 if attack == "none" else 10}
        cells = [{**base, **extra, "seed": seed} for seed in range(args.seeds)]
        grid += [((algorithm, rule, attack), cell) for cell in cells]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(play, [cell for _, cell in grid]))
    rows: list[Row] = []
    for cell, paper in PAPER.items():
        values = [value for (key, _), value in zip(grid, found, strict=True) if key == cell]
        mean = statistics.mean(values)
        rows.append(
            {
                **dict(zip(("algorithm", "rule", "attack"), cell, strict=True)),
                "local epochs": args.local_epochs,
                "search": args.search,
                "ours": round(mean, 1),
                "s.d.": round(statistics.stdev(values), 1) if len(values) > 1 else "-",
                "paper": "-" if paper is None else paper,
                "difference": "-" if paper is None else round(mean - paper, 1),
            }
        )
    errors = [row["difference"] for row in rows if row["algorithm"] == "cyber0" and row["paper"] != "-"]
    print(f"RMSE over {len(errors)} cells: {statistics.fmean(e * e for e in errors) ** 0.5:.1f} points")
    command = f"python -m benchmarks.mnist --data DIR --seeds {args.seeds} --local-epochs {args.local_epochs}"
    report(f"mnist_K{args.local_epochs}_{args.search}", rows, f"{command} --search {args.search}")


if __name__ == "__main__":
    main()
