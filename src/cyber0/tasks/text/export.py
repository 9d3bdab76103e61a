"""Write a trained model as a folder for transformers or peft: weights, configuration, tokenizer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from cyber0.errors import InvalidModel
from cyber0.extras import require
from cyber0.tasks.text import checkpoint
from cyber0.tasks.text.adapters import merged
from cyber0.tasks.text.classifier import Classifier
from cyber0.tasks.text.completer import Writer
from cyber0.tasks.text.tagger import Tagger

__all__ = ["export", "export_adapter", "export_pipeline", "export_tagger", "load_weights"]

Model = TypeVar("Model", Classifier, Writer, Tagger)


def load_weights(classifier: Model, path: Path | str) -> Model:
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


def export(classifier: Classifier | Writer, folder: Path | str) -> Path:
    """Write a folder that transformers loads by AutoModelForMaskedLM, ...CausalLM or ...Seq2SeqLM, or by AutoModel.

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
    _save_tokenizer(classifier, folder)
    safetensors.save_file(_once(classifier), folder / "model.safetensors", metadata={"format": "pt"})
    if isinstance(classifier, Classifier) and classifier.kind == "pooled":
        layer = {name: tensor.detach().contiguous() for name, tensor in classifier.classifier.state_dict().items()}
        safetensors.save_file(layer, folder / "classifier.safetensors")
        head = classifier.label_head
        how = {"pooling": head.pooling, "normalise": head.normalise, "scale": head.scale}
        (folder / "classifier.json").write_text(json.dumps(how), encoding="utf-8")
    return folder


def export_pipeline(
    classifier: Classifier,
    classes: Sequence[str],
    folder: Path | str,
    length: int,
    *,
    centre: float = 0.0,
    spread: float = 1.0,
) -> Path:
    """Write a pooled classifier as a folder that `pipeline("text-classification")` of transformers loads and runs.

    It has the names of the classes. `trust_remote_code=True` lets transformers use the one file of code in it, without
    which no class of transformers pools hidden states as sentence encoders do. A model with one output gives a number:
    its output times `spread`, plus `centre`.

    >>> import tempfile
    >>> from transformers import pipeline
    >>> from cyber0.tasks.text import tiny
    >>> from cyber0.tasks.text.heads import Head
    >>> found = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "encoder")))
    >>> classifier = Classifier(found.load(), Head("pooled", classes=2))
    >>> folder = export_pipeline(classifier, ["bad", "good"], Path(tempfile.mkdtemp()) / "out", length=32)
    >>> [answer] = pipeline("text-classification", str(folder), trust_remote_code=True)("a lovely film")
    >>> answer["label"] in ("bad", "good"), answer["score"]
    (True, 0.5)
    """
    folder, safetensors = Path(folder), require("safetensors.torch", extra="train")
    folder.mkdir(parents=True, exist_ok=True)
    head, encoder = classifier.label_head, classifier.whole.config.to_dict()
    code = "pooled_classifier"
    config = {
        "architectures": ["PooledClassifier"],
        "auto_map": {
            "AutoConfig": f"{code}.PooledClassifierConfig",
            "AutoModelForSequenceClassification": f"{code}.PooledClassifier",
        },
        "model_type": "pooled-classifier",
        "encoder": encoder,
        "encoder_class": type(classifier.whole).__name__,
        "pooling": head.pooling,
        "normalise": head.normalise,
        "scale": head.scale * spread,
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
        "dtype": "float32",
        **({"problem_type": "regression"} if head.classes == 1 else {}),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / f"{code}.py").write_bytes(Path(__file__).with_name(f"{code}.py").read_bytes())
    _save_tokenizer(classifier, folder, length)
    tensors = {f"encoder.{name}": tensor for name, tensor in _once(classifier).items()}
    layer = classifier.classifier.state_dict().items()
    tensors |= {f"classifier.{name}": tensor.detach().cpu().contiguous() for name, tensor in layer}
    tensors["classifier.bias"] = tensors["classifier.bias"] + centre / (head.scale * spread)
    safetensors.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def export_tagger(tagger: Tagger, labels: Sequence[str], folder: Path | str, length: int) -> Path:
    """Write a model that labels words as a folder that `pipeline("token-classification")` of transformers loads.

    >>> import tempfile
    >>> from transformers import pipeline
    >>> from cyber0.tasks.text import tiny
    >>> found = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "encoder")))
    >>> folder = export_tagger(Tagger(found.load(), labels=2), ["O", "B-PER"], Path(tempfile.mkdtemp()) / "out", 32)
    >>> [answer, *_] = pipeline("token-classification", str(folder), ignore_labels=[])("a film")
    >>> answer["entity"], answer["word"]
    ('O', 'a')
    """
    transformers, folder, whole = require("transformers", extra="text"), Path(folder), tagger.whole
    config: Any = transformers.AutoConfig.from_pretrained(whole.name_or_path)
    config.id2label, config.label2id = dict(enumerate(labels)), {name: place for place, name in enumerate(labels)}
    try:
        plain: Any = transformers.AutoModelForTokenClassification.from_config(config)
    except ValueError as error:
        raise InvalidModel(f"transformers has no class that labels words for {type(whole).__name__}") from error
    prefix = f"{plain.base_model_prefix}."
    layer = next(name.rpartition(".")[0] for name, _ in plain.named_parameters() if not name.startswith(prefix))
    tensors = {f"{prefix}{name}": tensor for name, tensor in _once(tagger).items()}
    tensors |= {f"{layer}.{name}": tensor.detach().cpu() for name, tensor in tagger.classifier.state_dict().items()}
    lacking = plain.load_state_dict(tensors, strict=False).missing_keys
    probe = torch.tensor([[3, 5, 4, 6]])
    with torch.no_grad():
        same = not lacking and torch.allclose(plain.eval()(probe).logits, tagger.cpu()(probe), rtol=1e-4, atol=1e-5)
    if not same:
        raise InvalidModel(f"{type(plain).__name__} of transformers does not compute what this model does")
    plain.save_pretrained(folder)
    _save_tokenizer(tagger, folder, length)
    return folder


