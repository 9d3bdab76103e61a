"""Python blocks in the README and the documentation are run as tests."""

from importlib.util import find_spec

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from cyber0.threads import cores

pytest_collect_file = Sybil(parsers=[PythonCodeBlockParser()], patterns=["*.md"]).pytest()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores, for there are tests that wait; the longest one waits about as long as eight work."""
    return min(cores(), 8) + 1


collect_ignore: list[str] = []
if not find_spec("triton"):
    names = (
        "directions/kernels",
        "directions/tensors",
        "layerwise/cuda",
        "layerwise/kernels",
        "layerwise/short_attention",
    )
    collect_ignore += [f"src/cyber0/{name}.py" for name in names]
if not find_spec("flwr"):
    collect_ignore += [f"src/cyber0/flower/{name}.py" for name in ("server", "session", "dispatch")]
if not find_spec("transformers"):
    collect_ignore += ["docs/text.md", "src/cyber0/tasks/text"]
