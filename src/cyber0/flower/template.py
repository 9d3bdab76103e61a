"""A Flower app that trains by cyber0: three small files in a folder."""

import re
from dataclasses import fields
from pathlib import Path

import tomli_w

from cyber0.config import RunConfig
from cyber0.errors import InvalidConfig
from cyber0.files import write_atomically
from cyber0.flower.run_config import TIMING, Serving

__all__ = ["new"]

SERVER = '''"""The ServerApp: it admits nodes, runs the federator, and writes the ledger."""

from cyber0.flower import server_app

app = server_app()
'''
CLIENT = '''"""The ClientApp: one session per node, which votes in every round of the run."""

from cyber0.flower import client_app

app = client_app()
'''


def new(folder: Path, config: RunConfig, ledger: str | None = None) -> None:
    """Write the folder of an app. Its run config has every key, since `flwr run -c` changes only keys that exist.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp()) / "digits"
    >>> new(folder, RunConfig(clients=4, byzantine=1))
    >>> sorted(path.name for path in folder.iterdir())
    ['client_app.py', 'pyproject.toml', 'server_app.py']
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidConfig(f"{folder} exists and is not empty: name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "pyproject.toml", _project(folder, config, ledger))
        write_atomically(folder / "server_app.py", SERVER)
        write_atomically(folder / "client_app.py", CLIENT)
    except OSError as error:
        raise InvalidConfig(f"cannot write {folder}: {error.strerror}") from None


def _project(folder: Path, config: RunConfig, ledger: str | None) -> str:
    name = re.sub("[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "app"
    run = config.agreement.model_dump(exclude_none=True)
    serving = TIMING | {field.name: field.default for field in fields(Serving) if field.init}
    serving["ledger"] = ledger or str(folder.resolve().with_suffix(".sqlite"))
    app = {
        "publisher": "cyber0",
        "components": {"serverapp": "server_app:app", "clientapp": "client_app:app"},
        "config": run | serving,
    }
    project = {
        "name": name,
        "version": "1.0.0",
        "description": "A model trained by cyber0, a few numbers per round",
        "license": "Apache-2.0",
        "dependencies": ["cyber0[flower]"],
    }
    build = {"requires": ["hatchling"], "build-backend": "hatchling.build"}
    return tomli_w.dumps({"build-system": build, "project": project, "tool": {"flwr": {"app": app}}})
