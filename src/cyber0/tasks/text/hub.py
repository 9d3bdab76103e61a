"""The Hugging Face hub: whether it answers, the rows of its data sets, and models that are uploaded to it."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from sys import stderr
from threading import RLock
from typing import Any, cast

from cyber0.errors import InvalidConfig, InvalidData, MissingExtra
from cyber0.extras import require
from cyber0.tasks.text.prompts import Prompt
from cyber0.tasks.text.rows import Rows, gathered

__all__ = ["SAVED", "TESTS", "gather", "parts", "reached", "read", "upload"]

ALONE = RLock()  # held while a model or data set is loaded: the libraries patch themselves and torch for all threads
PATIENCE = 5.0  # seconds to wait for the hub
SAVED = {"dataset_dict.json", "state.json"}  # what `save_to_disk` leaves in a folder
TESTS = ("test", "validation", "dev")
UNLABELLED = (-1, None)  # as data sets of the hub write it


@contextmanager
def reached(name: str) -> Generator[None]:
    """Ask the hub once; if it does not answer, use only what is cached on this machine within this context.

    The hub's own library would go on asking for minutes. For a folder the hub is not asked. One thread at a time may be
    in this context.

    >>> with reached("."):
    ...     pass
    """
    constants = require("huggingface_hub.constants", extra="text")
    with ALONE:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = before or not (Path(name).exists() or _answers(constants.ENDPOINT))
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


def _answers(address: str) -> bool:
    session, httpx = require("huggingface_hub", extra="text").get_session(), require("httpx", extra="text")
    try:
        return session.head(address, timeout=PATIENCE).status_code < 500
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return False


def upload(folder: Path, name: str, *, private: bool = True) -> str:
    """Upload a folder to the hub as a model, by the login of this machine; return its address.

    What was written stays where it is, whatever happens.
    """
    library, constants = require("huggingface_hub", extra="text"), require("huggingface_hub.constants", extra="text")
    kept = f"the model is in {folder}: try again by hf upload {name} {folder}"
    if not _answers(constants.ENDPOINT):
        raise InvalidConfig(f"--push {name}: {constants.ENDPOINT} does not answer; {kept}")
    httpx = require("httpx", extra="text")
    try:
        api = library.HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=folder)
    except (library.errors.HfHubHTTPError, library.errors.HFValidationError, httpx.HTTPError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidConfig(
            f"--push {name}: the hub refuses it ({first[:200]}); log in by hf auth login; {kept}"
        ) from error
    return str(address)


def read(dataset: str, prompt: Prompt, columns: Iterable[str]) -> tuple[Rows, Rows | None]:
    """Return the rows of a data set to train and to test on: `name` or `name:configuration` on the hub, or a folder.

    >>> keys = {"words": {"bad": "no", "good": "yes"}, "prompts": {"pooled": "{text}"}}
    >>> read("./no-such-folder", Prompt.of(keys), ["text"])
    Traceback (most recent call last):
    cyber0.errors.InvalidData: dataset = './no-such-folder': there is no such folder
    """
    return gather(parts(dataset), prompt, columns, dataset)


def parts(dataset: str) -> Mapping[str, Any]:
    """Return the parts of a data set by name, each of which yields its rows: of one on the hub, or of a folder.

    >>> parts("./no-such-folder")
    Traceback (most recent call last):
    cyber0.errors.InvalidData: dataset = './no-such-folder': there is no such folder
    """
    if dataset.startswith((".", "/", "~")) and not Path(dataset).is_dir():
        raise InvalidData(f"dataset = {dataset!r}: there is no such folder")
    if find_spec("datasets") is None:
        raise MissingExtra("datasets is not installed: pip install 'cyber0[data]', or give the rows as a file")
    return _loaded(dataset)


def gather(
    parts: Mapping[str, Iterable[Any]], prompt: Prompt, columns: Iterable[str], where: str
) -> tuple[Rows, Rows | None]:
    """Return the rows of the part train, and of the first of test, validation and dev that has labels, if any.

    Samples without a label, written as -1, are left out; the `test` of GLUE has only these.

    >>> keys = {"words": {"bad": "no", "good": "yes"}, "labels": {"1": "good"}, "prompts": {"pooled": "{text}"}}
    >>> sample = {"text": "Fine.", "label": 1}
    >>> gather({"train": [sample], "test": [{**sample, "label": -1}]}, Prompt.of(keys), ["text"], "mine")
    (Rows(texts=[{'text': 'Fine.'}], labels=array([1])), None)
    """
    if "train" not in parts:
        raise InvalidData(f"dataset = {where!r} has the parts {', '.join(parts)}: one named train is needed")
    wanted = tuple(columns)
    train = gathered(_labelled(parts["train"], prompt, f"{where}, train"), prompt, wanted, f"{where}, train")
    for part in TESTS:
        found = list(_labelled(parts.get(part, ()), prompt, f"{where}, {part}"))
        if found:
            return train, gathered(found, prompt, wanted, where)
    return train, None


def _labelled(part: Any, prompt: Prompt, where: str) -> Iterator[tuple[str, Any]]:
    """Return the rows that have a label, by its name where the prompt knows all names, else by its number."""
    label = prompt.data.label
    names: list[str] = getattr(getattr(part, "features", {}).get(label), "names", None) or []
    numbered = all(prompt.class_of(number) is not None for number in range(len(names)))
    named = names and (not numbered or all(prompt.class_of(name) is not None for name in names))
    for number, row in enumerate(part):
        if label in row and row[label] in UNLABELLED:
            continue
        yield f"{where}, row {number}", {**row, label: names[row[label]]} if named and label in row else row


def _loaded(dataset: str) -> Mapping[str, Any]:
    datasets: Any = import_module("datasets")
    if not stderr.isatty():
        datasets.disable_progress_bars()
    try:
        with reached(_name(dataset)), _same_mode(datasets.config):
            found = _opened(datasets, dataset)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        where = "cannot be read" if Path(dataset).is_dir() else "is no folder here, and cannot be had from the hub"
        raise InvalidData(
            f"dataset = {dataset!r} {where} ({first[:200]}): "
            "name one as name or name:configuration, or give the rows as a file"
        ) from error
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {"train": found}


def _name(dataset: str) -> str:
    return dataset if Path(dataset).exists() else dataset.partition(":")[0]


def _opened(datasets: Any, dataset: str) -> Any:
    name = _name(dataset)
    folder = Path(name)
    if folder.is_dir() and SAVED & {path.name for path in folder.iterdir()}:
        return datasets.load_from_disk(name)
    return datasets.load_dataset(name, dataset[len(name) + 1 :] or None)


@contextmanager
def _same_mode(config: Any) -> Generator[None]:
    """Tell `datasets` whether the hub may be asked, which it keeps in a variable of its own."""
    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = require("huggingface_hub.constants", extra="text").HF_HUB_OFFLINE
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
