"""Python blocks in the README and the documentation are run as tests, those of a page in a new folder."""

from contextlib import ExitStack, chdir
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from tests.processes import fork_workers

from cyber0.threads import cores


def enter_folder(namespace: dict[str, Any]) -> None:
    """Let a page write its files into a folder of its own."""
    namespace["_folder"] = folder = ExitStack()
    folder.enter_context(chdir(folder.enter_context(TemporaryDirectory())))


def leave_folder(namespace: dict[str, Any]) -> None:
    """Remove what a page has written."""
    namespace.pop("_folder").close()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["*.md"], setup=enter_folder, teardown=leave_folder
).pytest()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than cores, for many tests wait; the longest one waits about as long as eight work."""
    return min(cores(), 8) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let one process collect for all workers."""
    fork_workers(config, specs)


collect_ignore: list[str] = []
if not find_spec("triton"):
    names = (
        "directions/kernels",
        "directions/tensors",
        "layerwise/cuda",
        "layerwise/fused_linear",
        "layerwise/kernels",
        "layerwise/short_attention",
    )
    collect_ignore += [f"src/cyber0/{name}.py" for name in names]
if not find_spec("flwr"):
    collect_ignore += [f"src/cyber0/flower/{name}.py" for name in ("server", "session", "dispatch")]
if not find_spec("transformers"):
    collect_ignore += ["docs/text.md", "src/cyber0/tasks/text"]
