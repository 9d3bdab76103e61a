"""Python blocks in the README and the documentation are run as tests."""

from importlib.util import find_spec

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_collect_file = Sybil(parsers=[PythonCodeBlockParser()], patterns=["*.md"]).pytest()

collect_ignore = [] if find_spec("triton") else ["src/cyber0/directions/kernels.py"]
