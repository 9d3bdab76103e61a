"""Small random language models of many families, as classifiers, and ragged prompts for them."""

from functools import cache

import pytest
import torch
from torch import nn

from cyber0.directions import DirectionKey
from cyber0.tasks.text import adapters
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.heads import Head
from cyber0.tasks.text.tokens import PAD

transformers = pytest.importorskip("transformers")
MASK = 4
COMMON = {"vocab_size": 40, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
LONG = {"max_position_embeddings": 40}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES = {
    "bert": ("Bert", "masked", SHAPE | LONG),
    "roberta": ("Roberta", "masked", SHAPE | LONG),
    "distilbert": ("DistilBert", "masked", {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32} | LONG),
    "electra": ("Electra", "masked", SHAPE | LONG | {"embedding_size": 8}),
    "albert": ("Albert", "masked", SHAPE | LONG | {"embedding_size": 8}),
    "modernbert": ("ModernBert", "pooled", SHAPE | LONG | {"cls_token_id": 0, "sep_token_id": 2}),
    "gpt2": ("GPT2", "causal", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}),
    "opt": ("OPT", "causal", SHAPE | LONG | {"ffn_dim": 32, "word_embed_proj_dim": 16}),
    "llama": ("Llama", "causal", SHAPE | LONG | GROUPED),
    "qwen2": ("Qwen2", "causal", SHAPE | LONG | GROUPED),
    "encoder": ("Bert", "pooled", SHAPE | LONG),
}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
BLOCKS = {  # modules with parameters of their own beside children, or whose parameters others read
    "mixtral": ("Mixtral", "causal", SHAPE | LONG | GROUPED | EXPERTS),
    "gpt-oss": ("GptOss", "causal", SHAPE | LONG | GROUPED | EXPERTS | {"head_dim": 8}),
    "mamba": ("Mamba", "causal", {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
    "lfm2": ("Lfm2", "causal", SHAPE | LONG | GROUPED | {"layer_types": ["conv", "full_attention"]}),
}
LAST = {"GPT2": "LMHeadModel"}
ENDS = {"masked": "ForMaskedLM", "causal": "ForCausalLM", "pooled": "Model"}


def classifier(family, adapter=None, **changes):
    """A model with weights larger than fresh ones, so that it does not say the same to everything."""
    name, kind, shape = (FAMILIES | BLOCKS)[family]
    config = getattr(transformers, f"{name}Config")(**COMMON, **shape | changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = getattr(transformers, name + LAST.get(name, ENDS[kind]))(config)
        if adapter is not None:
            adapters.find(adapter)(whole, 0)
        for parameter in whole.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    head = Head(kind, 2, () if kind == "pooled" else (7, 30), MASK if kind == "masked" else None)
    return Classifier(whole, head, _linear() if kind == "pooled" else None).eval()


def _linear():
    layer = nn.Linear(16, 2)
    layer.weight.data.copy_(torch.sin(torch.arange(32.0)).view(2, 16))
    return layer


@cache
def prompts(clients=2, batch=5, width=11, seed=0):
    """Ragged prompts [clients, batch, width], each with a mask, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(8, 40, (clients, batch, width), generator=generator)
    sizes = torch.randint(3, width + 1, (clients, batch, 1), generator=generator)
    x[..., 1] = MASK
    return torch.where(torch.arange(width) < sizes, x, PAD), torch.randint(0, 2, (clients, batch), generator=generator)


def keys(count=2, round=0):
    return [DirectionKey(seed=5, round=round, index=index) for index in range(count)]
