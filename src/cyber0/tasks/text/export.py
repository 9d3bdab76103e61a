"""Write a trained model as a plain transformers folder: merged weights, configuration, tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch

from cyber0.errors import InvalidModel
from cyber0.extras import require
from cyber0.tasks.text import checkpoint
from cyber0.tasks.text.adapters import merged
from cyber0.tasks.text.classifier import Classifier

__all__ = ["export", "load_weights"]


def load_weights(classifier: Classifier, path: Path | str) -> Classifier:
    """Load the weights that a run has written, its `model.safetensors`, into a classifier; return the classifier.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> from cyber0.tasks.text.heads import Head
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "encoder"))).load()
    >>> classifier, path = Classifier(model, Head("pooled", classes=2)), Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> save_file({"embeddings.weight": torch.ones(2)}, path)
    >>> load_weights(classifier, path)
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: ...model.safetensors holds other weights than this model trains: it lacks \
embeddings.word_embeddings.weight
    """
    found: Any = require("safetensors.torch", extra="train").load_file(path)
    with torch.no_grad():
        for name, parameter in classifier.named_parameters():
            if not parameter.requires_grad:
                continue
            if name not in found:
                raise InvalidModel(f"{path} holds other weights than this model trains: it lacks {name}")
            if found[name].shape != parameter.shape:
                raise InvalidModel(
                    f"{path} is of another model or task: its {name} is {list(found[name].shape)}, "
                    f"and this one's {list(parameter.shape)}"
                )
            parameter.copy_(found[name])
    return classifier


def export(classifier: Classifier, folder: Path | str) -> Path:
    """Write a folder that AutoModelForMaskedLM, AutoModelForCausalLM or AutoModel of transformers can load.

    Adapters are added to the weights. A pooled model's linear layer is in `classifier.safetensors`, and how the
    sentence embeddings are made in `classifier.json`.

    >>> import tempfile
    >>> from transformers import AutoModelForCausalLM
    >>> from cyber0.tasks.text import checkpoint, tiny
    >>> from cyber0.tasks.text.heads import Head
    >>> found = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama")))
    >>> classifier = Classifier(found.load(), Head("causal", classes=2, label_ids=(7, 30)))
    >>> folder = export(classifier, Path(tempfile.mkdtemp()) / "out")
    >>> logits = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([[5, 6, 9]])).logits[:, -1, [7, 30]]
    >>> torch.allclose(logits, classifier(torch.tensor([[5, 6, 9]])))
    True
    """
    folder, safetensors = Path(folder), require("safetensors.torch", extra="train")
    folder.mkdir(parents=True, exist_ok=True)
    classifier.whole.config.save_pretrained(folder)
    checkpoint.get_checkpoint(classifier.whole.name_or_path, classifier.label_head.kind).tokenizer.save_pretrained(
        folder
    )
    safetensors.save_file(_once(classifier), folder / "model.safetensors", metadata={"format": "pt"})
    if classifier.label_head.kind == "pooled":
        layer = {name: tensor.detach().contiguous() for name, tensor in classifier.classifier.state_dict().items()}
        safetensors.save_file(layer, folder / "classifier.safetensors")
        head = classifier.label_head
        how = {"pooling": head.pooling, "normalise": head.normalise, "scale": head.scale}
        (folder / "classifier.json").write_text(json.dumps(how), encoding="utf-8")
    return folder


def _once(classifier: Classifier) -> dict[str, torch.Tensor]:
    """Return the whole model's weights, tied ones once; transformers ties them again."""
    whole = classifier.whole
    tied = {name for name, _ in whole.named_parameters(remove_duplicate=False)} - dict(whole.named_parameters()).keys()
    tied = {name.replace(".base_layer.", ".") for name in tied}
    return {name: tensor.contiguous().cpu() for name, tensor in merged(whole).items() if name not in tied}
