"""One sample more moves a client's sum by that sample's clipped vector and by nothing else, to the last bit."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from cyber0.client import Client
from cyber0.directions import DirectionKey
from cyber0.errors import InvalidEstimate
from cyber0.estimate import estimate
from cyber0.layerwise import fixed_shapes
from cyber0.layerwise.fixed_shapes import FixedShapes
from cyber0.layerwise.measure import LayerwiseEstimate, measure_of
from cyber0.layerwise.part_sizes import best_part, fixed_width
from cyber0.layerwise.unordered import UnorderedOperations
from cyber0.parameters import Parameters
from cyber0.plan import Plan
from cyber0.privacy.client_steps import PrivateSteps
from cyber0.privacy.mechanism import LEVELS, Mechanism
from cyber0.tasks.losses import output_loss
from cyber0.tasks.task import cross_entropy, mnist, mnist_cnn, mnist_mlp

SIZES = (1, 16, 83)
DIRECTIONS = 5


class Recording(Mechanism):
    """A mechanism that keeps its sums, before noise."""

    sums: ClassVar = []

    def total(self, slopes, unit):
        self.sums.append(Mechanism.total(self, slopes, unit))
        return self.sums[-1]


def images(build, **options):
    task = build(source="embedded", **options)
    return task.build(0), *map(torch.as_tensor, (task.dataset.train_inputs, task.dataset.train_labels)), task.probes()


def texts(family, **changes):
    pytest.importorskip("transformers")
    from tests.layerwise.models import classifier, prompts

    x, y = (part[0] for part in prompts(1, 300, 31))
    return classifier(family, **changes), x, y, (x[200:], y[200:])


def wide_texts(family):
    return texts(family, max_position_embeddings=80)


CASES = {
    "logistic regression": lambda: images(mnist),
    "perceptron": lambda: images(mnist_mlp, hidden=200),
    "convolutions": lambda: images(mnist_cnn),
    "llama": lambda: wide_texts("llama"),
    "llama, own lengths": lambda: texts("llama"),
    "encoder": lambda: wide_texts("encoder"),
    "experts": lambda: texts("mixtral"),
}


def sums_of(model, batches, probes, *, mu=1e-3, family="sphere", precision="float32"):
    """Return the sums of a client that votes on one batch after the other, in integers, and how it measures."""
    plan = Plan(seed=1, directions=DIRECTIONS, local_epochs=1, scheme="unbiased", mu=mu, lr=0.1, family=family)
    mechanism = Recording(clip=10.0, noise=0.0, batch=40.0)
    steps = PrivateSteps(mechanism, lambda _t, _epoch, count: np.zeros(count, dtype=np.int64), probes)
    drawn, measure = iter(batches), measure_of(model, precision)
    client = Client(Parameters.of(model), cross_entropy, lambda *_: next(drawn), plan, measure=measure, private=steps)
    mechanism.sums.clear()
    for _ in batches:
        client.vote(0)
    return list(mechanism.sums)


def check_law(model, x, y, probes, sizes=SIZES, **options):
    """With and without one sample, at several sizes and places, beside the sample alone."""
    generator = torch.Generator().manual_seed(0)
    chosen = [torch.randperm(200, generator=generator)[: size + 1] for size in sizes]
    places = [int(torch.randint(len(each), (1,), generator=generator)) for each in chosen]
    batches = []
    for each, place in zip(chosen, places, strict=True):
        others = torch.cat([each[:place], each[place + 1 :]])
        batches += [(x[some], y[some]) for some in (each, others, each[place : place + 1])]
    sums = sums_of(model, batches, probes, **options)
    for with_it, without, alone in zip(sums[::3], sums[1::3], sums[2::3], strict=True):
        assert 0 < np.sqrt((alone.astype(float) ** 2).sum()) <= LEVELS
        assert (with_it - without == alone).all()


@pytest.mark.filterwarnings("ignore:this model's losses depend on")
@pytest.mark.parametrize("case", CASES)
def test_one_sample_more_moves_the_sum_by_its_own_vector(case):
    check_law(*CASES[case](), sizes=(1, 9) if case in ("experts", "llama, own lengths") else SIZES)


@pytest.mark.parametrize("case", ["perceptron", "llama"])
def test_so_it_does_by_forward_mode(case):
    check_law(*CASES[case](), sizes=(21,), mu=0.0)


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_so_it_does_in_half_precision_and_with_a_small_mu(precision):
    from cyber0.layerwise.measure import in_precision

    model, *data = CASES["encoder"]()
    check_law(in_precision(model, precision), *data, sizes=(40,), precision=precision)
    model, *data = CASES["llama"]()
    check_law(model, *data, sizes=(40,), mu=1e-7)


def slopes_of(model, probes, batch, losses=cross_entropy, measure=estimate, **options):
    shapes = FixedShapes(measure, 40.0, probes)
    keys = Plan(seed=1, directions=2, local_epochs=1, scheme="unbiased", mu=1e-3, lr=0.1).keys(0, 0)
    parameters = Parameters.of(model)
    return shapes(parameters, losses, batch, keys, mu=1e-3, family="sphere", **options), shapes


def test_slopes_are_the_same_bits_beside_any_others():
    model, x, y, probes = CASES["perceptron"]()
    all_of_them, shapes = slopes_of(model, probes, (x[:150], y[:150]))
    assert set(shapes.parts.values()) == {best_part(40, 2**20 / 159010, step=16)}
    for size in (1, 33, 90):
        some = torch.randperm(150)[:size]
        assert torch.equal(slopes_of(model, probes, (x[some], y[some]))[0], all_of_them[some])
    one_by_one, shapes = slopes_of(model, None, (x[:5], y[:5]))
    assert set(shapes.parts.values()) == {1}
    assert torch.allclose(one_by_one, all_of_them[:5], rtol=1e-6)


class Placed(torch.nn.Linear):
    """Its outputs depend on the place in the batch."""

    def forward(self, x):
        return super().forward(x) * (1 + 1e-3 * torch.arange(len(x))[:, None])


class PlacedBeyondFour(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 + 1e-3 * (torch.arange(len(x))[:, None] // 4))


class Mixing(torch.nn.Linear):
    """Its outputs depend on the samples beside."""

    def forward(self, x):
        return super().forward(x) + 1e-6 * super().forward(x).mean(0)


class Remembering(torch.nn.Linear):
    """Its outputs depend on the samples before."""

    seen = 0.0

    def forward(self, x):
        self.seen = 0.5 * self.seen + float(x.sum())
        return super().forward(x) * (1 + 1e-6 * self.seen)


@pytest.mark.parametrize(("build", "part"), [(Placed, 1), (PlacedBeyondFour, 4), (Mixing, 1)])
def test_parts_shrink_until_a_row_depends_on_its_sample_alone(build, part, recwarn):
    torch.manual_seed(0)
    x, y = torch.randn(60, 6), torch.randint(3, (60,))
    model = build(6, 3)
    slopes, shapes = slopes_of(model, (x[40:], y[40:]), (x[:30], y[:30]))
    assert set(shapes.parts.values()) == {part}
    assert [str(each.message)[:33] for each in recwarn] == ["this model's losses depend on who"] * (part == 1)
    for some in (slice(3, 4), slice(3, 25)):
        assert torch.equal(slopes_of(model, (x[40:], y[40:]), (x[some], y[some]))[0], slopes[some])


def test_a_model_that_remembers_samples_is_refused():
    torch.manual_seed(0)
    x, y = torch.randn(60, 5), torch.randint(3, (60,))
    with pytest.raises(InvalidEstimate, match="another one when it is measured again after other samples"):
        slopes_of(Remembering(5, 3), (x[40:], y[40:]), (x[:30], y[:30]))


def test_parts_are_as_large_as_memory_holds():
    def losses(model, batch):
        if len(batch[0]) > 16:
            raise MemoryError
        return cross_entropy(model, batch)

    x, y = torch.randn(60, 5), torch.randint(3, (60,))
    _, shapes = slopes_of(torch.nn.Linear(5, 3), (x[40:], y[40:]), (x[:30], y[:30]), losses)
    assert set(shapes.parts.values()) == {16}


def test_losses_that_are_not_one_for_each_sample_are_refused():
    def twice(model, batch):
        return cross_entropy(model, batch).repeat(2)

    x, y = torch.randn(60, 5), torch.randint(3, (60,))
    for probes in ((x[40:], y[40:]), None):
        with pytest.raises(InvalidEstimate, match="privacy needs one for each"):
            slopes_of(torch.nn.Linear(5, 3), probes, (x[:30], y[:30]), twice)


def test_a_text_has_a_width_of_its_own():
    for size in range(1, 600):
        width = fixed_width(size, widest=496)
        assert size < width <= 1.5 * size + 8 or width == size >= 384


class InFloat32(torch.nn.Sequential):
    """A small model that is not computed in float64."""

    def forward(self, x):
        if x.dtype == torch.float64:
            raise TypeError
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:this model's losses depend on")
@pytest.mark.parametrize("activation", [torch.nn.SiLU, torch.nn.GELU])
def test_kernels_that_treat_the_last_values_otherwise_are_noticed(activation, monkeypatch):
    # What is left over of 33 x p values is computed by another code, which rounds a few of them otherwise.
    monkeypatch.setattr(fixed_shapes, "VALUES", {True: 8, False: 8})
    for seed in range(2):
        torch.manual_seed(seed)
        x, y, linear = torch.randn(300, 20), torch.randint(3, (300,)), torch.nn.Linear
        model = InFloat32(linear(20, 33), activation(), linear(33, 33), activation(), linear(33, 3))
        check_law(model.eval(), x, y, (x[200:], y[200:]), sizes=(7, 40))


class MaskLeftOut(torch.nn.Module):
    """A model of texts that computes otherwise where none of them is padded."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 3)

    def sizes(self, x):
        return (x >= 0).sum(1)

    def widest(self):
        return 20

    def forward(self, x):
        mask = (x >= 0)[..., None]
        summed = (self.embedding(x.clamp(min=0)) * mask).sum(1)
        return self.last(summed) * (1.0 if mask.all() else 1.001)