def export_adapter(classifier: Classifier | Writer, folder: Path | str) -> Path:
    """Write the adapter of a masked or causal model as a folder of peft: `PeftModel.from_pretrained(model, folder)`.

    >>> import tempfile
    >>> from cyber0.tasks.text import adapters, tiny
    >>> from cyber0.tasks.text.heads import Head
    >>> model = checkpoint.get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama"))).load()
    >>> adapters.lora(model, seed=0, rank=2)
    >>> classifier = Classifier(model, Head("causal", classes=2, label_ids=(7, 30)))
    >>> sorted(path.name for path in export_adapter(classifier, Path(tempfile.mkdtemp()) / "out").iterdir())
    ['adapter_config.json', 'adapter_model.safetensors']
    """
    folder, whole = Path(folder), classifier.whole
    known: Any = getattr(whole, "peft_config", None)
    if not known or classifier.kind == "pooled":
        why = "has a linear layer beside its adapter" if known else "was trained without an adapter"
        raise InvalidModel(f"this model {why}: export it merged, without --adapter")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"base_model.model.{name.replace('.default.', '.')}": tensor.detach().cpu().contiguous()
        for name, tensor in whole.state_dict().items()
        if ".lora_" in name
    }
    config: Any = known["default"]
    config.base_model_name_or_path = whole.name_or_path
    config.save_pretrained(folder)
    save: Any = require("safetensors.torch", extra="train").save_file
    save(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def _save_tokenizer(classifier: Classifier | Writer | Tagger, folder: Path, length: int | None = None) -> None:
    tokenizer = checkpoint.get_checkpoint(classifier.whole.name_or_path, classifier.kind).tokenizer
    if length is not None:
        tokenizer.model_max_length = length
    tokenizer.save_pretrained(folder)


def _once(classifier: Classifier | Writer | Tagger) -> dict[str, torch.Tensor]:
    """Return the whole model's weights, tied ones once; transformers ties them again."""
    whole = classifier.whole
    tied = {name for name, _ in whole.named_parameters(remove_duplicate=False)} - dict(whole.named_parameters()).keys()
    tied = {name.replace(".base_layer.", ".") for name in tied}
    return {name: tensor.contiguous().cpu() for name, tensor in merged(whole).items() if name not in tied}
