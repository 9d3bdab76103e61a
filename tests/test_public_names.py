"""The public names are a short list, kept by hand; each one says what it does, with an example that runs."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import cyber0

PUBLIC = {
    "cyber0": ["__version__"],
    "cyber0.commit": ["Commit"],
    "cyber0.directions": [
        "BACKENDS", "COMPRESSED_EPOCH", "FAMILIES", "Backend", "Cpu", "DirectionKey", "Family", "combine", "descend",
        "fingerprint", "matrix", "perturb", "perturb_both", "project", "sample",
    ],
    "cyber0.estimate": ["Losses", "Method", "estimate"],
    "cyber0.parameters": ["Entry", "Manifest", "Parameters", "to_bf16"],
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_exported_names(module):
    assert importlib.import_module(module).__all__ == PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_example(module):
    loaded = importlib.import_module(module)
    for name in PUBLIC[module]:
        value = getattr(loaded, name)
        if inspect.isfunction(value) or (inspect.isclass(value) and name != "Backend"):  # an interface has none
            assert doctest.DocTestParser().get_examples(value.__doc__ or ""), f"{module}.{name} shows no example"


def test_every_module_says_what_it_is():
    for module in pkgutil.walk_packages(cyber0.__path__, "cyber0."):
        if not module.name.endswith(("._stream", "._rows", ".kernels")):
            assert importlib.import_module(module.name).__doc__, module.name
