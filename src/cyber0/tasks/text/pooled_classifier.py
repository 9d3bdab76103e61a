"""A classifier of texts: a linear layer over the pooled hidden states of an encoder.

`cyber0 export` copies this file into the folder that it writes, where transformers finds it; it needs nothing else:

    pipeline("text-classification", "FOLDER", trust_remote_code=True)
"""

from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

__all__ = ["PooledClassifier", "PooledClassifierConfig"]


class PooledClassifierConfig(PretrainedConfig):
    """The encoder's own configuration and class, and how its hidden states become the scores of classes."""

    model_type = "pooled-classifier"

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        encoder_class: str = "AutoModel",
        pooling: str = "mean",
        normalise: bool = False,
        scale: float = 1.0,
        **others: Any,
    ) -> None:
        self.encoder, self.encoder_class = encoder or {}, encoder_class
        self.pooling, self.normalise, self.scale = pooling, normalise, scale
        super().__init__(**others)


class PooledClassifier(PreTrainedModel):
    """Maps tokens to the scores of classes, `logits` [batch, classes]."""

    config_class = PooledClassifierConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # pyright: ignore[reportUnknownMemberType]
        automatic: Any = transformers.AutoConfig
        known = automatic.for_model(**config.encoder)
        make: Any = getattr(transformers, config.encoder_class)
        self.encoder: Any = make.from_config(known) if hasattr(make, "from_config") else make(known)
        self.classifier = nn.Linear(known.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Return the scores of texts, of which padding is left out by the mask."""
        config: Any = self.config
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state.float()
        weights = mask.to(hidden.dtype)[..., None]
        pooled = hidden[:, 0] if config.pooling == "cls" else (hidden * weights).sum(1) / weights.sum(1)
        pooled = nn.functional.normalize(pooled, dim=1) if config.normalise else pooled
        return SequenceClassifierOutput(logits=self.classifier(pooled) * config.scale)
