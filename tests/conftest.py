"""What all tests share. CYBER0_EXAMPLES=1000 gives each property that many examples, unless it names a number."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import settings

typer.testing._get_command = cache(typer.main.get_command)  # which takes 20 times as long as most commands

EXAMPLES = int(os.environ.get("CYBER0_EXAMPLES", "40"))
settings.register_profile("cyber0", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.load_profile("cyber0")


@pytest.fixture(scope="session")
def known() -> dict[str, Any]:
    """The stream's known answers."""
    return json.loads(Path(__file__).with_name("known_answers.json").read_text())
