"""A griffe extension for `make docs`: shows the `>>>` examples of docstrings as code, not as quotations."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?!\s*$).*\n?)*)+", re.MULTILINE)  # up to the next empty line


class FenceDoctests(griffe.Extension):
    """Puts a fence around each run of lines that starts with `>>>`."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Rewrite the docstring of every object that has one."""
        if obj.docstring:
            text = obj.docstring.value.rstrip() + "\n"
            obj.docstring.value = EXAMPLE.sub(lambda example: f"```pycon\n{example[0].rstrip()}\n```\n", text)
