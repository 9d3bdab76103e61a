"""The layer-wise walk on RoBERTa-large (random weights, bf16): what a round costs, in plain forwards of the same model.

    python -m benchmarks.layerwise [--only SECTION ...] [--small] [--out FOLDER]

A round: the slopes of all clients along a fresh direction, their votes on the host, the commit applied. Timed from end
to end, the host's work included; "device" is the same by the device's own clock. The candidates of a section take
turns in short blocks, since a GPU changes its clocks, and a ratio is the median of those within a block, against the
fastest of the plain forwards. Sections: round, clients, share, memory, scaling; plot draws anew what scaling kept.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import RESULTS, Row, machine
from benchmarks.references import (
    MU,
    OWN,
    RATE,
    ROBERTA_LARGE,
    ROBERTA_TINY,
    Batch,
    Times,
    Work,
    backpropagation,
    batches,
    captured,
    classifier,
    compared,
    copied,
    fastest,
    free,
    interleaved,
    kernels,
    launches,
    median,
    mezo,
    peak,
    plain,
    ratio,
    timed,
    twice,
)
from cyber0.commit import Commit
from cyber0.directions import DirectionKey, Family
from cyber0.layerwise import Walk
from cyber0.parameters import Parameters
from cyber0.tasks.task import cross_entropy
from cyber0.tasks.text.classifier import Classifier

COMMAND = "python -m benchmarks.layerwise"
KERNELS = ("_move", "_descend", "_pair", "_rows", "_fold", "_fill")  # how the names of ours begin
SEED = 1
ROUNDS = count()  # of all candidates together: no key comes twice
FORWARDS = "two plain forwards for each direction, ms"
OURS, MEZO, PUBLISHED = "ours: a round", "MeZO's step, in place", "MeZO's step, its own arithmetic"
SIGNS = f"{OURS}, rademacher"
COMPILED = "compiled: torch.compile, both as one batch"


@dataclass(frozen=True)
class Setting:
    """What is measured, where, and how long."""

    device: torch.device
    out: Path
    shape: dict[str, int]
    batch: int = 64
    length: int = 64
    clients: int = 12
    blocks: int = 7
    block: float = 0.15  # seconds
    axes: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("clients", (1, 2, 4, 8, 12, 24)),
        ("length", (32, 64, 128, 256)),
        ("directions", (1, 2, 4, 8)),
    )

    @cached_property
    def model(self) -> Classifier:
        return classifier(self.shape).to(self.device)

    @property
    def where(self) -> str:
        return "gpu" if self.device.type == "cuda" else "cpu"

    def copy(self, kind: str) -> Any:
        return copied(self.model, kind)

    def times(self, works: dict[str, Work], blocks: int | None = None) -> Times:
        return interleaved(works, blocks or self.blocks, self.block)

    def batches(self, clients: int = 1, length: int | None = None) -> list[Batch]:
        return batches(self.shape["vocab_size"], clients, self.batch, length or self.length, self.device)


def tiny(device: torch.device, out: Path) -> Setting:
    axes = (("clients", (1, 2, 3)), ("length", (8, 16)), ("directions", (1, 2)))
    return Setting(device, out, ROBERTA_TINY, batch=4, length=16, clients=3, blocks=3, block=0.01, axes=axes)


# What is timed


def a_round(
    walk: Any, parameters: Parameters, given: list[Batch], directions: int = 1, family: Family = "gaussian"
) -> Work:
    sizes = [np.full(y.shape, x.shape[-1]) for x, y in given]
    ready = [walk.batch(*given[0], sizes[0])]

    def work() -> None:
        number = next(ROUNDS)
        keys = [DirectionKey(SEED, number, index=index) for index in range(directions)]
        slopes = torch.stack([walk.along(ready[0], key, MU, family) for key in keys])
        ready[0] = walk.batch(*given[number % len(given)], sizes[number % len(given)])  # while the device is busy
        votes = slopes.cpu().numpy().mean(axis=1) / directions
        parameters.defer(Commit(SEED, number, RATE, votes[None], family))  # applied by the next walk

    return work


def walker(setting: Setting) -> tuple[Any, Parameters]:
    parameters = Parameters.of(setting.copy("masters"))
    walk: Any = Walk(parameters, cross_entropy, arithmetic=torch.bfloat16)
    a_round(walk, parameters, setting.batches())()
    assert walk.layered, "this would measure whole copies, not layers"
    return walk, parameters


def two_forwards(model: Any, given: list[Batch]) -> dict[str, Work]:
    """Over the same tokens as a round, by a model that is bf16 altogether: captured."""
    tokens = given[0][0].flatten(0, 1)
    return {
        "plain: transformers, twice the batch": captured(twice(plain(model, tokens)), tokens.device),
        "plain: transformers, both as one batch": captured(plain(model, torch.cat([tokens] * 2)), tokens.device),
    }


def compiled(model: Any, given: list[Batch]) -> dict[str, Work]:
    """Both forwards as one batch, by what torch.compile makes of transformers' code; captured."""
    tokens = given[0][0].flatten(0, 1)
    make: Any = vars(torch)["compile"]
    return {COMPILED: captured(make(plain(model, torch.cat([tokens] * 2))), tokens.device)}


