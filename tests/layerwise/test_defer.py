"""A commit that is due is one that was applied: nobody can tell the difference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyber0.commit import Commit
from cyber0.errors import InvalidCommit
from cyber0.parameters import Parameters

FAMILIES = ["gaussian", "sphere", "rademacher"]
LOOKS = {
    "fingerprint": lambda parameters: parameters.fingerprint(),
    "tensors": lambda parameters: {name: tensor.tobytes() for name, tensor in parameters.tensors.items()},
    "buffers": lambda parameters: [flat.tobytes() for _, flat in parameters],
    "settle": lambda parameters: parameters.settle(),
    "nothing": lambda parameters: (parameters.size, parameters.device, parameters.manifest.digest),
}


def weights(*, bf16):
    matrix = np.linspace(-1, 1, 21, dtype=np.float32).reshape(3, 7)
    return {
        "matrix": (matrix.view(np.uint32) >> 16).astype(np.uint16) if bf16 else matrix,
        "vector": np.linspace(0, 1, 5, dtype=np.float32),
    }


def commit(number, family, width):
    return Commit(3, number, 0.1, np.sin(np.arange(1.0, width + 1))[None] + number, family)


steps = st.lists(
    st.tuples(
        st.sampled_from(["defer", "apply", "apply_all", "take", *LOOKS]), st.sampled_from(FAMILIES), st.integers(1, 3)
    ),
    max_size=12,
)


@given(steps, st.booleans())
def test_any_order_of_calls_is_applying_in_order(steps, bf16):
    lazy, eager = Parameters(weights(bf16=bf16)), Parameters(weights(bf16=bf16))
    for number, (name, family, width) in enumerate(steps):
        each = commit(number, family, width)
        if name in LOOKS:
            assert LOOKS[name](lazy) == LOOKS[name](eager)
        elif name == "take":
            due = lazy.take(family)
            assert due is None or due.family == family
            if due is not None:  # whoever takes it applies it
                assert lazy.take(family) is None
                lazy.apply(due)
        elif name == "apply_all":
            several = [each, commit(number + 100, family, width)]
            lazy.apply_all(several)
            eager.apply_all(several)
        else:
            getattr(lazy, name)(each)
            eager.apply(each)
    assert lazy.fingerprint() == eager.fingerprint()
    assert all(ours.tobytes() == theirs.tobytes() for (_, ours), (_, theirs) in zip(lazy, eager, strict=True))


def test_what_is_taken_and_deferred_again_is_applied_once():
    lazy, eager = Parameters(weights(bf16=False)), Parameters(weights(bf16=False))
    first = commit(0, "gaussian", 2)
    lazy.defer(first)
    assert lazy.take("sphere") is None
    taken = lazy.take("gaussian")
    assert taken is first
    lazy.defer(taken)
    eager.apply(first)
    assert lazy.fingerprint() == eager.fingerprint()


def test_a_module_is_up_to_date_when_it_is_asked_for():
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(3, 2) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    lazy, eager = map(Parameters.of, layers)
    lazy.defer(commit(0, "gaussian", 2))
    eager.apply(commit(0, "gaussian", 2))
    assert torch.equal(lazy.module.weight, layers[1].weight)


def test_a_commit_that_no_model_can_take_is_refused_before_it_is_due():
    with pytest.raises(InvalidCommit):
        Parameters(weights(bf16=False)).defer(Commit(3, 0, 1e30, [[1e30]]))
