"""Models with an encoder and a decoder, such as T5: what the decoder makes of texts, and what a walk must be taught."""

from types import MethodType
from typing import Any

import torch
from torch import nn

from cyber0.errors import InvalidModel
from cyber0.layerwise.modules import SignPair
from cyber0.layerwise.patched import in_float32
from cyber0.tasks.text.tokens import PAD

__all__ = ["RelativeBias", "decoded", "logit_scale", "teach_relative_bias"]

Tensor = torch.Tensor


def decoded(whole: Any, source: dict[str, Any], targets: Tensor) -> Tensor:
    """Return the last hidden states of the decoder [batch, slots, hidden], each before one of the targets' tokens."""
    encoded = whole.get_encoder()(**source).last_hidden_state
    begin = torch.full_like(targets[:, :1], start_token(whole))
    shifted = torch.cat([begin, targets[:, :-1]], dim=1)
    return whole.get_decoder()(
        input_ids=torch.where(shifted == PAD, start_token(whole), shifted).long(),
        encoder_hidden_states=encoded,
        encoder_attention_mask=source["attention_mask"],
        use_cache=False,
    ).last_hidden_state


def start_token(whole: Any) -> int:
    """Return the token that a decoder begins with."""
    known = (getattr(whole.config, name, None) for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"))
    own = getattr(whole.generation_config, "decoder_start_token_id", None)
    return next(token for token in (own, *known, 0) if token is not None)


def logit_scale(whole: Any) -> float:
    """Return what the last hidden states are multiplied with before the output embeddings; T5 scales them.

    A model whose logits are anything else than that is refused.
    """
    decoder, probe = whole.get_output_embeddings(), torch.tensor([[3, 5, 4, 6]])
    if not isinstance(decoder, nn.Linear):
        raise InvalidModel(f"the output embeddings are {type(decoder).__name__}, not Linear: use another model")
    with torch.no_grad(), in_float32(whole):
        if whole.config.is_encoder_decoder:
            own = whole(input_ids=probe, decoder_input_ids=_shifted(whole, probe), use_cache=False).logits
            source = {"input_ids": probe, "attention_mask": torch.ones_like(probe)}
            hidden = decoded(whole, source, probe)
        else:
            own = whole(input_ids=probe, use_cache=False).logits
            hidden = whole.base_model(input_ids=probe, use_cache=False).last_hidden_state
        for scale in (1.0, whole.config.hidden_size**-0.5):
            ours = decoder(hidden * scale)
            if own.shape == ours.shape and torch.allclose(own, ours, rtol=1e-4, atol=1e-5):
                return scale
    raise InvalidModel(
        f"{type(whole).__name__} changes its logits after the output embeddings, which is not supported: use another "
        "model"
    )


def _shifted(whole: Any, tokens: Tensor) -> Tensor:
    return torch.cat([torch.full_like(tokens[:, :1], start_token(whole)), tokens[:, :-1]], dim=1)


class RelativeBias(nn.Module):
    """The embedding of relative positions of T5's attention, in its place: a walk gives each half of a batch its own.

    >>> bias = RelativeBias(nn.Embedding(4, 2))
    >>> bias(torch.tensor([[0, 1], [2, 0]])).shape
    torch.Size([1, 2, 2, 2])
    """

    def __init__(self, own: nn.Embedding) -> None:
        super().__init__()
        self.weight = own.weight

    def forward(self, buckets: Tensor) -> Tensor:
        """Return the bias of each head for each pair of positions, [1, heads, queries, keys]."""
        return nn.functional.embedding(buckets, self.weight).permute(2, 0, 1)[None]

    def forward_pair(self, signs: SignPair, buckets: Tensor) -> Tensor:
        """Return the same for each row of a batch in a walk, [rows, heads, queries, keys]."""
        pair = signs.source.matrix(self.weight, signs.dtype)
        if signs.unperturbed:
            return nn.functional.embedding(buckets, pair[0]).permute(2, 0, 1)[None]
        half = signs.rows // 2
        values = [nn.functional.embedding(buckets, weight).permute(2, 0, 1) for weight in pair]
        return torch.cat([value.expand(half, *value.shape) for value in values])


def teach_relative_bias(whole: nn.Module) -> None:
    """Let a walk perturb the relative positions of T5 and its kin, whose attention shares them among all samples.

    A model that computes them in another way stays as it is; it is measured in whole copies.
    """
    for module in list(whole.modules()):
        own: Any = getattr(module, "relative_attention_bias", None)
        before = _probed(module) if isinstance(own, nn.Embedding) else None
        if before is None:
            continue
        module.add_module("relative_attention_bias", RelativeBias(own))
        module.__dict__["compute_bias"] = MethodType(_compute_bias, module)
        after = _probed(module)
        if after is None or not torch.equal(before, after):
            module.add_module("relative_attention_bias", own)
            del module.__dict__["compute_bias"]


def _probed(module: Any) -> Tensor | None:
    """Return the bias of a few positions; None if it is not computed in the way of T5."""
    try:
        with torch.no_grad():
            return module.compute_bias(3, 5)
    except (AttributeError, TypeError):
        return None


def _compute_bias(
    self: Any, query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0, **_: Any
) -> Tensor:
    """Return what `compute_bias` of T5 returns, or the same for each row of a batch."""
    device = self.relative_attention_bias.weight.device if device is None else device
    queries = torch.arange(query_length, device=device)[:, None] + past_seen_tokens
    buckets = self._relative_position_bucket(
        torch.arange(key_length, device=device)[None] - queries,
        bidirectional=not self.is_decoder,
        num_buckets=self.relative_attention_num_buckets,
        max_distance=self.relative_attention_max_distance,
    )
    return self.relative_attention_bias(buckets)
