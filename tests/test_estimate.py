import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from cyber0 import errors
from cyber0.directions import DirectionKey, combine, sample
from cyber0.estimate import estimate, nonfinite_cause
from cyber0.layerwise import LayerwiseEstimate
from cyber0.parameters import Parameters
from cyber0.tasks import mnist

FAMILIES = ["gaussian", "sphere", "rademacher"]


def keys_of(count, round=0):
    return [DirectionKey(seed=11, round=round, index=index) for index in range(count)]


def squares(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]).square()


class Quadratic(nn.Module):
    """F(w) = 1/2 w A w + b w, with a known gradient A w + b."""

    def __init__(self, dimension=12):
        super().__init__()
        rng = np.random.default_rng(4)
        root = rng.normal(size=(dimension, dimension)) / np.sqrt(dimension)
        self.curvature = torch.tensor(root @ root.T, dtype=torch.float32)
        self.slope = torch.tensor(rng.normal(size=dimension), dtype=torch.float32)
        self.weight = nn.Parameter(torch.tensor(rng.normal(size=dimension), dtype=torch.float32))

    def forward(self):
        return 0.5 * self.weight @ self.curvature @ self.weight + self.slope @ self.weight

    def gradient(self):
        return (self.curvature @ self.weight + self.slope).detach().double().numpy()


class Attention(nn.Module):
    """A transformer's heart: fused attention, which has no forward-mode derivative, between two layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(4, 24), nn.Linear(8, 3)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        query, key, value = self.embed(x).chunk(3, dim=-1)
        return self.head(self.norm(scaled_dot_product_attention(query, key, value)).mean(1))


def attention_task(batch=6):
    rng = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Attention()
    for index, parameter in enumerate(module.parameters()):
        parameter.data += (
            sample(DirectionKey(2, 0, index=index), parameter.numel(), device="cpu").view(parameter.shape) * 0.3
        )
    x = torch.tensor(rng.normal(size=(batch, 5, 4)), dtype=torch.float32)
    return module.eval(), (x, torch.tensor(rng.integers(0, 3, size=batch)))


def classification(model, batch):
    x, y = batch
    return cross_entropy(model(x), y, reduction="none")


def scalar_loss(model, _batch):
    return model().reshape(1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mu", [0.0, 1e-2])
def test_the_mean_of_estimates_is_the_gradient(family, mu):
    """E[Z g] = grad F on a quadratic (where smoothing changes no gradient), to five standard errors."""
    model = Quadratic()
    parameters, d = Parameters.of(model), 12
    estimates = np.array(
        [
            combine(
                keys_of(8, t),
                estimate(parameters, scalar_loss, None, keys_of(8, t), mu=mu, family=family),
                d,
                family=family,
            )
            for t in range(400)
        ]
    )
    error = estimates.mean(axis=0) - model.gradient()
    assert np.abs(error / (estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates)))).max() < 5
    assert np.linalg.norm(error) < 0.2 * np.linalg.norm(model.gradient())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_variance_falls_as_one_over_the_directions(family):
    parameters, d = Parameters.of(Quadratic()), 12
    variance = {}
    for count in (4, 16):
        estimates = [
            combine(
                keys_of(count, t),
                estimate(parameters, scalar_loss, None, keys_of(count, t), mu=0, family=family),
                d,
                family=family,
            )
            for t in range(600)
        ]
        variance[count] = np.var(estimates, axis=0).sum()
    assert 3.4 < variance[4] / variance[16] < 4.6  # 4, give or take the error of 600 samples


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [1, 5])
def test_forward_and_backward_mode_agree(family, count):
    module, batch = attention_task()
    parameters = Parameters.of(module)
    forward, backward, chosen = (
        estimate(parameters, classification, batch, keys_of(count), mu=0, family=family, method=method)
        for method in ("forward", "backward", "auto")
    )
    np.testing.assert_allclose(forward, backward, rtol=1e-4, atol=1e-5 * np.abs(backward).max())
    np.testing.assert_allclose(chosen, backward, rtol=1e-4, atol=1e-5 * np.abs(backward).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_two_points_tend_to_the_derivative(family):
    module, batch = attention_task()
    parameters = Parameters.of(module)
    exact = estimate(parameters, classification, batch, keys_of(6), mu=0, family=family)
    near = estimate(parameters, classification, batch, keys_of(6), mu=1e-3, family=family)
    np.testing.assert_allclose(near, exact, rtol=0.02, atol=0.02 * np.abs(exact).max())


def digits():
    images, labels = mnist.embedded()
    chosen = np.random.default_rng(3).choice(len(labels), 64, replace=False)
    model = nn.Linear(784, 10)
    for index, parameter in enumerate(model.parameters()):
        parameter.data = 0.02 * sample(DirectionKey(5, 0, index=index), parameter.numel(), device="cpu").view(
            parameter.shape
        )
    return model, (torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen]))


def float64_estimate(model, batch, key, mu):
    """The same two points in float64, along the same float32 direction."""
    d = sum(p.numel() for p in model.parameters())
    z = sample(key, d, family="sphere").astype(np.float64)
    x, y = batch[0].double().numpy(), batch[1].numpy()
    w = np.concatenate([p.detach().double().numpy().ravel() for p in model.parameters()])

    def loss(w):
        logits = x @ w[:7840].reshape(10, 784).T + w[7840:]
        top = logits.max(axis=1)
        return (np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - logits[np.arange(len(y)), y]).mean()

    return d * (loss(w + mu * z) - loss(w - mu * z)) / (2 * mu)


def in_float32(model, batch):
    """The same losses, rounded: a model that cannot be computed in float64 is not."""
    return classification(model, batch).float()


def error_of(losses, model, batch, count=40, mu=1e-3):
    """The median relative error to float64, along each of some directions."""
    keys, step = keys_of(count), float(np.float32(mu))
    exact = np.array([float64_estimate(model, batch, key, step) for key in keys])
    ours = estimate(Parameters.of(model), losses, batch, keys, mu=mu, family="sphere") * len(keys)
    return np.median(np.abs(ours - exact) / np.abs(exact))


def test_float32_cancellation_does_not_eat_the_estimate():
    """At mu = 1e-3 on digits, in float32: an error under 0.5 %, and less than with means first."""
    model, batch = digits()
    error = error_of(in_float32, model, batch)
    assert error < 5e-3
    assert error < error_of(lambda model, batch: in_float32(model, batch).mean().reshape(1), model, batch)


@pytest.mark.parametrize("scale", [1, 40, 300, 2000])
def test_a_small_model_is_exact_however_large_its_loss_is(scale):
    model, batch = digits()
    with torch.no_grad():
        model.weight.copy_(scale * torch.randn(model.weight.shape, generator=torch.Generator().manual_seed(0)) / 28)
    assert error_of(classification, model, batch) < 1e-5
    assert error_of(in_float32, model, batch) > 100 * error_of(classification, model, batch)


class Stubborn(torch.nn.Module):
    """A model with a matrix of its own in float32, which is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.linear, self.mixing = torch.nn.Linear(3, 3), torch.eye(3)

    def forward(self, inputs):
        return self.linear(inputs) @ self.mixing


