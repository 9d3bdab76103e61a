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
    "cyber0.estimate": ["Losses", "Method", "estimate", "full_precision", "refuse_random"],
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
    "cyber0.client": ["Client", "projected"],
    "cyber0.config": ["RunConfig", "load", "merged", "sentences"],
    "cyber0.plan": ["SCHEMES", "Plan", "Scale", "Scheme"],
    "cyber0.simulation": ["Round", "Simulation"],
    "cyber0.tasks.batches": ["batch_indices", "batches", "participants", "positions"],
    "cyber0.tasks.dataset": ["Dataset"],
    "cyber0.tasks.mnist": ["FILES", "MIRRORS", "SOURCES", "Source", "embedded", "load"],
    "cyber0.tasks.partition": ["PARTITIONS", "Partition", "count", "dirichlet", "find", "iid", "shards", "split"],
    "cyber0.tasks.task": [
        "TASKS",
        "Task",
        "cross_entropy",
        "evaluate",
        "find",
        "make",
        "mnist",
        "mnist_cnn",
        "mnist_mlp",
    ],
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
    "cyber0.files": ["held", "locked", "write_whole"],
    "cyber0.layerwise": ["Batch", "Measure", "Precision", "Walk", "Walking", "is_walked", "measure_of", "prepared"],
    "cyber0.layerwise.attention": ["fast"],
    "cyber0.layerwise.measure": ["Measure", "Precision", "Walking", "called", "is_walked", "measure_of", "prepared"],
    "cyber0.layerwise.modules": ["Both", "Handler", "handlers", "linear"],
    "cyber0.layerwise.parts": ["cuts", "pinned", "rounded", "upload"],
    "cyber0.layerwise.plain": ["in_arithmetic", "run", "shaped"],
    "cyber0.layerwise.source": ["Aim", "Layout", "Portable", "Source", "Still", "aimed", "normed"],
    "cyber0.layerwise.walk": ["Batch", "Walk"],
    "cyber0.replay.fit": ["fitted", "lacking"],
    "cyber0.replay.paths": ["by_name", "whole_paths"],
    "cyber0.simulation.export": ["Record", "from_folder", "recorded", "renamed", "shared"],
    "cyber0.simulation.ensemble": ["Ensemble", "shape_of"],
    "cyber0.simulation.run": ["Minutes", "run"],
    "cyber0.study.recipe": ["Cell", "Figure", "Labels", "Pattern", "Recipe", "Table", "find", "shipped"],
    "cyber0.study.results": ["Failure", "Results"],
    "cyber0.study.work": ["Batch", "Job", "Outcome", "batches", "on_cuda", "play", "workers_for"],
    "cyber0.study.folder": ["StudyFolder"],
    "cyber0.study.study": ["Watch", "jobs_of", "study"],
    "cyber0.study.report": ["render", "write"],
    "cyber0.study.statistics": [
        "CONFIDENCE",
        "PAPER_SEEDS",
        "Agreement",
        "Difference",
        "Measured",
        "Run",
        "Sample",
        "agreement",
        "difference",
        "measure",
        "rank",
        "runs",
    ],
    "cyber0.study.claims": ["CLAIMS", "Claim", "Evidence", "Outcome", "Verdict", "judge"],
    "cyber0.protocol.records": ["Ballot", "Decision", "Verdict", "from_wire", "to_wire"],
    "cyber0.protocol.messages": [
        "VERSION",
        "Ask",
        "Bye",
        "CatchUp",
        "Committed",
        "Done",
        "Evaluation",
        "FromClient",
        "FromFederator",
        "Hello",
        "Invitation",
        "Rejection",
        "RoundOpen",
        "Vote",
        "Welcome",
    ],
    "cyber0.protocol.codec": ["catch_up", "decode_from_client", "decode_from_federator", "encode", "size_limit"],
    "cyber0.protocol.decide": ["admissible", "as_scalars", "decide", "quorum"],
    "cyber0.protocol.terms": ["Terms"],
    "cyber0.protocol.events": [
        "Alarm",
        "Arrived",
        "Deadline",
        "Effect",
        "Evaluated",
        "Event",
        "Found",
        "HangUp",
        "Left",
        "Link",
        "Notice",
        "Received",
        "Record",
        "Replay",
        "Send",
    ],
    "cyber0.protocol.machine": ["Founded", "State", "begin", "resume", "step"],
    "cyber0.protocol.identity": ["PROTOCOL", "Identity", "base_digest", "layout_bytes", "layout_from"],
    "cyber0.protocol.chain": ["Head", "Seal", "advance", "commit_hash", "commit_hashes", "genesis", "votes_hash"],
    "cyber0.protocol.ledger": ["History", "Ledger", "Memory", "Written"],
    "cyber0.protocol.sqlite": ["File"],
    "cyber0.protocol.export": ["from_bytes", "history", "read", "to_bytes", "write"],
    "cyber0.protocol.signing": ["is_signed", "private_key", "public_key", "signed"],
    "cyber0.protocol.verify": ["Report", "verify"],
    "cyber0.replay": ["Weights", "base", "opened", "rebuild"],
    "cyber0.tasks.text.tasks": ["Options", "assemble", "snli", "sst2", "text_classification", "trec"],
    "cyber0.tasks.text.tokens": ["PAD", "buckets", "encode", "lengths", "padded", "trimmed", "word_tokens"],
    "cyber0.tasks.text.heads": ["Head", "LabelRows", "restrict"],
    "cyber0.tasks.text.classifier": ["Classifier"],
    "cyber0.tasks.text.export": ["export", "load_weights"],
    "cyber0.tasks.text.adapters": ["ADAPTERS", "find", "lora", "merged"],
    "cyber0.tasks.text.prompts": ["FILTERS", "Files", "Kind", "Piece", "Prompt", "load", "pieces"],
    "cyber0.tasks.text.rows": ["Rows", "few", "gathered", "locate", "read", "split"],
    "cyber0.tasks.text.hub": ["gather", "reached", "read"],
    "cyber0.tasks.text.checkpoint": ["Checkpoint", "find"],
    "cyber0.tasks.text.memory": [
        "Need",
        "available",
        "check",
        "check_run",
        "check_training",
        "held",
        "needed",
        "of_module",
        "of_run",
        "readable",
    ],
    "cyber0.tasks.text.report": ["describe"],
    "cyber0.network.keys": [
        "certificate",
        "channel_credentials",
        "check_host",
        "check_name",
        "client_name",
        "federator_key",
        "init",
        "issue",
        "peer_name",
        "server_credentials",
    ],
    "cyber0.network.tokens": ["Passing", "Tokens", "passing", "token_credentials"],
    "cyber0.network.handshake": ["refusal"],
    "cyber0.network.liars": ["LIES", "Liar"],
    "cyber0.network.member": ["Member", "Model"],
    "cyber0.network.model": ["Trained"],
    "cyber0.network.server": ["Federator"],
    "cyber0.network.session": ["Outcome", "attend", "run_client"],
    "cyber0.network.setup": ["Setup"],
    "cyber0.network.store": ["Kept", "Store"],
    "cyber0.network.thin": ["Thin"],
    "cyber0.flower": ["client_app", "server_app"],
    "cyber0.flower.template": ["new"],
}
ON_CUDA = {  # their examples are tests/test_cuda.py and tests/layerwise/test_cuda.py
    "cyber0.directions.kernels": ["Triton", "table"],
    "cyber0.directions.tensors": ["Tensors", "descend_all", "descended", "gather", "load", "pair_all", "store"],
    "cyber0.layerwise.cuda": ["Cuda"],
    "cyber0.layerwise.graphs": ["Graphs", "is_out_of_memory"],
    "cyber0.layerwise.kernels": ["norm", "rows"],
    "cyber0.layerwise.short": ["LONGEST", "attention", "suits"],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_exported_names(module):
    assert importlib.import_module(module).__all__ == PUBLIC[module]


@pytest.mark.parametrize("module", ON_CUDA)
def test_exported_names_of_what_runs_on_cuda(module):
    pytest.importorskip("triton")
    assert importlib.import_module(module).__all__ == ON_CUDA[module]


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
        if module.name not in ON_CUDA and not module.name.endswith(("._stream", "._rows")):
            assert importlib.import_module(module.name).__doc__, module.name
