"""A deferred commit: reading never writes, stale weights cannot be read, and settling gives the bits of applying."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyber0.commit import Commit
from cyber0.errors import InvalidCommit, InvalidParameters
from cyber0.parameters import Parameters

FAMILIES = ["gaussian", "sphere", "rademacher"]
READS = {
    "fingerprint": lambda parameters: parameters.fingerprint(),
    "tensors": lambda parameters: {name: tensor.tobytes() for name, tensor in parameters.tensors.items()},
    "buffers": lambda parameters: [flat.tobytes() for _, flat in parameters],
    "module": lambda parameters: parameters.module,
}
OF_THE_LAYOUT = {
    "size": lambda parameters: parameters.size,
    "device": lambda parameters: parameters.device,
    "manifest": lambda parameters: parameters.manifest.digest,
    "check": lambda parameters: parameters.check(),
}


def weights(*, bf16=False):
    matrix = np.linspace(-1, 1, 21, dtype=np.float32).reshape(3, 7)
    return {
        "matrix": (matrix.view(np.uint32) >> 16).astype(np.uint16) if bf16 else matrix,
        "vector": np.linspace(0, 1, 5, dtype=np.float32),
    }


def bits(tensors):
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


def commit(number=0, family="gaussian", width=2):
    return Commit(3, number, 0.1, np.sin(np.arange(1.0, width + 1))[None] + number, family)


calls = st.lists(
    st.tuples(
        st.sampled_from(["defer", "apply", "apply_all", "settle", "mark_applied", *READS, *OF_THE_LAYOUT]),
        st.sampled_from(FAMILIES),
        st.integers(1, 3),
    ),
    max_size=12,
)


def write(name, lazy, eager, number, family, width):
    """Make one call that may write on `lazy`, and its effect at once on `eager`."""
    commits = [commit(number, family, width), commit(number + 100, family, width)]
    if name == "apply_all":
        lazy.apply_all(commits)
        eager.apply_all(commits)
    elif name == "settle":
        lazy.settle()
        assert lazy.pending is None
    elif name == "mark_applied" and lazy.pending is not None:
        Parameters(lazy._tensors).apply(lazy.pending)  # as a walk does
        lazy.mark_applied()
    elif name in ("defer", "apply"):
        getattr(lazy, name)(commits[0])
        eager.apply(commits[0])


def read(name, lazy, eager):
    """Make one call that must not write, and raises where it would give weights that are not up to date."""
    if name in READS and lazy.pending is not None:
        with pytest.raises(InvalidParameters, match=rf"the commit of round {lazy.pending.round} is pending: call"):
            READS[name](lazy)
    else:
        call = (READS | OF_THE_LAYOUT)[name]
        assert call(lazy) == call(eager)


@given(calls, st.booleans())
def test_any_order_of_calls_is_applying_in_order(calls, bf16):
    held, twins = weights(bf16=bf16), weights(bf16=bf16)
    lazy, eager = Parameters(held), Parameters(twins)
    for number, (name, family, width) in enumerate(calls):
        if name in READS | OF_THE_LAYOUT:
            before = bits(held)
            read(name, lazy, eager)
            assert bits(held) == before
        else:
            write(name, lazy, eager, number, family, width)
    lazy.settle()
    assert bits(held) == bits(twins)


def test_deferring_writes_nothing():
    held = weights()
    Parameters(held).defer(commit())
    assert bits(held) == bits(weights())


def test_settling_twice_is_settling_once():
    lazy, eager = Parameters(weights()), Parameters(weights())
    lazy.defer(commit())
    eager.apply(commit())
    lazy.settle()
    lazy.settle()
    assert lazy.fingerprint() == eager.fingerprint()


def test_a_module_is_not_handed_out_while_a_commit_is_pending():
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(3, 2) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    lazy, eager = map(Parameters.of, layers)
    lazy.defer(commit())
    eager.apply(commit())
    with pytest.raises(InvalidParameters, match="pending"):
        lazy.module  # noqa: B018
    lazy.settle()
    assert torch.equal(lazy.module.weight, layers[1].weight)


def test_a_commit_that_no_model_can_take_is_refused_before_it_is_pending():
    parameters = Parameters(weights())
    with pytest.raises(InvalidCommit):
        parameters.defer(Commit(3, 0, 1e30, [[1e30]]))
    assert parameters.pending is None


def test_a_commit_that_cannot_be_applied_now_stays_pending():
    """Weights that were moved are noticed before anything is written."""
    held = weights()
    parameters, first = Parameters(held), commit()
    parameters.defer(first)
    parameters._tensors["vector"] = held["vector"].copy()
    with pytest.raises(InvalidParameters, match="'vector' has been moved"):
        parameters.settle()
    assert parameters.pending is first
    assert bits(held) == bits(weights())
