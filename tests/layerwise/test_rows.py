"""Rows of a matrix that are looked up are those of the whole matrix, however they are made."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cyber0.directions import DirectionKey
from cyber0.layerwise import source
from cyber0.layerwise.source import Layout, TorchSource, perturbation_of
from cyber0.parameters import Parameters, to_bf16

ROWS, WIDTH = 200, 5


@given(
    ids=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40),
    gap=st.sampled_from([0, WIDTH, 7 * WIDTH, 2**15]),
    longest=st.sampled_from([0, 20 * WIDTH, 2**20]),
    drifted=st.booleans(),
    family=st.sampled_from(["gaussian", "sphere", "rademacher"]),
    low=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    apart=st.booleans(),
)
def test_rows_are_those_of_the_matrix(ids, gap, longest, drifted, family, low, dtype, apart):
    """In every type, whether they follow each other in memory or lie apart."""
    table = nn.Embedding(ROWS, WIDTH)
    with torch.no_grad():
        table.weight.copy_(torch.arange(ROWS * WIDTH).view(ROWS, WIDTH).sin())
    table = to_bf16(table) if low else table
    parameters, (key, other) = Parameters.of(table), [DirectionKey(seed=1, round=t) for t in range(2)]
    made = TorchSource(Layout(parameters))
    drift = ([other], [0.5]) if drifted else None
    made.set_perturbation(perturbation_of(parameters, key, 1e-2, family, drift=drift))
    whole = [sign.clone() for sign in made.matrix(table.weight, torch.float32)]
    plus, minus = torch.empty(2, len(ids), 2 * WIDTH if apart else WIDTH, dtype=dtype)[..., :WIDTH]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "GAP", gap)
        patch.setattr(source, "LONGEST", longest)
        made.rows(table.weight, torch.tensor(ids), plus, minus)
    assert torch.equal(plus, whole[0][ids].to(dtype))
    assert torch.equal(minus, whole[1][ids].to(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_are_looked_up_by_numbers_of_any_type_and_never_beyond_the_matrix(dtype):
    table = nn.Embedding(ROWS, WIDTH)
    parameters = Parameters.of(table)
    made = TorchSource(Layout(parameters))
    made.set_perturbation(perturbation_of(parameters, DirectionKey(1, 0), 1e-2))
    whole = [sign.clone() for sign in made.matrix(table.weight, torch.float32)]
    ids, (plus, minus) = torch.tensor([[3, ROWS - 1], [0, 3]], dtype=dtype), torch.empty(2, 2, 2, WIDTH)
    made.rows(table.weight, ids, plus, minus)
    assert torch.equal(torch.stack([plus, minus]), torch.stack([sign[ids.long()] for sign in whole]))
    for row in (-1, ROWS):
        with pytest.raises(IndexError, match=f"weight has {ROWS} rows, and row {row} is looked up"):
            made.rows(table.weight, torch.tensor([[3, row], [0, 3]], dtype=dtype), plus, minus)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16])
def test_other_types_than_a_backend_writes_are_converted(dtype):
    """A model whose own code computes in float16 has its biases perturbed in float32, and then rounded."""
    model = nn.Linear(7, 5)
    parameters = Parameters.of(model)
    made = TorchSource(Layout(parameters))
    made.set_perturbation(perturbation_of(parameters, DirectionKey(1, 0), 1e-2))
    for ask, parameter in ((made.vector, model.bias), (made.matrix, model.weight)):
        wide = [sign.clone() for sign in ask(parameter, torch.float32)]
        assert all(map(torch.equal, ask(parameter, dtype), [sign.to(dtype) for sign in wide]))
