"""Which families of transformers the layer-wise engine walks: tiny random models of each, beside `estimate`.

    python -m benchmarks.families

A row says how a model is measured, in layers, some of them in blocks, or whole, and why; how far its scalars are from
those of `estimate`, in float32, and how well those of bf16 arithmetic correlate with them. The tests take their models
from here.
"""

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from benchmarks.measure import Row, report
from cyber0.directions import DirectionKey
from cyber0.errors import InvalidEstimate
from cyber0.estimate import estimate
from cyber0.layerwise import LayerwiseEstimate
from cyber0.layerwise.modules import blocks, trained
from cyber0.parameters import Parameters
from cyber0.tasks.task import cross_entropy
from cyber0.tasks.text import adapters
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.heads import Head
from cyber0.tasks.text.tokens import PAD

Tensor = torch.Tensor
Family = tuple[str, str, dict[str, Any]]  # how its classes begin, its head, its shape
MASK = 4
COMMON = {"vocab_size": 40, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 40}
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DISTILLED = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
GROUPED = SHAPE | {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDER = GROUPED | {"head_dim": 8}
ALIKE = SHAPE | {"num_key_value_heads": 2}
DISENTANGLED = SHAPE | {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
STATES = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
FAMILIES: dict[str, Family] = {
    "bert": ("Bert", "masked", SHAPE),
    "roberta": ("Roberta", "masked", SHAPE),
    "distilbert": ("DistilBert", "masked", DISTILLED),
    "electra": ("Electra", "masked", SHAPE | {"embedding_size": 8}),
    "albert": ("Albert", "masked", SHAPE | {"embedding_size": 8}),
    "modernbert": ("ModernBert", "pooled", SHAPE | {"cls_token_id": 0, "sep_token_id": 2}),
    "gpt2": ("GPT2", "causal", GPT),
    "opt": ("OPT", "causal", SHAPE | {"ffn_dim": 32, "word_embed_proj_dim": 16}),
    "llama": ("Llama", "causal", GROUPED),
    "qwen2": ("Qwen2", "causal", GROUPED),
    "encoder": ("Bert", "pooled", SHAPE),
}
BLOCKS: dict[str, Family] = {  # trained parameters beside children, or such that others read
    "mixtral": ("Mixtral", "causal", GROUPED | EXPERTS),
    "gpt-oss": ("GptOss", "causal", WIDER | EXPERTS),
    "mamba": ("Mamba", "causal", STATES),
    "lfm2": ("Lfm2", "causal", GROUPED | {"layer_types": ["conv", "full_attention"]}),
}
OTHERS: list[Family] = [
    *((name, "masked", SHAPE) for name in ("XLMRoberta", "XLMRobertaXL", "Camembert", "Ernie", "RoFormer", "MPNet")),
    *((name, "masked", SHAPE | {"embedding_size": 16}) for name in ("ConvBert", "SqueezeBert")),
    ("ModernBert", "masked", SHAPE | {"cls_token_id": 0, "sep_token_id": 2}),
    ("Deberta", "masked", DISENTANGLED),
    ("DebertaV2", "masked", DISENTANGLED | {"norm_rel_ebd": "layer_norm", "share_att_key": True}),
    ("DistilBert", "pooled", DISTILLED),
    ("MPNet", "pooled", SHAPE),
    *(
        (name, "causal", GROUPED)
        for name in ("Mistral", "Olmo2", "Starcoder2", "Cohere", "Granite", "SmolLM3", "Arcee")
    ),
    *(
        (name, "causal", ALIKE)
        for name in ("Phi", "Phi3", "Olmo", "GPTNeoX", "StableLm", "Nemotron", "Exaone4", "BioGpt")
    ),
    *((name, "causal", WIDER) for name in ("Qwen3", "Gemma", "Gemma2", "Glm", "Ernie4_5")),
    ("Helium", "causal", ALIKE | {"head_dim": 8}),
    ("Bloom", "causal", {"hidden_size": 16, "n_layer": 2, "n_head": 2}),
    ("Falcon", "causal", SHAPE | {"num_kv_heads": 2}),
    ("GPTJ", "causal", GPT | {"rotary_dim": 4}),
    ("GPTNeo", "causal", {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["local"], 2]]}),
    ("Mpt", "causal", {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 40}),
    ("XGLM", "causal", {"d_model": 16, "num_layers": 2, "attention_heads": 2, "ffn_dim": 32}),
    ("Mamba2", "causal", STATES | {"num_heads": 4, "head_dim": 8, "n_groups": 1}),
    ("DeepseekV3", "causal", SHAPE | LATENT | ROUTED | {"moe_intermediate_size": 16}),
    ("Qwen2Moe", "causal", GROUPED | EXPERTS | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
]
LAST = {"GPT2": "LMHeadModel"}
ENDS = {"masked": "ForMaskedLM", "causal": "ForCausalLM", "pooled": "Model"}


def main() -> None:
    transformers.logging.set_verbosity_error()
    rows = [tried(family) for family in (*FAMILIES.values(), *BLOCKS.values(), *OTHERS)]
    report("families", rows, "python -m benchmarks.families")


def tried(family: Family) -> Row:
    """How a model of a family is measured, and how well."""
    parameters, (x, y) = Parameters.of(built(family)), prompts(1, 24, 31)
    keys = [DirectionKey(5, 0, index=index) for index in range(12)]
    given: Any = (parameters, cross_entropy, (x[0], y[0]), keys)
    along: Any = {"mu": 1e-2, "family": "gaussian"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exact, walking = estimate(*given, **along), LayerwiseEstimate(torch.float32)
        found = walking(*given, **along)
        try:
            coarse = LayerwiseEstimate(torch.bfloat16)(*given, **along)
        except InvalidEstimate:  # its own code does not run so
            coarse = None
    why = [str(each.message).partition("(")[2].rpartition(")")[0] for each in said if "walked" in str(each.message)]
    return {
        "family": family[0],
        "head": family[1],
        "measured": described(walking.walk(parameters, cross_entropy)) + (f": {why[0]}" if why else ""),
        "error, relative": float(np.abs(found - exact).max() / np.abs(exact).max()),
        "correlation of bf16": None if coarse is None else float(np.corrcoef(coarse, exact)[0, 1]),
    }


def described(walk: Any) -> str:
    """In layers, in blocks or whole."""
    if walk.handlers is None:
        return "whole"
    kinds = dict.fromkeys(type(block).__name__ for block in blocks(walk.handlers))
    most = max(map(trained, blocks(walk.handlers)), default=0) / trained(walk.module)
    return f"in layers; blocks: {', '.join(kinds)}, up to {most:.0%} of the weights" if kinds else "in layers"


def built(family: Family, adapter: str | None = None, **changes: Any) -> Classifier:
    """A classifier with weights larger than fresh ones, so that it does not say the same to everything."""
    name, kind, shape = family
    config = getattr(transformers, f"{name}Config")(**COMMON | shape | changes)
    random: Any = torch.random
    with random.fork_rng(devices=[]):
        random.manual_seed(0)
        whole = getattr(transformers, name + LAST.get(name, ENDS[kind]))(config)
        if adapter is not None:
            adapters.get_adapter(adapter)(whole, 0)
        for parameter in whole.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    which: Any = kind
    head = Head(which, 2, () if kind == "pooled" else (7, 30), MASK if kind == "masked" else None)
    return Classifier(whole, head, _linear() if kind == "pooled" else None).eval()


def _linear() -> nn.Linear:
    layer = nn.Linear(16, 2)
    layer.weight.data.copy_(torch.sin(torch.arange(32.0)).view(2, 16))
    layer.bias.data.copy_(torch.tensor([0.3, -0.3]))
    return layer


@cache
def prompts(clients: int = 2, batch: int = 5, width: int = 11, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ragged prompts [clients, batch, width], each with a mask, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(8, 40, (clients, batch, width), generator=generator)
    sizes = torch.randint(3, width + 1, (clients, batch, 1), generator=generator)
    x[..., 1] = MASK
    return torch.where(torch.arange(width) < sizes, x, PAD), torch.randint(0, 2, (clients, batch), generator=generator)


if __name__ == "__main__":
    main()
