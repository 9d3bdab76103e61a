"""On a CUDA device, too, one sample more moves a client's sum by that sample's clipped vector alone, to the last bit.

Skipped where there is none.
"""

import pytest
import torch
from tests.privacy.test_fixed_shapes import check_law, images, slopes_of, texts, wide_texts
from torch import nn

from cyber0.errors import InvalidEstimate
from cyber0.layerwise.measure import LayerwiseEstimate, in_precision
from cyber0.tasks.task import mnist, mnist_cnn, mnist_mlp

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:this model's losses depend on"),
]
CASES = {
    "logistic regression": lambda: images(mnist),
    "perceptron": lambda: images(mnist_mlp, hidden=200),
    "an odd perceptron": lambda: images(mnist_mlp, hidden=33),
    "convolutions": lambda: images(mnist_cnn),
    "llama": lambda: wide_texts("llama"),
    "llama, own lengths": lambda: texts("llama"),
    "encoder": lambda: wide_texts("encoder"),
    "experts": lambda: texts("mixtral"),
}


def there(model, x, y, probes):
    return model.cuda(), x.cuda(), y.cuda(), tuple(each.cuda() for each in probes)


@pytest.mark.parametrize("case", CASES)
def test_one_sample_more_moves_the_sum_by_its_own_vector(case):
    check_law(*there(*CASES[case]()), sizes=(1, 9, 20) if case == "experts" else (1, 16, 83))


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
@pytest.mark.parametrize("case", ["encoder", "llama"])
def test_so_it_does_in_half_precision(case, precision):
    model, *data = CASES[case]()
    check_law(*there(in_precision(model, precision), *data), sizes=(7, 40), precision=precision)


@pytest.mark.parametrize("case", ["perceptron", "llama"])
def test_so_it_does_by_forward_mode(case):
    check_law(*there(*CASES[case]()), sizes=(7, 40), mu=0.0)


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU])
def test_so_it_does_walked_at_odd_widths(activation):
    torch.manual_seed(0)
    x, y = torch.randn(300, 20).cuda(), torch.randint(3, (300,)).cuda()
    model = nn.Sequential(nn.Linear(20, 33), activation(), nn.Linear(33, 77), activation(), nn.Linear(77, 3)).cuda()
    probes = x[200:], y[200:]
    all_of_them, _ = slopes_of(model, probes, (x[:150], y[:150]), measure=LayerwiseEstimate())
    for some in (slice(3, 4), slice(3, 25), slice(0, 101)):
        found, _ = slopes_of(model, probes, (x[some], y[some]), measure=LayerwiseEstimate())
        assert torch.equal(found, all_of_them[some])


class Scattered(nn.Linear):
    """Features are added up by an operation that takes them in no fixed order."""

    def forward(self, x):
        features = super().forward(x)
        places = torch.arange(features.shape[1], device=x.device) % 3
        return torch.zeros(len(x), 3, device=x.device, dtype=x.dtype).index_add(1, places, features)


def test_operations_that_add_in_no_fixed_order_are_refused():
    x, y = torch.randn(60, 6).cuda(), torch.randint(3, (60,)).cuda()
    with pytest.raises(InvalidEstimate, match="use index_add, which on a CUDA device add in no fixed order"):
        slopes_of(Scattered(6, 300).cuda(), (x[40:], y[40:]), (x[:30], y[:30]))