def test_a_model_that_refuses_float64_is_computed_as_it_is():
    torch.manual_seed(0)
    model, batch = Stubborn(), (torch.randn(8, 3), torch.randint(3, (8,)))
    plain = torch.nn.Linear(3, 3)
    plain.load_state_dict(model.linear.state_dict())
    options = {"mu": 1e-2, "family": "sphere"}
    stubborn = estimate(Parameters.of(model), classification, batch, keys_of(4), **options)
    exact = estimate(Parameters.of(plain), classification, batch, keys_of(4), **options)
    assert 0 < np.abs(stubborn - exact).max() < 1e-3 * np.abs(exact).max()


def test_buffers_are_doubled_with_the_weights():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)).eval()
    batch = torch.randn(8, 3), torch.randint(3, (8,))
    found = []

    def losses(model, batch):
        found.append(classification(model, batch))
        return found[-1]

    estimate(Parameters.of(model), losses, batch, keys_of(2), mu=1e-3)
    assert {each.dtype for each in found} == {torch.float64}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32, torch.int64}


@pytest.mark.parametrize(("mu", "method"), [(1e-3, "auto"), (0.0, "forward"), (0.0, "backward")])
def test_estimating_writes_no_weight(mu, method):
    module, batch = attention_task()
    parameters = Parameters.of(module)
    before = parameters.fingerprint()
    for t in range(20):
        estimate(parameters, classification, batch, keys_of(3, t), mu=mu, method=method)
    assert parameters.fingerprint() == before
    assert all(p.grad is None for p in module.parameters())


def test_an_estimate_is_reproducible():
    module, batch = attention_task()
    one, two = (estimate(Parameters.of(module), classification, batch, keys_of(5)) for _ in range(2))
    assert one.tobytes() == two.tobytes()
    assert one.dtype == np.float32


def test_tied_and_unused_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model.unused = nn.Parameter(torch.ones(3))

    def losses(model, batch):
        return model[1](model[0](batch)).square().sum(1)

    batch = torch.ones(2, 4)
    near, forward, backward = (
        estimate(Parameters.of(model), losses, batch, keys_of(3), mu=mu, method=method)
        for mu, method in ((1e-3, "auto"), (0, "forward"), (0, "backward"))
    )
    np.testing.assert_allclose(forward, backward, rtol=1e-4)
    np.testing.assert_allclose(near, backward, rtol=1e-2)


@pytest.mark.parametrize("mu", [-1e-3, float("nan"), float("inf"), 1e-60])
def test_no_such_smoothing(mu):
    with pytest.raises(errors.InvalidEstimate, match=r"mu = .* must be 0, or a positive number"):
        estimate(Parameters.of(Quadratic()), scalar_loss, None, keys_of(1), mu=mu)


