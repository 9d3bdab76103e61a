"""Access to the compiled `_rows`, if it was compiled."""

import ctypes
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

__all__ = ["address", "library"]

SIGNATURES = {
    "distances": (2, 3, None),
    "mix": (4, 6, None),
    "trimmed": (2, 6, ctypes.c_int64),
}  # pointers, sizes, result


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the functions of `_rows`, through ctypes; None if it was not compiled."""
    spec = find_spec("cyber0.aggregation._rows")
    if spec is None or spec.origin is None:
        return None
    loaded = ctypes.CDLL(spec.origin)
    for name, (pointers, sizes, result) in SIGNATURES.items():
        function = getattr(loaded, f"cyber0_{name}")
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * sizes
        function.restype = result
    return loaded


def address(array: Any) -> int:
    """Return the address of the first element of a NumPy array."""
    return array.__array_interface__["data"][0]