def rounds(setting: Setting, walk: Any, parameters: Parameters, given: list[Batch]) -> dict[str, Work]:
    """With directions of both families; each has a model of its own, whose last commit the next walk applies."""
    other, its_parameters = walker(setting)
    return {
        OURS: a_round(walk, parameters, given),
        SIGNS: a_round(other, its_parameters, given, family="rademacher"),
    }


def own_forward(walk: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The walk's model, unperturbed; a round that came before may have left its commit pending."""
    walk.parameters.settle()
    return walk.unperturbed(tokens)


def own_forwards(walk: Any, given: list[Batch]) -> dict[str, Work]:
    """The same by the walk's model, whose vectors are float32."""
    tokens = given[0][0].flatten(0, 1)
    both = torch.cat([tokens, tokens])
    return {
        "plain: the walk's own, twice the batch": captured(twice(lambda: own_forward(walk, tokens)), tokens.device),
        "plain: the walk's own, both as one batch": captured(lambda: own_forward(walk, both), tokens.device),
    }


# Sections: rows, and the figures that have a goal

Result = tuple[list[Row], list[Row]]


def goal(what: str, measured: float, bound: float, *, at_most: bool) -> Row:
    met = measured <= bound if at_most else measured >= bound
    return {"what": what, "measured": measured, "goal": f"{'<=' if at_most else '>='} {bound}", "met": met}


def one_client(setting: Setting) -> Result:
    (walk, parameters), given = walker(setting), setting.batches()
    first = given[0][0][0], given[0][1][0]
    model = setting.copy("bfloat16")
    agreement(walk, model, first[0])
    times = setting.times(
        {
            **rounds(setting, walk, parameters, given),
            **two_forwards(model, given),
            **compiled(setting.copy("bfloat16"), given),
            **own_forwards(walk, given),
            MEZO: mezo(setting.copy("bfloat16"), first),
            PUBLISHED: mezo(setting.copy("bfloat16"), first, published=True),
        },
    )
    return compared(times), [
        goal("a round, in two captured forwards", ratio(times, OURS, fastest(times)), 1.12, at_most=True),
        goal("the same, rademacher", ratio(times, SIGNS, fastest(times)), 1.0, at_most=True),
        goal("the same, in compiled forwards", ratio(times, SIGNS, COMPILED), 1.1, at_most=True),
        goal("times faster than MeZO's step, in place", ratio(times, MEZO, OURS), 6.5, at_most=False),
        goal("times faster than MeZO's step, its own arithmetic", ratio(times, PUBLISHED, OURS), 6.5, at_most=False),
    ]


def agreement(walk: Any, model: Any, tokens: torch.Tensor) -> None:
    """That the forwards compared are forwards of the same model: their scores, in bf16."""
    with torch.no_grad():
        scores, own = plain(model, tokens)().float(), own_forward(walk, tokens).float()
    error = float((scores - own).abs().max() / scores.abs().max())
    print(f"  largest difference of the walk's scores from transformers', relative: {error:.2g}", flush=True)
    assert error < 0.3, error


def many_clients(setting: Setting) -> Result:
    (walk, parameters), given = walker(setting), setting.batches(setting.clients)
    model = setting.copy("bfloat16")
    works = {**two_forwards(model, given), **compiled(setting.copy("bfloat16"), given), **own_forwards(walk, given)}
    times = setting.times({**rounds(setting, walk, parameters, given), **works})
    what = f"{setting.clients} clients: throughput, in that of two plain forwards"
    return compared(times), [
        goal(what, ratio(times, fastest(times), OURS), 0.98, at_most=False),
        goal(f"{what}, rademacher", ratio(times, fastest(times), SIGNS), 1.15, at_most=False),
        goal("rademacher, in compiled forwards", ratio(times, SIGNS, COMPILED), 1.1, at_most=True),
    ]


def share(setting: Setting) -> Result:
    """The kernels that perturb and update, in the device's time of a round: of many clients, then of one."""
    walk, parameters = walker(setting)
    rows: list[Row] = []
    for clients in (setting.clients, 1):
        work = a_round(walk, parameters, setting.batches(clients))
        timed(work, 2)
        whole = statistics.median(timed(work, 5)[1] for _ in range(3)) * 1e3
        spent = kernels(launches(work, rounds=3), 3, KERNELS)
        rows += [{"clients": clients, "what": what, "ms a round": ms} for what, ms in spent.items()]
        rows.append({"clients": clients, "what": "the round, not profiled", "ms a round": whole})
    figures = {(row["clients"], row["what"]): row["ms a round"] for row in rows}
    measured = figures[setting.clients, OWN] / figures[setting.clients, "the round, not profiled"]
    what = f"{setting.clients} clients: perturb and update, in the device's time of a round"
    return rows, [goal(what, measured, 0.03, at_most=True)]


def scaling(setting: Setting) -> Result:
    """How a round grows with clients, length and directions, beside two forwards over the same tokens for each."""
    (walk, parameters), model = walker(setting), setting.copy("bfloat16")
    rows: list[Row] = []
    for axis, value in ((axis, value) for axis, values in setting.axes for value in values):
        at = {"clients": 1, "length": setting.length, "directions": 1, axis: value}
        given = setting.batches(at["clients"], at["length"])
        works = {OURS: a_round(walk, parameters, given, at["directions"]), **two_forwards(model, given)}
        times = setting.times(works, blocks=3)
        ours, forwards = (median(times, name) * 1e3 for name in (OURS, fastest(times)))
        row = {"axis": axis, "value": value, "ms a round": ours, FORWARDS: forwards * at["directions"]}
        show(row)
        rows.append(row)
    return rows, []


# Memory


def memory(setting: Setting) -> Result:
    """Each candidate alone on the device, with the weights it needs; what is there before is not counted."""
    _ = setting.model
    rows: list[Row] = []
    for kind, works in candidates(setting).items():
        left = free()
        model = setting.copy(kind)
        for name, make in works.items():
            free()
            rows.append({"what": name, **peak(lambda make=make, model=model: make(model), left), "left over": left})
            show(rows[-1])
        del model
    peaks = {row["what"]: row["peak GiB"] for row in rows}
    best = min((name for name in peaks if name.startswith("plain")), key=lambda name: peaks[name])
    for row in rows:
        row["times the leanest plain"] = row["peak GiB"] / peaks[best]
    what = "peak memory, bf16 masters, in that of two forwards as one batch"
    return rows, [goal(what, peaks[f"{OURS}, bf16 masters"] / peaks[best], 1.15, at_most=True)]


def candidates(setting: Setting) -> dict[str, dict[str, Callable[[Any], Work]]]:
    """By the kind of weights they stand on: how each is made of a model that is on the device."""
    given = setting.batches()
    first = given[0][0][0], given[0][1][0]
    both = torch.cat([first[0], first[0]])

    def ours(model: Any) -> Work:
        parameters = Parameters.of(model)
        return a_round(Walk(parameters, cross_entropy, arithmetic=torch.bfloat16), parameters, given)

    def unperturbed(model: Any) -> Work:
        walk: Any = Walk(Parameters.of(model), cross_entropy, arithmetic=torch.bfloat16)
        return captured(lambda: own_forward(walk, both), setting.device)

    return {
        "masters": {
            f"{OURS}, bf16 masters": ours,
            "plain: the walk's own, both as one batch, captured": unperturbed,
        },
        "bfloat16": {
            "plain: transformers, both as one batch, captured": lambda m: captured(plain(m, both), setting.device),
            "plain: transformers, both as one batch, eager": lambda m: torch.no_grad()(plain(m, both)),
            MEZO: lambda m: mezo(m, first),
            PUBLISHED: lambda m: mezo(m, first, published=True),
            "backpropagation, SGD, bf16": lambda m: backpropagation(m, first, "SGD"),
            "backpropagation, AdamW, bf16": lambda m: backpropagation(m, first, "AdamW"),
        },
        "float32": {
            f"{OURS}, float32 masters": ours,
            "backpropagation, AdamW, float32 masters, autocast": lambda m: backpropagation(
                m, first, "AdamW", autocast=True
            ),
        },
    }


# Results


def show(row: Row) -> None:
    shown = (f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items())
    print("  " + " | ".join(shown), flush=True)


def keep(setting: Setting, section: str, result: Result) -> None:
    rows, goals = result
    for row in [*rows, *goals] if section != "scaling" else goals:
        show(row)
    setting.out.mkdir(parents=True, exist_ok=True)
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    content = {"command": f"{COMMAND} --only {section}", "date": date, "machine": machine(), "rows": rows}
    file = setting.out / f"layerwise_{section}_{setting.where}.json"
    file.write_text(json.dumps({**content, "goals": goals}, indent=1) + "\n")


def plot(file: Path, forwards: str = "two plain forwards, captured") -> None:
    """A round's time over each axis of `scaling`; in grey two plain forwards over the same tokens."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("svg")
    plt: Any = import_module("matplotlib.pyplot")
    rows: list[Row] = json.loads(file.read_text())["rows"]
    figure, panels = plt.subplots(1, 3, figsize=(9, 2.8), constrained_layout=True)
    for panel, axis in zip(panels, dict.fromkeys(row["axis"] for row in rows), strict=True):
        here = [row for row in rows if row["axis"] == axis]
        x = [row["value"] for row in here]
        panel.plot(x, [row[FORWARDS] for row in here], "o-", color="0.7", markersize=3)
        panel.plot(x, [row["ms a round"] for row in here], "o-", color="#0b6e99", markersize=4)
        panel.set(xlabel=axis, xlim=(0, None), ylim=(0, None))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("milliseconds a round")
    panels[0].legend([forwards, "a round"], frameon=False, fontsize=8)
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})


def plot_all(setting: Setting) -> None:
    for file in sorted(setting.out.glob("layerwise_scaling_*.json")):
        try:
            plot(file)
        except ImportError as error:
            print(f"  {file} is not drawn ({error}): use --only plot where it is installed", flush=True)


SECTIONS: dict[str, Callable[[Setting], Result]] = {
    "round": one_client,
    "clients": many_clients,
    "share": share,
    "memory": memory,
    "scaling": scaling,
}
CUDA_ONLY = ("share", "memory")


def run(setting: Setting, section: str) -> None:
    print(f"{section} ({setting.where})", flush=True)
    begin = time.perf_counter()
    if section in CUDA_ONLY and setting.device.type != "cuda":
        return print("  needs a CUDA device: left out", flush=True)
    if section != "plot":
        keep(setting, section, SECTIONS[section](setting))
    if section in ("scaling", "plot"):
        plot_all(setting)
    return print(f"  {time.perf_counter() - begin:.1f} s", flush=True)


def run_all(setting: Setting, sections: Sequence[str]) -> list[str]:
    """The sections that failed: one that does leaves the others their turn on a machine that is dear."""
    failed: list[str] = []
    for section in sections:
        try:
            run(setting, section)
        except Exception:
            traceback.print_exc()
            failed.append(section)
        if setting.device.type == "cuda":
            free()
    return failed


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--only", nargs="+", choices=[*SECTIONS, "plot"], default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script out, on a CPU too")
    parser.add_argument("--out", type=Path, help="where results go: benchmarks/results, or a new folder for --small")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not options.small and options.only != ["plot"]:
        return print("benchmarks.layerwise needs a CUDA device; --small tries it out on a CPU")
    out = options.out or (Path(tempfile.mkdtemp()) if options.small else RESULTS)
    setting = tiny(device, out) if options.small else Setting(device, out, ROBERTA_LARGE)
    failed = run_all(setting, options.only)
    print(f"results in {out}", flush=True)
    return sys.exit(f"failed: {', '.join(failed)}") if failed else None


if __name__ == "__main__":
    main(sys.argv[1:])
