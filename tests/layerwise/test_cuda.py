"""Walks on a CUDA device: the kernels' bits are the reference's, commits are applied once, graphs serve all rounds.

Skipped where there is none. What needs no graph also runs on the CPU, in Triton's interpreter (TRITON_INTERPRET=1).
"""

import copy
import gc
import os

import numpy as np
import pytest
import torch
from tests.layerwise.models import classifier, keys, prompts

from cyber0.commit import Commit
from cyber0.directions import DirectionKey, descend, perturb_pair
from cyber0.directions.key import pack
from cyber0.estimate import estimate
from cyber0.layerwise import Walk
from cyber0.layerwise.source import normed, perturbation_of
from cyber0.parameters import Parameters, to_bf16
from cyber0.tasks.task import cross_entropy

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytest.importorskip("triton")
DEVICE = "cpu" if INTERPRETED else "cuda"
KEYS = [DirectionKey(7, t) for t in range(3)]
STEPS = [1e-3, 0.5, -0.25]
LISTS = {"aligned": [(3000, 16), (2048, 5120), (64, 8192)], "mixed": [(3000, 16), (5, 4001), (2048, 5120), (70, 7777)]}
bits = pytest.mark.parametrize("family", ["gaussian", "rademacher"])
types = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def table(numbers, family):
    from cyber0.directions.kernels import table

    chosen = [KEYS[number] for number in numbers], family, [1.0] * len(numbers), [STEPS[number] for number in numbers]
    return table(pack(*chosen), torch.device(DEVICE))


def tensors(sizes, dtype):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(size, generator=generator).to(dtype), start) for size, start in sizes]


def there(items):
    return [(flat.clone().to(DEVICE), start) for flat, start in items]


def same(ours, theirs):
    return torch.equal(ours.cpu().view(torch.uint8), theirs.cpu().view(torch.uint8))


@bits
@types
@pytest.mark.parametrize("sizes", LISTS)
def test_many_tensors_descend_as_each_does(sizes, dtype, family):
    from cyber0.directions.tensors import descend_all, gather

    items = tensors(LISTS[sizes], dtype) + tensors([(33, 20_000)], torch.float32)
    got = there(items)
    descend_all(gather(got), table([1, 2], family), bits=family == "rademacher")
    for (w, start), (ours, _) in zip(items, got, strict=True):
        assert same(ours, descend(w, KEYS[1:], STEPS[1:], start=start, family=family))


@bits
@types
@pytest.mark.parametrize("sizes", LISTS)
@pytest.mark.parametrize("way", ["unperturbed", "drift", "write"])
def test_pairs_are_those_of_each_tensor(way, sizes, dtype, family):
    """`write` rounds as `descend` does, and perturbs what it wrote; drift stays in float32."""
    from cyber0.directions.tensors import Tensors, pair_all

    items = tensors(LISTS[sizes], dtype)
    got = there(items)
    many = Tensors(got)
    plus, minus = torch.zeros(2, many.room, device=DEVICE)
    numbers = [0] if way == "unperturbed" else [0, 1, 2]
    pair_all(many, table(numbers, family), plus, minus, bits=family == "rademacher", write=way == "write")
    for (w, start), (ours, _), first in zip(items, got, many.offsets, strict=True):
        where = {"start": start, "family": family}
        moved = w if way == "unperturbed" else descend(w if way == "write" else w.float(), KEYS[1:], STEPS[1:], **where)
        assert same(ours, moved if way == "write" else w)
        up, down = perturb_pair(moved.float(), KEYS[0], STEPS[0], **where)
        assert same(plus[first : first + len(w)], up)
        assert same(minus[first : first + len(w)], down)


