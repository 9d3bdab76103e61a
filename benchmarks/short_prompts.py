"""Attention over short prompts on a CPU: our kernel beside torch's, in turns.

    python -m benchmarks.short_prompts

Shapes of MiniLM, RoBERTa-large (neither is causal; their keys are masked, as padded texts have it) and SmolLM2 (causal,
three heads share keys), both signs of a batch. A row gives the largest error of each, too, beside attention in float64.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.measure import Row, report, seconds
from cyber0.layerwise.native_attention import attention, supports
from cyber0.threads import cores

COMMAND = "python -m benchmarks.short_prompts"
MODELS = {"MiniLM": (12, 12, 32), "SmolLM2-135M": (9, 3, 64), "RoBERTa-large": (16, 16, 64)}  # heads, of keys, width
BATCHES = ((64, 16), (64, 53), (16, 64), (16, 128))  # samples, tokens
REPEATS = 41


def row(model: str, samples: int, tokens: int, dtype: torch.dtype) -> Row:
    heads, groups, width = MODELS[model]
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(samples, tokens, count, width, generator=generator).to(dtype).transpose(1, 2)
        for count in (heads, groups, groups)
    )
    causal, mask = groups < heads, None
    if not causal:
        lengths = torch.randint(tokens // 2, tokens + 1, (samples, 1), generator=generator)
        mask = (torch.arange(tokens) < lengths)[:, None, None, :]

    def torchs(dtype: torch.dtype) -> torch.Tensor:
        q, k, v = query.to(dtype), key.to(dtype), value.to(dtype)
        return scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=causal).transpose(1, 2)

    def ours() -> torch.Tensor:
        return attention(query, key, value, mask, width**-0.5, causal=causal)

    if not supports(query, key, value, mask):
        raise SystemExit("our attention was not compiled, or not for this processor")
    exact = torchs(torch.float64)
    spent = seconds(ours, lambda: torchs(dtype), repeats=REPEATS)
    errors = [float((found - exact).abs().max()) for found in (ours(), torchs(dtype))]
    times = {"ours, ms": 1e3 * spent[0], "torch, ms": 1e3 * spent[1], "times as fast": spent[1] / spent[0]}
    what = {"model": model, "samples": samples, "tokens": tokens, "type": str(dtype).removeprefix("torch.")}
    return what | times | {"error": errors[0], "error of torch": errors[1]}


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(cores())
    types = torch.float32, torch.bfloat16
    report("short_prompts_cpu", [row(m, *batch, t) for m in MODELS for batch in BATCHES for t in types], COMMAND)


if __name__ == "__main__":
    main()
