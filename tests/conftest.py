import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("cyber0", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("cyber0")


@pytest.fixture(scope="session")
def known() -> dict[str, Any]:
    """The stream's known answers."""
    return json.loads(Path(__file__).with_name("known_answers.json").read_text())
