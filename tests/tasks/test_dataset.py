"""A data set converts what can be converted, and says what cannot."""

import numpy as np
import pytest
import torch

from cyber0.errors import InvalidData
from cyber0.tasks.dataset import Dataset, refuse_not_finite

X, Y = np.arange(24, dtype=np.float32).reshape(8, 3), np.array([0, 1] * 4)


def dataset(inputs=X, labels=Y, *, classes=2, **options):
    return Dataset(inputs, labels, inputs, labels, classes=classes, source="a test", **options)


def test_what_is_right_already_is_not_copied():
    data = dataset()
    assert data.train_inputs is X
    assert data.train_labels is Y


@pytest.mark.parametrize(
    "inputs",
    [
        torch.from_numpy(X),
        torch.from_numpy(X).requires_grad_(),
        torch.from_numpy(X).bfloat16(),
        X.astype(np.float64),
        X.astype(np.float16),
        X.astype(np.uint8),
        X.tolist(),
    ],
    ids=["tensor", "tensor with a gradient", "bf16", "float64", "float16", "bytes", "list"],
)
def test_inputs_become_float32_with_the_values_they_have(inputs):
    data = dataset(inputs)
    assert data.train_inputs.dtype == np.float32
    np.testing.assert_array_equal(data.train_inputs, X)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_numbers_of_tokens_stay_integers(kind):
    assert dataset(X.astype(kind)).test_inputs.dtype == kind


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.bool_, np.int16])
def test_labels_become_int64(kind):
    data = dataset(labels=Y.astype(kind))
    assert data.train_labels.dtype == data.test_labels.dtype == np.int64
    np.testing.assert_array_equal(data.train_labels, Y)


def test_targets_of_a_regression_are_any_floats():
    data = dataset(labels=np.linspace(-1, 1, 8), classes=None)
    assert data.train_labels.dtype == np.float32
    assert repr(data) == "Dataset(8 + 8 samples: a test)"
    assert data.strata.tolist() == [0] * 8  # a partition deals by nothing


@pytest.mark.parametrize(
    ("inputs", "labels", "classes", "said"),
    [
        (X[:7], Y, 2, "7 train inputs and 8 train labels: give one label for each input"),
        (X[:0], Y[:0], 2, r"train inputs have shape \(0, 3\): there are no samples in them"),
        (np.array([object()] * 8), Y, 2, "train inputs are of type object: give numbers"),
        (np.array(["a"] * 8), Y, 2, "train inputs are texts: give numbers, as a NumPy array"),
        ([[1.0], [1.0, 2.0]], [0, 1], 2, "train inputs cannot be made an array"),
        (X, Y + 1, 2, "run from 1 to 2, and there are 2 classes: number them from 0 to 1, as by labels - 1"),
        (X, Y - 1, 2, "run from -1 to 0, and there are 2 classes: number them from 0 to 1$"),
        (X, Y * 4, 2, "run from 0 to 4, and there are 2 classes: .*, or give classes = 5"),
        (X, Y.astype(np.float32), 2, "train labels are of type float32: classes are numbered by integers"),
        (X, Y, 0, "classes = 0: give the number of classes, or None"),
        (X, Y, 2.0, "classes = 2.0: give the number of classes"),
    ],
)
def test_what_cannot_be_used_is_said_at_once(inputs, labels, classes, said):
    with pytest.raises(InvalidData, match=said):
        dataset(inputs, labels, classes=classes)


def test_where_values_are_not_finite():
    bad = np.zeros((9000, 3), dtype=np.float32)
    bad[8000, 1], bad[8999] = np.nan, np.inf
    with pytest.raises(InvalidData, match="inputs hold 4 values that are not finite, the first at sample 8000: "):
        refuse_not_finite(bad, "inputs")
    bad[8999] = 0
    with pytest.raises(InvalidData, match="inputs hold a value that is not finite, the first at sample 8000"):
        refuse_not_finite(bad, "inputs")
    refuse_not_finite(bad[:8000], "inputs")
    refuse_not_finite(Y, "labels")


@pytest.mark.parametrize("shares", [([0, 1], [2]), ([0, 1, 2, 3], [3, 4, 5, 6, 7]), (range(8), []), ()])
def test_each_sample_is_the_share_of_one_client(shares):
    with pytest.raises(InvalidData, match="each of the 8 training samples must be one client's"):
        dataset(shares=shares)


def test_a_validation_split_is_a_partition_by_seed():
    data = dataset(np.arange(100.0)[:, None], np.arange(100) % 2)
    rest, (inputs, labels) = data.split_validation(0.25, seed=3)
    assert sorted([*rest.train_inputs[:, 0], *inputs[:, 0]]) == list(range(100))
    assert len(labels) == 25
    np.testing.assert_array_equal(labels, inputs[:, 0] % 2)
    np.testing.assert_array_equal(rest.train_labels, rest.train_inputs[:, 0] % 2)
    assert rest.test_inputs is data.test_inputs
    again, other = (data.split_validation(0.25, seed=seed)[1][0] for seed in (3, 4))
    np.testing.assert_array_equal(inputs, again)
    assert not np.array_equal(inputs, other)


def test_each_client_gives_up_a_share_of_its_own():
    shares = [np.arange(40), np.array([40]), np.arange(41, 100)]
    data = dataset(np.arange(100.0)[:, None], np.arange(100) % 2, shares=shares)
    rest, (held, _) = data.split_validation(0.5, seed=0)
    assert [len(share) for share in rest.shares] == [20, 1, 29]
    kept = [set(rest.train_inputs[share, 0].astype(int)) for share in rest.shares]
    assert all(own <= set(share.tolist()) for own, share in zip(kept, shares, strict=True))
    assert len(held) == 50


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), True, "0.1", None])
def test_a_share_to_hold_out_lies_between_0_and_1(fraction):
    with pytest.raises(InvalidData, match=r"validation = .*: give the share of training samples to hold out"):
        dataset().split_validation(fraction, seed=0)


def test_nothing_to_hold_out():
    with pytest.raises(InvalidData, match=r"validation = 0.001: that is none of 8 samples"):
        dataset().split_validation(0.001, seed=0)
