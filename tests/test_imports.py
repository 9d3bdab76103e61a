"""Importing the library changes nothing in the host process."""

import json
import os
import subprocess
import sys

SCRIPT = """
import importlib, json, logging, os, pkgutil, signal, sys, threading, warnings
import numpy, torch, typer

def load(*names):  # what other libraries do when they are imported is their own affair
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            pass

def state():
    root = logging.getLogger()
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "warnings": [str(each) for each in warnings.filters],
        "logging": [root.level, [repr(each) for each in root.handlers], logging.root.manager.disable],
        "signals": [repr(signal.getsignal(each)) for each in signal.valid_signals()],
        "hooks": [repr(each) for each in (sys.excepthook, sys.displayhook, threading.excepthook)],
        "threads": threading.active_count(),
        "recursion": sys.getrecursionlimit(),
        "numpy": [numpy.geterr(), repr(numpy.get_printoptions()), repr(numpy.random.get_state())],
        "torch": [
            torch.get_num_threads(), torch.get_num_interop_threads(), str(torch.get_default_dtype()),
            str(torch.get_default_device()), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic,
            torch.are_deterministic_algorithms_enabled(), torch.random.initial_seed(),
        ],
    }

left_out = set()

def changed(flower):  # by importing the Flower app or all else; and how many modules that are
    before, count = state(), 0
    import cyber0
    for module in pkgutil.walk_packages(cyber0.__path__, "cyber0."):
        if module.name.rpartition(".")[2].startswith("_") or module.name.startswith("cyber0.flower") != flower:
            continue  # __main__, and C extensions, which are loaded through ctypes
        try:
            importlib.import_module(module.name)
            count += 1
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] == "cyber0":
                raise
            left_out.add(error.name)
    after = state()
    return [key for key in before if before[key] != after[key]], count

load("transformers", "transformers.modeling_utils", "pandas", "matplotlib")
rest = changed(flower=False)
load("flwr.app", "flwr.clientapp", "flwr.serverapp")
print(json.dumps([*rest, *changed(flower=True), sorted(left_out)]))
"""


def play(script):
    """Run a script in a new process, with none of the variables that a library may have set in this one."""
    kept = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "SYSTEMROOT")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)


def test_importing_every_module_changes_nothing():
    """The Flower app apart: Flower itself sets variables when it is imported."""
    done = play(SCRIPT)
    assert done.returncode == 0, done.stderr
    changed, modules, changed_by_flower, modules_for_flower, left_out = json.loads(done.stdout.splitlines()[-1])
    assert changed == changed_by_flower == []
    assert set(left_out) <= {"triton", "flwr", "ray"}
    assert modules > 100
    assert modules_for_flower > 3


def test_a_federation_needs_no_grpc():
    done = play("import sys, cyber0.cli.serve, cyber0.cli.join; print('grpc' in sys.modules)")
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_deciding_a_round_of_numpy_votes_loads_no_module():
    """A federator stays as small as its imports: array-api-compat's NumPy is 11 MB, with f2py and unittest in it."""
    script = (
        "import sys, numpy as np; from cyber0.aggregation import get_rule; from cyber0.protocol.decide import *\n"
        "before, votes = set(sys.modules), np.ones((1, 5, 3), np.float32)\n"
        "assert admissible(votes).all()\n"
        "decide(get_rule('nnm+cwtm'), votes, 1)\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = play(script)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr
