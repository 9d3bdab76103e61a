"""`cyber0 export`: a trained language model as a folder for transformers or peft."""

import json
from dataclasses import dataclass
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
from cyber0.protocol.identity import FROZEN, Identity
from cyber0.replay import Weights, begun, open_ledger, rebuild

__all__ = ["export"]

CLASSES = {"masked": "MaskedLM", "causal": "CausalLM", "seq2seq": "Seq2SeqLM"}  # of transformers, by kind


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
    push: Annotated[
        str | None,
        typer.Option(help="Upload the folder to the Hugging Face hub, too, as NAME or USER/NAME.", show_default=False),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: let everybody see it.")] = False,
) -> None:
    """Write a trained language model as a folder that plain transformers, or peft, loads and runs, labels included."""
    require("transformers", extra="text")
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise InvalidConfig(f"--out {out} exists: name a new folder")
    console = Console()
    trained = _played(run, model, data) if run.is_dir() else _rebuilt(console, run, model, data, device)
    how = _written(trained, out, adapter=adapter)
    line(console, "written to", out)
    if trained.classes:
        line(console, "classes", ", ".join(trained.classes))
    line(console, "to use it", how)
    if push is not None:
        from cyber0.tasks.text.hub import upload

        line(console, "uploaded to", upload(out, push, private=not public))


@dataclass(frozen=True, slots=True, eq=False)
class _Trained:
    """The model of a run, and what its task says about it.

    `prompt` is what a masked or causal classifier is asked, and the words of its classes; `units` are centre and spread
    of the numbers of a regression.
    """

    model: Any
    classes: tuple[str, ...] = ()
    prompt: dict[str, Any] | None = None
    length: int = 0
    units: tuple[float, float] | None = None


def _written(trained: _Trained, out: Path, *, adapter: bool) -> str:
    """Write a model, and return how to use it."""
    from cyber0.tasks.text import export as exports
    from cyber0.tasks.text.tagger import Tagger

    model, where = trained.model, repr(str(out))
    if isinstance(model, Tagger):
        exports.export_tagger(model, trained.classes, out, trained.length)
        return f"pipeline('token-classification', {where})"
    if adapter:
        exports.export_adapter(model, out)
        return f"PeftModel.from_pretrained(model, {where})"
    if model.kind == "pooled":
        centre, spread = trained.units or (0.0, 1.0)
        classes = trained.classes or ("number",)
        exports.export_pipeline(model, classes, out, trained.length, centre=centre, spread=spread)
        return f"pipeline('text-classification', {where}, trust_remote_code=True)"
    exports.export(model, out)
    if trained.prompt is not None:
        (out / "prompt.json").write_text(json.dumps(trained.prompt, indent=2) + "\n", encoding="utf-8")
    return f"AutoModelFor{CLASSES[model.kind]}.from_pretrained({where})"


def _model(agreement: Agreement, model: str | None, data: Path | None) -> _Trained:
    """Build the model of a run as it was at the start."""
    from cyber0.layerwise.measure import in_precision
    from cyber0.tasks.text.completion import completer_of
    from cyber0.tasks.text.regression import regressor_of
    from cyber0.tasks.text.tagging import tagger_of
    from cyber0.tasks.text.tasks import classifier_of
    from cyber0.tasks.trained import choose

    task, name, seed = agreement.task, model or agreement.model, agreement.seed
    kind = task.partition("(")[0].strip().replace("_", "-")
    if name is None:
        raise InvalidConfig(f"task = {task!r} trains no language model: only one that does can be exported so")
    if kind == "completion":
        trained = _Trained(completer_of(task, name, seed))
    elif kind == "text-regression":
        found, options = regressor_of(task, name, seed)
        trained = _Trained(found, length=options.length, units=(options.centre, options.spread))
    elif kind == "token-classification":
        found, labels, length = tagger_of(task, name, seed)
        trained = _Trained(found, labels, length=length)
    else:
        found, prompt, length = classifier_of(task, name, seed, data)
        words = {} if found.kind == "pooled" else prompt.words_of(found.kind)
        plain = {label: own[0] if len(own) == 1 else list(own) for label, own in words.items()}
        asked = None if not words else {"prompt": prompt.template(found.kind), "words": plain}
        trained = _Trained(found, prompt.classes, asked, length)
    choose(trained.model, agreement.train)
    in_precision(trained.model, agreement.precision)
    return trained


def _played(run: Path, model: str | None, data: Path | None) -> _Trained:
    """Return the model with the weights in a run's folder."""
    from cyber0.simulation.folder import RunFolder
    from cyber0.tasks.text.export import load_weights

    folder = RunFolder.read(run)
    if folder.summary is None:
        raise InvalidConfig(f"{run} holds a run that has not ended: continue it with cyber0 run --resume {run}")
    config = folder.config
    here = data or (None if config.data is None else Path(config.data))
    trained = _model(config, model, here)
    load_weights(trained.model, folder.weights)
    trained.model.float()
    return trained


def _check_frozen(identity: Identity, model: Any) -> None:
    """Refuse a model whose frozen weights are not those that the run was trained beside, where it tells these."""
    from cyber0.layerwise.base import frozen_digest

    known, own = identity.meaning.get(FROZEN), frozen_digest(model)
    if known is not None and own != known:
        raise InvalidParameters(
            f"the run was trained beside frozen weights of SHA-256 {known}, and this model's have {own}: give the same "
            "pretrained model by --model"
        )


def _rebuilt(console: Console, run: Path, model: str | None, data: Path | None, device: str) -> _Trained:
    """Return the model with the weights that the commits of a ledger or an export lead to."""
    from cyber0.directions.select import host

    torch = require("torch", extra="train")
    with open_ledger(run) as ledger:
        found = _model(ledger.identity.agreement, model, data)
        _check_frozen(ledger.identity, found.model)
        trained = {name: p for name, p in found.model.named_parameters() if p.requires_grad}
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
    found.model.float()
    return found