def test_texts_that_are_not_padded_are_measured_apart_from_those_that_are():
    torch.manual_seed(0)
    x, y = torch.randint(50, (300, 16)), torch.randint(3, (300,))
    x[1::2, 12:] = -1  # both kinds have a width of 16, and 16 is near enough to the widest that nothing is padded more
    check_law(MaskLeftOut(), x, y, (x[200:], y[200:]), sizes=(1, 2, 7, 40))


@pytest.mark.filterwarnings("ignore:this model")
def test_whether_a_model_is_walked_does_not_depend_on_private_samples():
    torch.manual_seed(0)
    x, y = torch.randn(9, 40), torch.randint(3, (9,))
    model = torch.nn.Sequential(
        torch.nn.Linear(40, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 3)
    )
    x[0] = torch.nan  # nothing can be proven with it
    for probes in (None, (torch.full((4, 40), torch.nan), y[:4])):
        beside_it, alone = (
            slopes_of(model, probes, (x[first:], y[first:]), measure=LayerwiseEstimate(torch.bfloat16))[0][-8:]
            for first in (0, 1)
        )
        assert torch.equal(beside_it, alone)


def test_no_private_sample_decides_in_which_precision_all_are_measured():
    """One that cannot be computed in float64 would have moved all others to float32."""

    def losses(model, batch):
        if batch[0].dtype == torch.float64 and (batch[0] > 50).any():
            raise ValueError("too large for float64")
        return model(batch[0]).squeeze(1)

    torch.manual_seed(0)
    parameters, x = Parameters.of(torch.nn.Linear(3, 1)), torch.randn(9, 3)
    shapes = FixedShapes(estimate, expected=4.0, probes=(torch.randn(5, 3), torch.zeros(5)))
    keys, along = [DirectionKey(seed=1, round=0)], {"mu": 1e-3, "family": "sphere"}
    x[0] = 99.0
    with pytest.raises(ValueError, match="too large"):
        shapes(parameters, losses, (x, torch.zeros(9)), keys, **along)
    assert shapes(parameters, losses, (x[1:], torch.zeros(8)), keys, **along).shape == (8, 1)


