"""A pretrained model and its tokenizer, by hub id or from a folder: safetensors only, with a trained head."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch

from cyber0.errors import InvalidModel, UnknownName
from cyber0.extras import require
from cyber0.layerwise.mapped import release
from cyber0.tasks import memory
from cyber0.tasks.loading import PRECISION
from cyber0.tasks.text.hub import ALONE, reached
from cyber0.tasks.text.prompts import Kind

__all__ = ["Checkpoint", "get_checkpoint"]

CLASSES = {
    "masked": "AutoModelForMaskedLM",
    "causal": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "pooled": "AutoModel",
}
ENDS: dict[str, Kind] = {
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForConditionalGeneration": "seq2seq",
    "MTModel": "seq2seq",
}
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A model that is not loaded yet: its configuration, its tokenizer, and the kind of its head.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> checkpoint = get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "roberta")))
    >>> checkpoint.kind, checkpoint.length
    ('masked', 60)
    >>> type(checkpoint.load()).__name__
    'RobertaForMaskedLM'
    """

    name: str
    config: Any
    tokenizer: Any
    kind: Kind

    @property
    def length(self) -> int:
        """Return how many tokens it takes at most."""
        positions = getattr(self.config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        used = 2 if "roberta" in self.config.model_type else 0  # its positions count from 2
        return min(positions - used, self.tokenizer.model_max_length)

    def load(self, prepare: Callable[[Any], None] | None = None) -> Any:
        """Return the transformers model on the CPU, without dropout, its output embeddings trained or tied.

        Weights are mapped from the files as they are stored there, then converted one after the other to the precision
        of `cyber0.tasks.loading`: float32, or bf16 for all but vectors. `prepare` is called in between, with the
        mapped model. Threads load one after another, because transformers unties every model of the process while it
        loads one.
        """
        wanted, stored = torch.bfloat16 if PRECISION.get() == "bf16" else torch.float32, self._stored()
        if prepare is not None or stored != wanted:  # else it stays in its files
            memory.check(self.parameters(), copies=1, size=wanted.itemsize if prepare is None else 1)
        model, missing = self._mapped(stored)
        if any(buffer.is_floating_point() and buffer.dtype != torch.float32 for buffer in model.buffers()):
            model, missing = self._mapped(torch.float32)  # a buffer that is no weight would be rounded, too
        if model.main_input_name != "input_ids":
            raise InvalidModel(
                f"{self.name} is a {type(model).__name__}, which reads {model.main_input_name}, no tokens"
            )
        _check_head(model, self, {key for key in missing if "pooler." not in key})
        _zero(model, missing)
        if prepare is not None:
            prepare(model)
        _convert(model, wanted)
        return model.eval()

    def _mapped(self, dtype: torch.dtype) -> tuple[Any, set[str]]:
        """Return the model in a type, and the names of the weights that its files lack."""
        automatic, random = self._class(), cast("Any", torch.random)
        options: dict[str, Any] = {"use_safetensors": True, "dtype": dtype, "output_loading_info": True}
        with quiet(), _said(self.name), reached(self.name), random.fork_rng(devices=[]):
            model, told = automatic.from_pretrained(self.name, **options)
        for config in (model.config, *(getattr(model.config, key) for key in model.config.sub_configs)):
            config.dtype = torch.float32  # that of what is exported
        return model, set(told["missing_keys"])

    def _stored(self) -> torch.dtype:
        """Return the one type that all numbers of its files have; float32 if there are several."""
        safetensors: Any = require("safetensors", extra="train")
        found: set[str] = set()
        with quiet(), _said(self.name), reached(self.name):
            for path in self._files():
                with safetensors.safe_open(path, "pt") as file:
                    found |= {file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
        numbers = {kind for kind in found if kind.startswith(("F", "BF"))}
        return TYPES.get("".join(numbers), torch.float32)

    def _files(self) -> list[Path]:
        if Path(self.name).is_dir():
            return sorted(Path(self.name).glob("*.safetensors"))
        index: Any = self._json("model.safetensors.index.json")
        names = sorted(set(index["weight_map"].values())) if index else ["model.safetensors"]
        return [path for path in map(self._path, names) if path.is_file()]

    def parameters(self) -> int:
        """Return how many parameters it has, without loading them."""
        automatic = self._class()
        with quiet(), _said(self.name), torch.device("meta"):
            model = automatic.from_config(self.config) if hasattr(automatic, "from_config") else automatic(self.config)
        return sum(parameter.numel() for parameter in model.parameters())

    def _class(self) -> Any:
        """Return the class that loads it; AutoModel does not know encoders of models that also have a decoder."""
        transformers = require("transformers", extra="text")
        named = (self.config.architectures or [""])[0]
        encoder = self.kind == "pooled" and named.endswith("EncoderModel") and hasattr(transformers, named)
        return getattr(transformers, named if encoder else CLASSES[self.kind])

    def pooling(self) -> tuple[str, bool]:
        """Return how its files for sentence-transformers say to pool: mean or cls, and whether to normalise."""
        modules: list[Any] = self._json("modules.json") or []
        folder = next((part["path"] for part in modules if part["type"].endswith("Pooling")), "1_Pooling")
        modes = self._json(f"{folder}/config.json") or {"pooling_mode_mean_tokens": True}
        for mode, pooling in POOLINGS.items():
            if modes.get(mode):
                return pooling, any(part["type"].endswith("Normalize") for part in modules)
        raise InvalidModel(
            f"{self.name} pools neither by mean nor by its first token: choose, e.g. sst2(pooling='mean')"
        )

    def _json(self, file: str) -> Any:
        path = self._path(file)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def _path(self, file: str) -> Path:
        """Return where one of its files is; a folder if there is no such file."""
        if Path(self.name).is_dir():
            return Path(self.name) / file
        quietly = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
        with reached(self.name):
            return Path(require("transformers.utils", extra="text").cached_file(self.name, file, **quietly) or "")


def get_checkpoint(name: str, head: str = "auto") -> Checkpoint:
    """Return the model of a folder or a hub id; `head` is the kind to use it as, by default what it was trained as.

    >>> import tempfile
    >>> from cyber0.tasks.text import tiny
    >>> checkpoint = get_checkpoint(str(tiny.model(tempfile.mkdtemp(), "llama")))
    >>> checkpoint.kind, checkpoint.parameters()
    ('causal', 10608)
    >>> get_checkpoint(tempfile.mkdtemp())
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: ... holds no model: there is no config.json in it
    """
    if head != "auto" and head not in get_args(Kind):
        raise UnknownName("head", head, ["auto", *get_args(Kind)])
    transformers = require("transformers", extra="text")
    if Path(name).is_dir():
        _check_folder(Path(name))
    elif Path(name).is_file():
        raise InvalidModel(f"model = {name!r} is a file: name the folder it lies in, which has config.json, too")
    elif name.startswith((".", "/", "~")) or name.count("/") > 1:  # no name on the hub looks like that
        raise InvalidModel(f"there is no folder {name}: --model takes a folder, or an id of the hub like roberta-large")
    with quiet(), _said(name), reached(name):
        config = transformers.AutoConfig.from_pretrained(name)
        _check_config(config, name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    if not tokenizer("a", add_special_tokens=False).input_ids:  # what there is without tokenizer files
        raise InvalidModel(
            f"{name} has no tokenizer: put its tokenizer.json and tokenizer_config.json beside the model"
        )
    rows, tokens = config.get_text_config().vocab_size, max(tokenizer.get_vocab().values(), default=0) + 1
    if tokens > rows:
        raise InvalidModel(
            f"{name} has embeddings of {rows:,} tokens, but its tokenizer {tokens:,}: they do not belong together"
        )
    return Checkpoint(name, config, tokenizer, _kind(config, name) if head == "auto" else head)  # type: ignore[arg-type]


def _check_config(config: Any, name: str) -> None:
    """Refuse models that cannot be trained on texts here, by what their configuration says."""
    named = (config.architectures or [type(config).__name__])[0]
    quantised: Any = getattr(config, "quantization_config", None)
    if quantised is not None:
        facts = cast("dict[str, Any]", quantised if isinstance(quantised, dict) else vars(quantised))
        how = facts.get("quant_method")
        raise InvalidModel(
            f"{name} is quantised ({how or 'by its quantization_config'}): its weights cannot be moved by small steps; "
            "use the model it was made of, with --precision bf16 to save memory"
        )
    both = config.is_encoder_decoder and not named.endswith("EncoderModel")
    if both and not named.endswith(("ForConditionalGeneration", "MTModel")):
        raise InvalidModel(
            f"{name} is a {named}, with an encoder and a decoder but without output embeddings: save it by its class "
            "...ForConditionalGeneration, or its encoder alone by ...EncoderModel, where transformers has them"
        )
    if getattr(config.get_text_config(), "vocab_size", None) is None:
        raise InvalidModel(f"{name} is a {named}, which reads no tokens: a task on texts needs a language model")


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").exists():
        raise InvalidModel(f"{folder} holds no model: there is no config.json in it")
    index = folder / "model.safetensors.index.json"
    if index.exists() and not (folder / "model.safetensors").exists():
        _check_index(index)
    if any(folder.glob("*.safetensors")):
        return
    others = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".h5"))
    if not others:
        raise InvalidModel(f"{folder} has a configuration, but no weights: put its model.safetensors there")
    raise InvalidModel(
        f"{folder} has no safetensors, only {', '.join(others)}: convert it where you trust it, by "
        f"{_class(folder)}.from_pretrained(folder).save_pretrained(other) in transformers; a pickle can run code when "
        "read"
    )


def _check_index(path: Path) -> None:
    try:
        files: Any = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except OSError as error:
        raise InvalidModel(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        files = None
    if not isinstance(files, dict) or not files:
        raise InvalidModel(f"{path} is damaged: it names no files of weights; fetch the model again")


def _class(folder: Path) -> str:
    """Return the name of the class that loads a folder's model with its head; `AutoModel` would drop the head."""
    try:
        names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures")
    except (ValueError, AttributeError):
        names = None
    return str(names[0]) if names else "AutoModel"


def _kind(config: Any, name: str) -> Kind:
    for architecture in config.architectures or ():
        for end, kind in ENDS.items():
            if architecture.endswith(end):
                return kind
        return "pooled"
    raise InvalidModel(f"{name} does not say what it was trained as: choose, e.g. sst2(head='masked')")


def _check_head(model: Any, checkpoint: Checkpoint, missing: set[str]) -> None:
    """Refuse a head with random weights; where only the output embeddings are missing, tie them to the input's."""
    decoder = None if checkpoint.kind == "pooled" else model.get_output_embeddings()
    if decoder is not None:
        name = next(name for name, module in model.named_modules() if module is decoder)
        embeddings = model.get_input_embeddings().weight
        if f"{name}.weight" in missing and decoder.weight.shape == embeddings.shape:
            decoder.weight, model.config.tie_word_embeddings = embeddings, True
            missing = missing - {f"{name}.weight"}
    if missing or (decoder is None and checkpoint.kind != "pooled"):
        lacking = ", ".join(sorted(missing)[:3]) or "its output embeddings"
        raise InvalidModel(
            f"{checkpoint.name} has no trained head as a {checkpoint.kind} model (it lacks {lacking}): "
            "use another model, or a head of its own, as in sst2(head='pooled')"
        )


def _zero(model: Any, missing: set[str]) -> None:
    """Set weights that the files lack to zero, which no score depends on: transformers draws them at random."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in missing and "pooler." in name:
                parameter.zero_()


def _convert(model: Any, dtype: torch.dtype) -> None:
    """Convert weights one after the other: matrices to a type, vectors to float32."""
    for parameter in model.parameters():
        wanted = dtype if parameter.ndim > 1 else torch.float32
        if parameter.dtype != wanted:
            stored = parameter.data
            parameter.data = stored.to(wanted)
            release(stored)


@contextmanager
def _said(name: str) -> Generator[None]:
    """Turn what transformers raises into a sentence."""
    safetensors = require("safetensors", extra="train")
    try:
        yield
    except InvalidModel:
        raise
    except safetensors.SafetensorError as error:
        raise InvalidModel(
            f"the safetensors of {name} are damaged or not whole ({error}): fetch them again; if git has left "
            "pointers of some hundred bytes in their place, run git lfs pull"
        ) from error
    except OSError as error:
        where = "cannot be used" if Path(name).is_dir() else "is no folder here, and cannot be had from the hub"
        raise InvalidModel(
            f"model = {name!r} {where} ({_first(error)}): "
            "name a folder with config.json, tokenizer files and model.safetensors"
        ) from error
    except json.JSONDecodeError as error:
        raise InvalidModel(f"a JSON file of {name} is damaged ({error}): fetch the model again") from error
    except (ValueError, KeyError, RuntimeError, AttributeError) as error:
        raise InvalidModel(
            f"model = {name!r} cannot be used so by this transformers ({_first(error)}): "
            "upgrade transformers, choose another head, or another model"
        ) from error


def _first(error: Exception) -> str:
    """Return the first sentence of an error of another library, or what it means where it is about sizes."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "ignore_mismatched_sizes" in text:
        return "its weights have other shapes than its config.json says"
    return text.split(". ")[0][:200].rstrip(".")


@contextmanager
def quiet() -> Generator[None]:
    """Silence the progress bars and notes of transformers, for one thread at a time.

    >>> with quiet():
    ...     pass
    """
    logging, hub = (require(f"{name}.utils.logging", extra="text") for name in ("transformers", "huggingface_hub"))
    with ALONE:
        before, bars, hubs = logging.get_verbosity(), logging.is_progress_bar_enabled(), hub.get_verbosity()
        logging.set_verbosity_error()
        hub.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(before)
            hub.set_verbosity(hubs)
            if bars:
                logging.enable_progress_bar()
