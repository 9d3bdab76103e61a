"""Python blocks in the README and the documentation are run as tests."""

from importlib.util import find_spec

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_collect_file = Sybil(parsers=[PythonCodeBlockParser()], patterns=["*.md"]).pytest()

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