def test_parts_of_several_sizes_give_the_same_bits():
    model, x, y, probes = CASES["encoder"]()
    parameters, shapes = Parameters.of(model), FixedShapes(LayerwiseEstimate(), 64.0, probes)
    keys, along = [DirectionKey(seed=1, round=0)], {"mu": 1e-3, "family": "sphere"}
    found = {}
    for size in (0, 1, 12, 40, 77):
        slopes = shapes(parameters, cross_entropy, (x[:size], y[:size]), keys, **along)
        found |= {(place, float(slope)): size for place, slope in enumerate(slopes)}
    assert len(found) == 77  # none of them has two slopes
    tried = [size for of_shape in shapes.others.values() for size, passed in of_shape.items() if passed]
    assert len({*tried}) > 1


class Unseen(torch.nn.Linear):
    """Something in it depends on the place in the batch, and its outputs do not."""

    def forward(self, x):
        y = super().forward(x)
        return y + 0.0 * (y + 1e-3 * torch.arange(len(x))[:, None])


@pytest.mark.filterwarnings("ignore:this model's losses depend on")
def test_what_depends_on_the_place_is_noticed_where_no_loss_shows_it():
    x, y = torch.randn(60, 6), torch.randint(3, (60,))
    _, shapes = slopes_of(Unseen(6, 3), (x[40:], y[40:]), (x[:30], y[:30]))
    assert set(shapes.parts.values()) == {1}


