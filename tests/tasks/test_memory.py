"""Batches that do not fit into memory are refused before anything is drawn."""

import numpy as np
import pytest
import torch

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig
from cyber0.network.local_model import LocalModel
from cyber0.simulation import Simulation
from cyber0.tasks import memory
from cyber0.tasks.dataset import Dataset

X, Y = np.zeros((8, 100), dtype=np.float32), np.arange(8) % 2
DATA = Dataset(X, Y, X, Y, classes=2, source="a test")
LINEAR = torch.nn.Linear(100, 2)
WIDE = torch.nn.Sequential(torch.nn.Linear(100, 5000), torch.nn.ReLU(), torch.nn.Linear(5000, 2))


def fits(monkeypatch, free, model=LINEAR, device="cpu", **options):
    monkeypatch.setattr(memory, "available", lambda where: free if str(where) == device else 10**12)
    config = RunConfig(**{"clients": 10, "byzantine": 1, "batch": 1000, "directions": 4, **options})
    try:
        memory.check_batches(model, config, DATA, device)
    except InvalidConfig:
        return False
    return True


@pytest.mark.parametrize("batch", [10**9, 2**40])
def test_a_huge_batch_is_refused_by_what_it_needs(batch):
    said = (
        rf"batch = {batch:,} of 40 clients needs [\d,.]+ GiB for a local step, and [\d,.]+ GiB are free on cpu: use a "
    )
    with pytest.raises(InvalidConfig, match=said + "smaller batch, fewer clients, or another machine"):
        Simulation(RunConfig(source="embedded", batch=batch))


def test_one_client_after_the_other_is_proposed_where_that_fits(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda _: 10 * 1000 * 100)
    with pytest.raises(InvalidConfig, match="fewer clients, engine = 'sequential', or another machine"):
        memory.check_batches(LINEAR, RunConfig(clients=10, byzantine=1, batch=1000), DATA)


def test_a_client_alone_is_told_too():
    with pytest.raises(InvalidConfig, match=r"batch = 100,000,000 of 1 clients needs .* use a smaller batch"):
        LocalModel(RunConfig(source="embedded", batch=10**8), place=0)


def test_all_clients_batches_count_unless_they_come_one_by_one(monkeypatch):
    together = 10 * 1000 * (400 + memory.DRAWN + 2 * 4 * 2)
    assert fits(monkeypatch, together)
    assert not fits(monkeypatch, together - 1)
    assert fits(monkeypatch, together - 1, engine="sequential")
    assert not fits(monkeypatch, together - 1, engine="sequential", algorithm="fedavg")
    assert not fits(monkeypatch, together, local_epochs=2)  # samples of all steps are drawn at once


def test_the_widest_layer_counts(monkeypatch):
    narrow = 10 * 1000 * (400 + memory.DRAWN + 2 * 4 * 2)
    assert not fits(monkeypatch, narrow, WIDE)
    assert fits(monkeypatch, narrow + 10 * 1000 * 2 * 4 * 5000, WIDE)
    assert not WIDE[0]._forward_hooks


def test_samples_are_drawn_in_the_memory_of_the_host(monkeypatch):
    on_device = 10 * 1000 * (400 + 2 * 4 * 2)
    assert fits(monkeypatch, on_device, device="cuda")
    assert not fits(monkeypatch, on_device - 1, device="cuda")
