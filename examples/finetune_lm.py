"""Fine-tune a language model among liars, share it as a small file, rebuild it: python examples/finetune_lm.py.

For real: python examples/finetune_lm.py --model roberta-large --task sst2 --data DIR --lr 1e-6 --rounds 20000.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import cyber0
from cyber0.parameters import Parameters
from cyber0.protocol import export
from cyber0.protocol.ledger import Memory
from cyber0.replay import rebuild
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

task = cyber0.get_task(given.task)(data, model=model)  # the model, the prompts, the data
chosen = {key: getattr(given, key) for key in ("task", "attack", "rounds", "lr")}
config = cyber0.RunConfig(
    clients=12, byzantine=3, rule="cwtm", alpha=1.0, family="gaussian", directions=1, batch=64, model=model, **chosen
).updated(evaluate_every=max(1, given.rounds // 10))


class Report(cyber0.Callback):
    """Prints each evaluation."""

    def after_evaluation(self, run: Any, evaluation: Any) -> None:  # noqa: ARG002
        """Print one."""
        print(f"round {evaluation['round']:,}: {evaluation['accuracy']:.1%}, loss {evaluation['loss']:.4f}")


result = cyber0.run(config, task=task, callbacks=[Report])
print(f"{sum(weights.numel() for weights in result.model.parameters()):,} weights, {task.dataset}")
print(f"each client has sent {result.summary['bytes_up_per_client']:,.0f} bytes, and received as many")

result.save(given.out)
print(f"the whole run is {given.out.stat().st_size:,} bytes: {given.out}")

shared = Memory()  # anyone who has this file and the base weights
shared.adopt(export.read(given.out))
again = rebuild(shared, Parameters.of(task.build(config.seed)))
assert f"{again:016x}" == result.fingerprint
print(f"rebuilt from it: the same weights, {again:016x}")