@pytest.mark.filterwarnings("ignore:this model's losses depend on")
@pytest.mark.parametrize("probes", [8, 60])
def test_products_over_an_odd_number_of_float64_are_noticed(probes):
    # Some columns of such a product are rounded by whether the row is an even one; of 40 losses, one shows it.
    torch.manual_seed(0)
    linear, x, y = torch.nn.Linear, torch.randn(260, 40), torch.randint(10, (260,))
    model = torch.nn.Sequential(linear(40, 33), torch.nn.Tanh(), linear(33, 64), torch.nn.Tanh(), linear(64, 10))
    check_law(model, x, y, (x[200 : 200 + probes], y[200 : 200 + probes]), sizes=(24, 90))
    product, rows = linear(33, 64).double(), torch.randn(32, 33, dtype=torch.float64)
    if not torch.equal(product(rows.roll(1, 0)), product(rows).roll(1, 0)):
        _, shapes = slopes_of(model, (x[200:], y[200:]), (x[:30], y[:30]))
        assert set(shapes.parts.values()) == {1}


def test_few_samples_to_try_with_are_too_few():
    x, y = torch.randn(60, 6), torch.randint(3, (60,))
    found = []
    for count in (7, 8):
        _, shapes = slopes_of(torch.nn.Linear(6, 3), (x[:count], y[:count]), (x[20:], y[20:]))
        found += shapes.parts.values()
    assert found[0] == 1 < found[1]


class Fixed(Recording):
    """What it releases is always the same, so that the next local step begins at the same model."""

    def released(self, total, noise, unit):  # noqa: ARG002
        return np.full(len(total), 0.5, dtype=np.float32)


@pytest.mark.parametrize("scheme", ["unbiased", "biased", "compressed"])
def test_so_it_does_at_every_local_step(scheme):
    model, x, y, probes = CASES["logistic regression"]()
    plan = Plan(seed=1, directions=DIRECTIONS, local_epochs=3, scheme=scheme, mu=1e-3, lr=0.1, family="sphere")
    sums = []
    for rows in (slice(0, 50), slice(0, 49), slice(49, 50)):
        mechanism = Fixed(clip=10.0, noise=0.0, batch=40.0)
        steps = PrivateSteps(mechanism, lambda _t, _epoch, count: np.zeros(count, dtype=np.int64), probes)
        mechanism.sums.clear()
        Client(Parameters.of(model), cross_entropy, lambda *_, rows=rows: (x[rows], y[rows]), plan, private=steps).vote(
            0
        )
        sums.append(np.array(mechanism.sums))
    assert sums[0].shape == (3, DIRECTIONS)
    assert (sums[0] - sums[1] == sums[2]).all()
    assert not (sums[0][0] == sums[0][1]).all()


def test_so_it_does_where_each_token_has_a_label():
    pytest.importorskip("transformers")
    from cyber0.tasks.text.tagger import Tagger

    encoder, x, _, _ = CASES["encoder"]()
    torch.manual_seed(0)
    model, y = Tagger(encoder.whole, labels=3), torch.where(x >= 0, torch.randint(3, x.shape), -100)
    model.classifier.weight.data.normal_()
    losses = output_loss(lambda scores, labels: torch.nn.functional.cross_entropy(scores.mT, labels, reduction="none"))
    shapes = FixedShapes(LayerwiseEstimate(), 40.0, (x[200:], y[200:]))
    parameters, keys = Parameters.of(model), [DirectionKey(seed=1, round=0)]
    one, two = (shapes(parameters, losses, (x[:size], y[:size]), keys, mu=1e-3, family="sphere") for size in (61, 30))
    assert one.any()
    assert torch.equal(one[:30], two)


def test_so_it_does_with_texts_that_are_longer_than_all_to_try_with():
    model, x, y, probes = wide_texts("llama")
    shapes = FixedShapes(LayerwiseEstimate(), 40.0, (probes[0][:, :12].contiguous(), probes[1]))
    parameters, keys = Parameters.of(model), [DirectionKey(seed=1, round=0)]
    one, two = (
        shapes(parameters, cross_entropy, (x[:size], y[:size]), keys, mu=1e-3, family="sphere") for size in (50, 23)
    )
    assert torch.equal(one[:23], two)


@pytest.mark.parametrize("tokens", [8, 200])
def test_texts_of_several_widths(tokens, monkeypatch):
    """Where a part costs little besides its tokens, there are many widths."""
    monkeypatch.setattr(fixed_shapes, "OVERHEAD", {"cpu": tokens})
    monkeypatch.setattr(fixed_shapes, "WALKED", 0)
    check_law(*wide_texts("encoder"), sizes=(7, 60))


def test_operations_that_add_in_no_fixed_order_are_noticed():
    with UnorderedOperations() as found:
        x, places = torch.ones(4, 3), torch.tensor([0, 0, 1, 1])
        torch.zeros(2, 3).index_put((places,), x)
        assert found.names == set()
        torch.zeros(2, 3).index_put((places,), x, accumulate=True)
        torch.zeros(2, 3).scatter_add_(0, places[:, None].expand(4, 3), x)
    assert found.names == {"index_put", "scatter_add"}
