"""Which families of transformers the layer-wise engine walks: tiny random models of each, beside two whole copies.

    python -m benchmarks.families [NAME ...]

A row says how a model is measured, in layers, some of them in blocks, or whole, and why; how far its scalars are from
those of `estimate`, in float32, and how well those of bf16 arithmetic correlate with them. A family is a prefix of the
class names in transformers.
"""

import argparse
import warnings
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from benchmarks.measure import Row, report
from cyber0.directions import DirectionKey
from cyber0.errors import InvalidEstimate
from cyber0.estimate import estimate
from cyber0.layerwise import Walking
from cyber0.layerwise.modules import blocks, trained
from cyber0.parameters import Parameters
from cyber0.tasks.task import cross_entropy
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.heads import Head
from cyber0.tasks.text.tokens import PAD

Tensor = torch.Tensor
VOCABULARY, MASK, WIDTH = 40, 4, 31
ALONG: Any = {"mu": 1e-2, "family": "gaussian"}
COMMON = {"vocab_size": VOCABULARY, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SHAPE = LAYERS | {"max_position_embeddings": WIDTH + 9, "num_key_value_heads": 2}
ENDS = {"masked": "ForMaskedLM", "causal": "ForCausalLM", "pooled": "Model"}
NARROW = {"embedding_size": 16}
EXPERTS = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DISENTANGLED = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
MAMBA = {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1}
FAMILIES: dict[str, dict[str, dict[str, Any]]] = {
    "masked": {
        **{name: {} for name in ("Bert", "Roberta", "XLMRoberta", "XLMRobertaXL", "Camembert", "Ernie", "RoFormer")},
        "Albert": {"embedding_size": 8},
        "ConvBert": NARROW,
        "Deberta": DISENTANGLED,
        "DebertaV2": DISENTANGLED | {"norm_rel_ebd": "layer_norm", "share_att_key": True},
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
        "Electra": {"embedding_size": 8},
        "ModernBert": {"cls_token_id": 0, "sep_token_id": 2},
        "MPNet": {},
        "SqueezeBert": NARROW,
    },
    "pooled": {"Bert": {}, "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}, "MPNet": {}},
    "causal": {
        **{name: {} for name in ("Llama", "Mistral", "Qwen2", "Phi", "Phi3", "Olmo", "Olmo2", "GPTNeoX", "Arcee")},
        **{
            name: {}
            for name in ("StableLm", "Starcoder2", "Cohere", "Granite", "SmolLM3", "Nemotron", "Exaone4", "BioGpt")
        },
        **{name: {"head_dim": 8} for name in ("Qwen3", "Gemma", "Gemma2", "Glm", "Ernie4_5", "Helium")},
        "Bloom": {"n_layer": 2, "n_head": 2},
        "DeepseekV3": LATENT | ROUTED,
        "Falcon": {"num_kv_heads": 2},
        "GPT2": GPT,
        "GPTJ": GPT | {"rotary_dim": 4},
        "GPTNeo": {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8},
        "GptOss": EXPERTS | {"head_dim": 8},
        "Lfm2": {"layer_types": ["conv", "full_attention"]},
        "Mamba": MAMBA,
        "Mamba2": MAMBA,
        "Mixtral": EXPERTS,
        "Mpt": {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 40},
        "OPT": {"ffn_dim": 32, "word_embed_proj_dim": 16},
        "Qwen2Moe": EXPERTS | {"shared_expert_intermediate_size": 16},
        "XGLM": {"d_model": 16, "num_layers": 2, "attention_heads": 2, "ffn_dim": 32},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="families to try, of all")
    only = parser.parse_args().names
    transformers.logging.set_verbosity_error()
    every = [(name, kind, shape) for kind, some in FAMILIES.items() for name, shape in some.items()]
    rows = [tried(*family) for family in every if not only or family[0] in only]
    report("families", rows, " ".join(["python -m benchmarks.families", *only]))


def tried(name: str, kind: str, shape: dict[str, Any]) -> Row:
    """How a model of a family is measured, and how well."""
    parameters, keys = Parameters.of(built(name, kind, shape)), [DirectionKey(5, 0, index=index) for index in range(12)]
    x, y = prompts()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exact = estimate(parameters, cross_entropy, (x, y), keys, **ALONG)
        walking = Walking(torch.float32)
        found = walking(parameters, cross_entropy, (x, y), keys, **ALONG)
        try:
            coarse = Walking(torch.bfloat16)(parameters, cross_entropy, (x, y), keys, **ALONG)
        except InvalidEstimate:  # its own code does not run so
            coarse = None
    why = [str(each.message).partition("(")[2].rpartition(")")[0] for each in said if "walked" in str(each.message)]
    return {
        "family": name,
        "head": kind,
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


def built(name: str, kind: str, shape: dict[str, Any]) -> Classifier:
    """A tiny model with weights larger than fresh ones, so that it does not say the same to everything."""
    config = getattr(transformers, f"{name}Config")(**COMMON | SHAPE | shape)
    random: Any = torch.random
    with random.fork_rng(devices=[]):
        random.manual_seed(0)
        whole = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else name + ENDS[kind])(config)
        for parameter in whole.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
        last = nn.Linear(16, 2) if kind == "pooled" else None
    head = Head(kind, 2, () if kind == "pooled" else (7, 30), MASK if kind == "masked" else None)  # type: ignore[arg-type]
    return Classifier(whole, head, last).eval()


def prompts(count: int = 24) -> tuple[Tensor, Tensor]:
    """Ragged prompts, each with a mask, and their labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(8, VOCABULARY, (count, WIDTH), generator=generator)
    sizes = torch.randint(3, WIDTH + 1, (count, 1), generator=generator)
    x[:, 1] = MASK
    return torch.where(torch.arange(WIDTH) < sizes, x, PAD), torch.randint(0, 2, (count,), generator=generator)


if __name__ == "__main__":
    main()