@bits
@types
@pytest.mark.parametrize(("width", "start"), [(96, 1000), (256, 512), (700, 3)])
def test_rows_are_those_of_the_whole_matrix(width, start, dtype, family):
    from cyber0.layerwise import kernels

    matrix = tensors([(20 * width, start)], dtype)[0][0]
    ids = torch.tensor([[3, 4], [19, 0]])
    plus, minus = torch.zeros(2, 2, 2, width, device=DEVICE)
    where = {"start": start, "family": family}
    for numbers in ([0], [0, 1, 2]):
        weights = matrix.view(20, width).to(DEVICE)
        kernels.rows(weights, ids.to(DEVICE), table(numbers, family), start, plus, minus, bits=family == "rademacher")
        moved = matrix.float() if len(numbers) == 1 else descend(matrix.float(), KEYS[1:], STEPS[1:], **where)
        for ours, whole in zip((plus, minus), perturb_pair(moved, KEYS[0], STEPS[0], **where), strict=True):
            assert same(ours, whole.view(20, width)[ids])


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_a_norm_of_both_halves_is_that_of_each(centred, biased):
    from cyber0.layerwise import kernels

    x, *vectors = (flat.to(DEVICE) for flat, _ in tensors([(6 * 5 * 96, 0)] + [(96, 0)] * 4, torch.float32))
    x, weight, bias = x.view(6, 5, 96), vectors[:2], vectors[2:]
    out = kernels.norm(x, tuple(weight), tuple(bias) if biased else None, 1e-5, centred=centred)
    for sign, part in enumerate((slice(3), slice(3, None))):
        own = normed(x[part], weight[sign], None, 1e-5, centred=centred) + (bias[sign] if biased else 0)
        torch.testing.assert_close(out[part], own, atol=1e-4, rtol=1e-4)


@types
def test_the_norm_of_a_sum_has_the_bits_of_both_steps(dtype):
    from cyber0.layerwise import kernels

    x, residual = (flat.to(DEVICE).view(6, 5, 96) for flat, _ in tensors([(6 * 5 * 96, 0)] * 2, dtype))
    vectors = [flat.to(DEVICE) for flat, _ in tensors([(96, 0)] * 4, torch.float32)]
    weight, bias = tuple(vectors[:2]), tuple(vectors[2:])
    expected = kernels.norm(x + residual, weight, bias, 1e-5, centred=True)
    found = kernels.norm(x, weight, bias, 1e-5, centred=True, residual=residual)
    if INTERPRETED and dtype == torch.bfloat16:  # the interpreter does not round to nearest
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0.02)
    else:
        assert same(found, expected)
    assert found.data_ptr() == x.data_ptr()


@on_cuda
def test_gelu_is_the_exact_function_correctly_rounded_for_all_values_of_bf16_but_one():
    """All finite values, times the unit matrix; where the result is small, its error is."""
    from cyber0.layerwise import fused_linear

    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    x = x.where(x.isfinite(), 0).view(1024, 64)
    unit, zero = (torch.eye(64).repeat(2, 1).bfloat16().to(DEVICE), torch.zeros(128, dtype=torch.bfloat16).to(DEVICE))
    out = torch.empty(1024, 128, dtype=torch.bfloat16, device=DEVICE)
    fused_linear.affine_gelu(x.to(DEVICE), unit, zero, out)
    found, exact = out[:, :64].cpu(), x.double() * torch.special.ndtr(x.double())
    assert same(out[:, :64], out[:, 64:].contiguous())
    small = exact.abs() <= 1e-3
    assert float((found.double() - exact)[small].abs().max()) < 4e-6
    assert int((found != exact.float().bfloat16())[~small].sum()) <= 1


