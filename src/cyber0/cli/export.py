"""`cyber0 export`: a trained language model as a folder for transformers or peft."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cyber0.cli.ledger import line
from cyber0.cli.replay import chosen
from cyber0.config import Agreement
from cyber0.errors import InvalidConfig, InvalidParameters
from cyber0.extras import require
from cyber0.progress import Progress
from cyber0.replay import Weights, begun, open_ledger, rebuild

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(help="A folder of cyber0 run, a ledger, or an exported run.")],
    out: Annotated[Path, typer.Option(help="The folder to write: a new one.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Option(help="The model it began with: a hub id or a folder. \\[default: as the run says]"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder of a prompt file of yours; no other data are needed.")
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the adapter alone, for peft, instead of a model with it merged in.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to rebuild: auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Write a trained language model as a folder that plain transformers, or peft, loads and runs, labels included."""
    require("transformers", extra="text")
    from cyber0.tasks.text.export import export as export_plain
    from cyber0.tasks.text.export import export_adapter, export_pipeline

    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise InvalidConfig(f"--out {out} exists: name a new folder")
    console = Console()
    found = _played(run, model, data) if run.is_dir() else _rebuilt(console, run, model, data, device)
    classifier, prompt, length = found
    kind = classifier.kind
    if adapter:
        export_adapter(classifier, out)
        how = f"PeftModel.from_pretrained(model, {str(out)!r})"
    elif kind == "pooled":
        export_pipeline(classifier, prompt.classes, out, length)
        how = f"pipeline('text-classification', {str(out)!r}, trust_remote_code=True)"
    else:
        export_plain(classifier, out)
        if prompt is not None:
            words = {"prompt": prompt.template(kind), "words": prompt.words_of(kind)}
            (out / "prompt.json").write_text(json.dumps(words, indent=2) + "\n", encoding="utf-8")
        how = f"AutoModelFor{'MaskedLM' if kind == 'masked' else 'CausalLM'}.from_pretrained({str(out)!r})"
    line(console, "written to", out)
    if prompt is not None:
        line(console, "classes", ", ".join(prompt.classes))
    line(console, "to use it", how)


def _classifier(agreement: Agreement, model: str | None, data: Path | None) -> tuple[Any, Any, int]:
    """Build the model of a run as it was at the start, its prompt, and how many tokens a prompt has at most.

    A model that completes texts has no prompt of a task, and no length.
    """
    from cyber0.layerwise.measure import in_precision
    from cyber0.tasks.text.completion import completer_of
    from cyber0.tasks.text.tasks import classifier_of
    from cyber0.tasks.trained import choose

    name = model or agreement.model
    if name is None:
        raise InvalidConfig(
            f"task = {agreement.task!r} trains no language model: only one that does can be exported so"
        )
    if agreement.task.startswith("completion("):
        classifier, prompt, length = completer_of(agreement.task, name, agreement.seed), None, 0
    else:
        classifier, prompt, length = classifier_of(agreement.task, name, agreement.seed, data)
    choose(classifier, agreement.train)
    return in_precision(classifier, agreement.precision, agreement.mu), prompt, length


def _played(run: Path, model: str | None, data: Path | None) -> tuple[Any, Any, int]:
    """Return the classifier with the weights in a run's folder."""
    from cyber0.simulation.folder import RunFolder
    from cyber0.tasks.text.export import load_weights

    folder = RunFolder.read(run)
    if folder.summary is None:
        raise InvalidConfig(f"{run} holds a run that has not ended: continue it with cyber0 run --resume {run}")
    config = folder.config
    here = data or (None if config.data is None else Path(config.data))
    classifier, prompt, length = _classifier(config, model, here)
    load_weights(classifier, folder.weights)
    return classifier.float(), prompt, length


def _rebuilt(console: Console, run: Path, model: str | None, data: Path | None, device: str) -> tuple[Any, Any, int]:
    """Return the classifier with the weights that the commits of a ledger or an export lead to."""
    from cyber0.directions.select import host

    torch = require("torch", extra="train")
    with open_ledger(run) as ledger:
        classifier, prompt, length = _classifier(ledger.identity.agreement, model, data)
        trained = {name: p for name, p in classifier.named_parameters() if p.requires_grad}
        arrays = {name: host(parameter.detach().cpu()).reshape(parameter.shape) for name, parameter in trained.items()}
        _, parameters = begun(ledger.identity, Weights.of(arrays))
        with Progress(console, "rebuilding", ledger.head.rounds) as progress:
            mark = rebuild(ledger, parameters, None, chosen(device), progress.update)
        known = [seal.fingerprint for seal in ledger.seals if seal.rounds == ledger.head.rounds]
        if known and known[-1] not in (None, mark):
            raise InvalidParameters(f"the run ended with fingerprint {known[-1]:016x}, but this model has {mark:016x}")
    with torch.no_grad():
        for entry, flat in parameters:
            words: Any = torch.from_numpy(flat.view("int16") if flat.itemsize == 2 else flat)
            words = words.view(torch.bfloat16) if flat.itemsize == 2 else words
            trained[entry.name].copy_(words.reshape(entry.shape))
    return classifier.float(), prompt, length
