"""The recipe of a run, as commands take it."""

from pathlib import Path
from typing import Any

from cyber0.config import load
from cyber0.errors import InvalidConfig
from cyber0.study.recipe import Recipe, shipped

__all__ = ["read_recipe"]


def read_recipe(path: Path | None) -> dict[str, Any]:
    """Return the keys of a run's recipe, none without one; a folder or a study is refused with what to do instead.

    >>> read_recipe(Path("table1"))
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: table1 is the name of a study, not the recipe of a run: cyber0 study table1 plays it
    """
    if path is None:
        return {}
    if path.is_dir():
        known = (path / "config.toml").exists()
        hint = f": its recipe is {path / 'config.toml'}, and --resume {path} continues its run" if known else ""
        raise InvalidConfig(f"{path} is a folder, not a recipe in TOML{hint}")
    if not path.exists() and str(path) in shipped():
        raise InvalidConfig(f"{path} is the name of a study, not the recipe of a run: cyber0 study {path} plays it")
    keys = load(path)
    if of_study := [key for key in keys if key in Recipe.model_fields or key == "extends"]:
        raise InvalidConfig(
            f"{path} is the recipe of a study, not of a run, since it has {', '.join(of_study)}: cyber0 study {path} "
            "plays it"
        )
    return keys