@on_cuda
@pytest.mark.parametrize(("count", "outputs", "inputs"), [(1024, 128, 64), (1100, 256, 192), (4100, 384, 1024)])
def test_a_product_and_its_activation_in_one_kernel_are_those_of_two(count, outputs, inputs):
    from cyber0.layerwise import fused_linear
    from cyber0.layerwise.source import affine_gelu

    shapes = [(count, inputs), (outputs, inputs), (outputs,)]
    flats = [flat for flat, _ in tensors([(int(np.prod(shape)), 0) for shape in shapes], torch.float32)]
    rows, weight, bias = (
        (flat.view(shape) * scale).bfloat16().to(DEVICE)
        for flat, shape, scale in zip(flats, shapes, (1, 0.1, 0.5), strict=True)
    )
    found, expected = (torch.full((count + 1, outputs), 7.0, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    fused_linear.affine_gelu(rows, weight, bias, found[:count])
    affine_gelu(rows, weight, bias, expected[:count], "none")
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=1e-2)
    assert (found[count] == 7).all()


@types
@bits
def test_a_pass_over_several_rounds_is_one_after_the_other(dtype, family):
    from cyber0.directions.kernels import Triton

    for size, start in ((3000, 16), (70, 7777), (2100, 2**34 - 1000)):
        weights = tensors([(size, start)], dtype)[0][0]
        packed = pack(KEYS * 2, family, [1.0] * 6, [*STEPS, *STEPS]).reshape(3, 2)
        ours = weights.clone().to(DEVICE)
        Triton().fold(ours, packed, start)
        for row in packed:
            keys = [DirectionKey(7, int(one["t"])) for one in row]
            descend(weights, keys, row["coefficient"], out=weights, start=start, family=family)
        assert same(ours, weights)


@bits
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("model", ["roberta", "albert", "gpt2"])
def test_a_walk_that_applies_a_commit_is_one_after_it(model, bf16, family):
    """Without graphs: a warm_up changes nothing, the walk applies the commit, and measures what follows."""
    from cyber0.layerwise.cuda import CudaSource

    own = to_bf16(classifier(model)) if bf16 else classifier(model)
    ours, reference = Parameters.of(copy.deepcopy(own).to(DEVICE)), Parameters.of(own)
    walk, plain = Walk(ours, cross_entropy), Walk(reference, cross_entropy)
    walk.source = CudaSource(walk.layout)
    x, y = (part[0] for part in prompts())
    for t in range(3):
        commit = Commit(1, t, 0.1, [[0.5, -0.3]], family) if t else None
        before = ours.fingerprint()
        walk.source.set_perturbation(perturbation_of(ours, DirectionKey(1, t), 1e-2, family, commit=commit))
        with torch.no_grad():
            with walk.source.warm_up() as passes:
                for _ in passes:
                    walk.run(x.to(DEVICE), y.to(DEVICE), padded=True)
            assert ours.fingerprint() == before
            found = walk.run(x.to(DEVICE), y.to(DEVICE), padded=True)
            if commit is not None:
                reference.apply(commit)
            plain.source.set_perturbation(perturbation_of(reference, DirectionKey(1, t), 1e-2, family))
            torch.testing.assert_close(found.cpu(), plain.run(x, y, padded=True), atol=1e-3, rtol=1e-3)
        assert ours.fingerprint() == reference.fingerprint()


def near(ours, theirs, tolerance=2e-3):
    np.testing.assert_allclose(ours.cpu(), theirs, rtol=0, atol=tolerance * float(theirs.abs().max()))


@on_cuda
@pytest.mark.parametrize("family", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("model", ["roberta", "bert", "albert", "gpt2", "llama", "qwen2", "encoder", "modernbert"])
def test_a_walk_on_the_device_is_one_on_the_cpu(model, family):
    own = classifier(model)
    cpu, cuda = Parameters.of(own), Parameters.of(copy.deepcopy(own).cuda())
    here, walk = Walk(cpu, cross_entropy), Walk(cuda, cross_entropy)
    x, y = prompts(3, batch=20, width=19)
    mu = 1e-2 * (cpu.size**0.5 if family == "sphere" else 1)
    drift = keys(2, round=9), [0.01, -0.02]
    before = cuda.fingerprint()
    for key in keys(3):
        for moved in (None, drift):
            near(walk.slopes(x.cuda(), y.cuda(), key, mu, family, moved), here.slopes(x, y, key, mu, family, moved))
    assert walk.layered
    assert cuda.fingerprint() == before


class Unsized(torch.nn.Module):
    """A model that does not say which of its inputs are padding."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

    def scores(self, x):
        return self.inner.scores(x)


@on_cuda
@pytest.mark.parametrize("model", ["roberta", "bert"])
def test_padding_is_masked_though_no_sizes_are_known(model):
    parameters = Parameters.of(Unsized(classifier(model)).eval().cuda())
    walk = Walk(parameters, cross_entropy)
    x, y = (part.cuda() for part in prompts(1, batch=24, width=31))
    vote = estimate(parameters, cross_entropy, (x[0], y[0]), keys(1), mu=1e-2)
    near(walk.slopes(x, y, keys()[0], 1e-2), torch.from_numpy(vote))
    assert walk.layered


@on_cuda
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("family", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("model", ["roberta", "albert", "gpt2"])
def test_commits_applied_by_walks_are_commits_applied(model, family, bf16):
    """Several shapes in turn, numbers of directions that change, evaluations between: always the bits of `apply`."""
    own = to_bf16(classifier(model)) if bf16 else classifier(model)
    reference, cuda = Parameters.of(own), Parameters.of(copy.deepcopy(own).cuda())
    walk = Walk(cuda, cross_entropy, torch.bfloat16)
    for t in range(10):
        x, y = prompts(2, batch=(8, 20)[t % 2], width=(9, 19, 30)[t % 3])
        walk.slopes(x.cuda(), y.cuda(), DirectionKey(1, t), 1e-2, family)
        commit = Commit(1, t, 0.05, np.sin(np.arange(1.0, 2 + t % 3))[None], family)
        reference.apply(commit)
        cuda.defer(commit)
        if t in (4, 7, 9):
            cuda.settle()
            walk.model(x[0].cuda())
            assert cuda.fingerprint() == reference.fingerprint()
    assert walk.layered


class ReadsAValue(torch.nn.Module):
    """A block whose launches depend on a value, which it reads `by` a way that torch notices, or a capture only."""

    def __init__(self, inner, by):
        super().__init__()
        self.scale, self.inner, self.by = torch.nn.Parameter(torch.ones(1)), inner, by

    def forward(self, hidden, *rest):
        if self.by == "item":
            return self.inner(hidden, *rest) * (self.scale if float(hidden.sum().item()) else 1)
        torch.cuda.synchronize()
        return self.inner(hidden, *rest) * self.scale


def rounds_of(walk, *, graphs=True, rounds=6):
    """The votes of some rounds with batches of several shapes, whose commits are applied by the walks that follow."""
    votes = []
    for t in range(rounds):
        x, y = (part.cuda() for part in prompts(2, batch=(8, 20)[t % 2], width=(9, 19)[t // 2 % 2]))
        votes.append(walk.slopes(x, y, DirectionKey(1, t), 1e-2, "rademacher").clone())
        if not graphs:
            walk._graphs = None
        walk.parameters.defer(Commit(1, t, 0.05, np.sin(np.arange(1.0, 3.0))[None], "rademacher"))
    walk.parameters.settle()
    return torch.stack(votes).cpu(), walk.parameters.fingerprint()


@on_cuda
@pytest.mark.parametrize("model", ["mixtral", "gpt-oss", "mamba", "lfm2"])
def test_blocks_whose_launches_do_not_depend_on_values_are_captured(model):
    found = []
    for graphs in (True, False):
        walk = Walk(Parameters.of(classifier(model).cuda()), cross_entropy, torch.bfloat16)
        if not graphs:
            walk._graphs = None
        found.append(rounds_of(walk, graphs=graphs))
        assert walk.layered
        assert (walk._graphs is not None and len(walk._graphs._known) > 1) == graphs
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@on_cuda
@pytest.mark.parametrize("by", ["item", "synchronize"])
def test_a_block_that_reads_a_value_is_walked_without_graphs(by):
    found = []
    for graphs in (True, False):
        own = classifier("llama")
        layer = own.whole.base_model.layers[1]
        layer.mlp = ReadsAValue(layer.mlp, by)
        walk = Walk(Parameters.of(own.cuda()), cross_entropy, torch.bfloat16)
        assert walk._graphs is not None
        if not graphs:
            walk._graphs = None
        found.append(rounds_of(walk, graphs=graphs))
        assert walk.layered
        assert walk._graphs is None
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@on_cuda
def test_a_graph_serves_other_rounds():
    walk = Walk(Parameters.of(classifier("roberta").cuda()), cross_entropy)
    x, y = (part.cuda() for part in prompts(2, batch=16, width=16))
    batch = walk.batch(x, y)
    first = [walk.along(batch, key, 1e-2) for key in keys(4)]
    captured = dict(walk._graphs._known)
    again = [walk.along(batch, key, 1e-2) for key in keys(4)]
    assert walk._graphs._known == captured
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, again, strict=True))
    assert len({tuple(slopes.tolist()) for slopes in first}) == 4


@on_cuda
def test_a_capture_outlives_garbage():
    """A graph in a reference cycle, as of a walk that is gone, must not be destroyed while another one is captured."""
    old, captures = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(old):
        torch.zeros(1, device="cuda")
    graphs = [old]
    del old

    def losses(model, batch):
        if torch.cuda.is_current_stream_capturing():
            captures.append(len(graphs))
            cycle: list[object] = [graphs.pop()] if graphs else []
            cycle.append(cycle)
            del cycle
            _ = [[] for _ in range(10_000)]  # more than enough for the collector to run, if it may
        return cross_entropy(model, batch)

    walk = Walk(Parameters.of(classifier("roberta").cuda()), losses)
    slopes = walk.slopes(*(part.cuda() for part in prompts(2, batch=16, width=16)), KEYS[0], 1e-2)
    assert captures[0] == 1
    assert torch.isfinite(slopes).all()
    assert gc.isenabled()


def test_the_source_of_a_cuda_device_can_be_captured():
    from cyber0.layerwise.cuda import CudaSource
    from cyber0.layerwise.source import CapturableSource, Layout

    assert isinstance(CudaSource(Layout(Parameters.of(torch.nn.Linear(3, 2).to(DEVICE)))), CapturableSource)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(1, 1), (3, 21), (70, 64), (33, 129)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_packed_and_unpacked_to_the_bits_of_the_cpu(shape, bits, dtype):
    from cyber0.layerwise import kernels
    from cyber0.layerwise.packing import NORMAL, pack, unpack

    weights = tensors([(shape[0] * shape[1], 0)], torch.float32)[0][0].view(shape)
    codes, scales = pack(weights, bits)
    for ours, theirs in zip(pack(weights.to(DEVICE), bits), (codes, scales), strict=True):
        assert same(ours, theirs)
    out = torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)
    kernels.unpack(codes.to(DEVICE), scales.to(DEVICE), out, torch.tensor(NORMAL, device=DEVICE))
    assert same(out, unpack(codes, scales, shape, dtype))


@on_cuda
@pytest.mark.parametrize("bits", [None, 4])
def test_a_streamed_base_gives_the_votes_of_one_on_the_device(bits):
    """From pinned memory and from memory that is not; some layers stay on the device."""
    from cyber0.layerwise.stream import stream_linears

    x, y = (each.cuda() for each in prompts())
    found, moved = [], []
    for share, free in ((None, None), (2.0, None), (0.5, None), (0.5, 0)):
        model = classifier("llama", f"lora(rank=2, bits={bits})").cuda()
        if share is not None:
            moved.append(stream_linears(model, torch.device("cuda"), memory_for(model, share), free).moved)
        walk = Walk(Parameters.of(model), cross_entropy)
        walk._graphs = None
        found.append(torch.stack([walk.slopes(x, y, key, 1e-3).cpu() for key in keys(4)]))
    assert moved[0] == 0 < moved[1] == moved[2]
    for other in found[1:]:
        assert torch.equal(found[0], other)


@on_cuda
@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("buffers", [2, 4])
def test_graphs_bring_streamed_weights_and_other_passes_come_between(bits, buffers, monkeypatch):
    from cyber0.layerwise import stream

    monkeypatch.setattr(stream, "BUFFERS", buffers)
    x, y = (each.cuda() for each in prompts())
    found, scores = [], []
    for share in (None, 0.5):
        model = classifier("llama", f"lora(rank=2, bits={bits})").cuda()
        if share is not None:
            room = memory_for(model, share, buffers=4)
            assert stream.stream_linears(model, torch.device("cuda"), room).moved > 0
        walk = Walk(Parameters.of(model), cross_entropy)
        votes, seen = [], []
        for number, key in enumerate(keys(6)):
            votes.append(walk.slopes(x, y, key, 1e-3).clone())
            if number % 2:
                seen.append(walk.unperturbed(x.flatten(0, 1)).clone())
        assert walk._graphs is not None
        assert walk._graphs._known
        found.append(torch.stack(votes).cpu())
        scores.append(torch.stack(seen).cpu())
    assert torch.equal(*found)
    assert torch.equal(*scores)


def memory_for(model, share, buffers=2):
    """Memory for a share of the linear layers, for those that take turns, and for all that is in no linear layer."""
    from cyber0.layerwise.frozen import PackedLinear

    frozen = sum(each.nbytes for each in model.parameters() if not each.requires_grad)
    layers = [each for each in model.modules() if type(each) in (torch.nn.Linear, PackedLinear)]
    sizes = [
        sum(-(-part.nbytes // 256) * 256 for part in each.stored().values())
        if type(each) is PackedLinear
        else each.weight.nbytes
        for each in layers
        if type(each) is PackedLinear or not each.weight.requires_grad
    ]
    return (
        frozen - (0 if type(layers[0]) is PackedLinear else sum(sizes)) + buffers * max(sizes) + int(share * sum(sizes))
    )
