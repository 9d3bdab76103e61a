"""Fine-tune a language model among liars, share it as a small file, rebuild it: python examples/finetune_lm.py.

For real: python examples/finetune_lm.py --model roberta-large --task sst2 --data DIR --lr 1e-6 --rounds 20000.
"""

import argparse
import tempfile
from pathlib import Path

from cyber0.config import RunConfig
from cyber0.parameters import Parameters
from cyber0.protocol import export
from cyber0.protocol.ledger import Memory
from cyber0.replay import rebuild
from cyber0.simulation import Simulation
from cyber0.simulation.export import Record
from cyber0.tasks.task import make
from cyber0.tasks.text import tiny

options = argparse.ArgumentParser(description="12 clients, of which 3 lie, send one number per round each.")
options.add_argument("--model", help="a folder or a hub id; unless given a tiny one with random weights")
options.add_argument("--task", default="text-classification(prompt='prompt.toml', scale=20)", help="e.g. sst2, trec")
options.add_argument("--data", type=Path, help="the folder of the data files")
options.add_argument("--attack", default="sf", help="what the liars do: none, alie, foe, sf, tma")
options.add_argument("--rounds", type=int, default=300)
options.add_argument("--lr", type=float, default=2e-4)
options.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp()) / "run.cyber0")
given = options.parse_args()
data = given.data if given.model else tiny.data(tempfile.mkdtemp())
model = given.model or str(tiny.model(Path(tempfile.mkdtemp()) / "tiny", "encoder"))

task = make(given.task, data, model=model)  # the model, the prompts, the data
chosen = {key: getattr(given, key) for key in ("task", "attack", "rounds", "lr")}
config = RunConfig(
    clients=12, byzantine=3, rule="cwtm", alpha=1.0, family="gaussian", directions=1, batch=64, model=model, **chosen
)
simulation = Simulation(config, task)
record = Record(simulation)
print(f"{simulation.parameters.size:,} weights, {task.dataset}")
found = simulation.evaluate()
print(f"round 0: {found.accuracy:.1%}, loss {found.loss:.4f}")
for played in simulation.play():
    record.add(played)
    if simulation.rounds % max(1, config.rounds // 10) == 0:
        found = simulation.evaluate()
        print(f"round {simulation.rounds:,}: {found.accuracy:.1%}, loss {found.loss:.4f}")
print(f"each client has sent {4 * config.plan.scalars * config.rounds:,} bytes, and received as many")

size = export.write(given.out, record.history())
print(f"the whole run is {size:,} bytes: {given.out}")

shared = Memory()  # anyone who has this file and the base weights
shared.adopt(export.read(given.out))
again = rebuild(shared, Parameters.of(task.build(config.seed)))
assert again == simulation.parameters.fingerprint()
print(f"rebuilt from it: the same weights, {again:016x}")
