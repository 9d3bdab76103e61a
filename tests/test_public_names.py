"""The public names are a short list, kept by hand; each one says what it does, with an example that runs."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import cyber0

PUBLIC = {
    "cyber0": ["__version__"],
    "cyber0.commit": ["Commit"],
    "cyber0.directions": [
        "BACKENDS",
        "COMPRESSED_EPOCH",
        "FAMILIES",
        "Backend",
        "Cpu",
        "DirectionKey",
        "Family",
        "combine",
        "descend",
        "fingerprint",
        "matrix",
        "perturb",
        "perturb_both",
        "project",
        "sample",
    ],
    "cyber0.estimate": ["Losses", "Method", "estimate", "full_precision"],
    "cyber0.parameters": ["Entry", "Manifest", "Parameters", "to_bf16"],
    "cyber0.aggregation": [
        "PREAGGREGATIONS",
        "RULES",
        "Composition",
        "Rule",
        "bucketing",
        "bulyan",
        "centered_clipping",
        "clip",
        "compose",
        "cwtm",
        "find",
        "geometric_median",
        "krum",
        "meamed",
        "mean",
        "median",
        "minimum_diameter",
        "multikrum",
        "nnm",
    ],
    "cyber0.attacks": [
        "ATTACKS",
        "Attack",
        "alie",
        "alie_nnm",
        "find",
        "foe",
        "foe_nnm",
        "lf",
        "mimic",
        "min_max",
        "min_sum",
        "mount",
        "noise",
        "none",
        "nonfinite",
        "sf",
        "tma",
        "zero",
    ],
    "cyber0.client": ["Client"],
    "cyber0.config": ["RunConfig", "load", "merged"],
    "cyber0.plan": ["SCHEMES", "Plan", "Scale", "Scheme"],
    "cyber0.simulation": ["Round", "Simulation"],
    "cyber0.tasks.batches": ["batch_indices", "batches", "positions"],
    "cyber0.tasks.dataset": ["Dataset"],
    "cyber0.tasks.mnist": ["FILES", "MIRRORS", "SOURCES", "Source", "embedded", "load"],
    "cyber0.tasks.partition": ["PARTITIONS", "Partition", "count", "dirichlet", "find", "iid", "shards", "split"],
    "cyber0.tasks.task": ["TASKS", "Task", "cross_entropy", "evaluate", "find", "mnist", "mnist_cnn", "mnist_mlp"],
    "cyber0.testing": ["WorstCase", "check_rule", "inputs", "measured_kappa", "worst_case"],
    "cyber0.theory": [
        "Bound",
        "Constants",
        "distortion",
        "largest_lr",
        "least_directions",
        "proven_kappa",
        "theorem_2",
    ],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_exported_names(module):
    assert importlib.import_module(module).__all__ == PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_example(module):
    loaded = importlib.import_module(module)
    for name in PUBLIC[module]:
        value = getattr(loaded, name)
        if not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        if value.__module__.startswith("cyber0") and not getattr(value, "_is_protocol", False):
            assert doctest.DocTestParser().get_examples(value.__doc__ or ""), f"{module}.{name} shows no example"


def test_every_module_says_what_it_is():
    for module in pkgutil.walk_packages(cyber0.__path__, "cyber0."):
        if not module.name.endswith(("._stream", "._rows", ".kernels")):
            assert importlib.import_module(module.name).__doc__, module.name