@pytest.mark.parametrize("mu", [0.0, 1e-3])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite(mu, bad):
    module, (x, y) = attention_task()
    x[4, 0, 0] = bad
    with pytest.raises(errors.NonFiniteLoss, match="loss of sample 4"):
        estimate(Parameters.of(module), classification, (x, y), keys_of(2), mu=mu)


@pytest.mark.filterwarnings("ignore:this model cannot be walked")
@pytest.mark.parametrize("measure", [estimate, LayerwiseEstimate()])
@pytest.mark.parametrize("mu", [0.0, 1e-3])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_data_that_are_not_finite_are_named_as_the_cause(mu, bad, measure):
    module = nn.Linear(3, 1)
    x, y = torch.ones(6, 3), torch.zeros(6)
    x[4, 1] = bad
    with pytest.raises(errors.NonFiniteLoss, match=f"the inputs of sample 4 contain {bad}") as raised:
        measure(Parameters.of(module), squares, (x, y), keys_of(2), mu=mu, family="gaussian")
    assert "learning rate" not in str(raised.value)
    x[4, 1], y[2] = 0.0, bad
    with pytest.raises(errors.NonFiniteLoss, match=f"the targets of sample 2 contain {bad}"):
        measure(Parameters.of(module), squares, (x, y), keys_of(2), mu=mu, family="gaussian")


@pytest.mark.filterwarnings("ignore:this model cannot be walked")
@pytest.mark.parametrize("measure", [estimate, LayerwiseEstimate()])
@pytest.mark.parametrize(
    ("weight", "cause"),
    [(float("nan"), "the weights 'weight' are no longer finite"), (3e38, "the loss is too large for its type")],
)
def test_a_model_that_has_diverged_is_told_to_lower_the_learning_rate(weight, cause, measure):
    module = nn.Linear(3, 1)
    module.weight.data.fill_(weight)
    with pytest.raises(errors.NonFiniteLoss, match=f"{cause}.*: lower the learning rate"):
        measure(
            Parameters.of(module), squares, (torch.ones(6, 3), torch.zeros(6)), keys_of(2), mu=1e-3, family="gaussian"
        )


def test_data_in_any_container_are_looked_at():
    parameters = Parameters.of(nn.Linear(3, 1))
    bad = torch.tensor([[1.0], [float("inf")]])
    assert "the inputs of sample 1 contain inf" in nonfinite_cause(parameters, ({"a": torch.ones(2), "b": bad}, None))
    assert "the data of sample 1 contain inf" in nonfinite_cause(parameters, {"x": bad})
    assert "the data contain nan" in nonfinite_cause(parameters, torch.tensor(torch.nan))


@pytest.mark.parametrize("mu", [0.0, 1e-3])
def test_an_empty_batch(mu):
    module, (x, y) = attention_task()
    with pytest.raises(errors.EmptyBatch, match="no samples"):
        estimate(Parameters.of(module), classification, (x[:0], y[:0]), keys_of(2), mu=mu)


def test_a_loss_that_was_averaged():
    with pytest.raises(errors.InvalidEstimate, match="one loss per sample"):
        estimate(Parameters.of(Quadratic()), lambda model, _: model(), None, keys_of(1))


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(4), nn.MultiheadAttention(4, 1, dropout=0.1)])
def test_layers_that_make_losses_incomparable(layer):
    model = nn.ModuleList([nn.Linear(4, 4), layer]).train()
    batch = torch.ones(3, 4)
    inputs = 3 if isinstance(layer, nn.MultiheadAttention) else 1

    def losses(model, x):
        result = model[1](*[model[0](x)] * inputs)
        return (result if inputs == 1 else result[0]).sum(1)

    with pytest.raises(errors.InvalidEstimate, match=r"'1' is in training mode.*call model.eval\(\)"):
        estimate(Parameters.of(model), losses, batch, keys_of(1))
    estimate(Parameters.of(model.eval()), losses, batch, keys_of(1))


def test_other_bad_input():
    parameters = Parameters.of(Quadratic())
    with pytest.raises(errors.InvalidEstimate, match="no directions"):
        estimate(parameters, scalar_loss, None, [])
    with pytest.raises(errors.UnknownName, match="auto, backward, forward"):
        estimate(parameters, scalar_loss, None, keys_of(1), mu=0, method="sideways")
    with pytest.raises(errors.InvalidEstimate, match=r"Parameters.of\(module\)"):
        estimate(Parameters({"w": np.ones(3, dtype=np.float32)}), scalar_loss, None, keys_of(1))


def test_a_model_without_forward_mode():
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    model = nn.Linear(4, 1, bias=False)

    def losses(model, batch):
        return Opaque.apply(model(batch)).squeeze(1)

    parameters, batch = Parameters.of(model), torch.ones(3, 4)
    with pytest.raises(errors.InvalidEstimate, match="use method='backward'"):
        estimate(parameters, losses, batch, keys_of(1), mu=0, method="forward")
    assert estimate(parameters, losses, batch, keys_of(1), mu=0).shape == (1,)
