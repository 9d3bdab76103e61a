"""Rebuild a trained model from its base and its commits: `model at round t = fold(apply, base, commits 1..t)`."""

from cyber0.replay.checkpoint import Checkpoint
from cyber0.replay.rebuild import base, begun, open_ledger, rebuild
from cyber0.replay.weights import Weights

__all__ = ["Checkpoint", "Weights", "base", "begun", "open_ledger", "rebuild"]
