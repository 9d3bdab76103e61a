"""What an attack starts from: the vectors of all clients, who lies, and the mean of the honest vectors.

Shapes: n clients, h of them honest, k scalars each; `...` are batch axes, each element of which is a scene of its own.
Numbers are float64, on the device of the vectors. A float64 input beyond 2**400, or nowhere above 2**-400, is
multiplied by a power of two, which is exact, so that its squares neither overflow nor underflow.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from operator import index
from typing import Any

from cyber0.aggregation import Rule, namespace, safe_scale
from cyber0.errors import InvalidAttack

__all__ = [
    "CONTEXT",
    "Attack",
    "Liars",
    "Report",
    "Rule",
    "Scene",
    "check_factor",
    "namespace",
    "observe",
    "rows",
    "rows_of",
    "unreported",
]

Attack = Callable[..., Any]
"""attack(vectors, liars, rule, byzantine, rng, **options) -> what the liars send."""
Liars = Iterable[int]
Report = Callable[[str, Any], None]
"""report(name, value): add a value to the history of this round."""

CONTEXT = ("model", "report", "round", "seed")  # keyword-only parameters that a run supplies

FACTOR = 1e100


@dataclass(frozen=True, slots=True)
class Scene:
    """The vectors in float64, within the safe range, and the honest ones among them; made by `observe`."""

    vectors: Any  # [..., n, k]
    honest: Any  # [..., h, k]
    mean: Any  # [..., k], of the honest
    scale: Any  # [..., 1, 1], the factor in all of the above; None for 1
    liars: Any  # their rows
    given: Any  # the vectors as they came

    @property
    def deviation(self) -> Any:
        """The standard deviation (ddof 1) of each coordinate of the honest vectors, `[..., k]`; 0 if there is only one.

        >>> import numpy as np
        >>> observe(np.array([[1.0, 5.0], [9.9, 9.9], [3.0, 5.0]]), [1]).deviation
        array([1.41421356, 0.        ])
        """
        xp, centred = namespace(self.mean), self.honest - self.mean[..., None, :]
        return xp.sqrt(xp.sum(centred * centred, axis=-2) / max(self.honest.shape[-2] - 1, 1))

    def in_range(self, values: Any) -> Any:
        """Return values `[..., any, k]` without the scale, clipped to the range of the vectors' type.

        >>> import numpy as np
        >>> observe(np.ones((2, 1), dtype=np.float32), []).in_range(np.array([[1e99]]))
        array([[3.40282347e+38]])
        """
        xp = namespace(values)
        most = float(xp.finfo(self.given.dtype).max)
        if self.scale is None:
            return values if self.given.dtype.itemsize == 8 else xp.clip(values, -most, most)
        bound = most * xp.minimum(self.scale, xp.ones_like(self.scale))
        return xp.maximum(xp.minimum(values, bound), -bound) / self.scale

    def sent(self, values: Any) -> Any:
        """Return what the liars send, `[..., liars, k]`: values `[..., 1 or liars, k]` in the type of the vectors.

        >>> import numpy as np
        >>> observe(np.ones((3, 2), dtype=np.float32), [0, 2]).sent(np.array([[7.0, 8.0]]))
        array([[7., 8.],
               [7., 8.]], dtype=float32)
        """
        xp, shape = namespace(values), (*self.vectors.shape[:-2], len(self.liars), self.vectors.shape[-1])
        return xp.asarray(xp.broadcast_to(xp.astype(self.in_range(values), self.given.dtype), shape), copy=True)


def observe(vectors: Any, liars: Liars) -> Scene:
    """Return the scene of these vectors; refuse one without honest vectors.

    >>> import numpy as np
    >>> observe(np.array([[1.0], [9.0], [4.0]]), liars=[1]).mean
    array([2.5])
    """
    lying, honest = rows_of(vectors, liars)
    if len(honest) == 0:
        raise InvalidAttack(f"liars = all {len(lying)} rows: this attack needs at least one honest vector")
    xp = namespace(vectors)
    numbers = xp.astype(vectors, xp.float64, copy=False)
    scale = None
    if vectors.dtype.itemsize == 8:
        scale = safe_scale(xp.max(xp.abs(numbers), axis=(-2, -1), keepdims=True))
    numbers = numbers if scale is None else numbers * scale
    seen = numbers[..., honest, :]
    return Scene(numbers, seen, xp.mean(seen, axis=-2), scale, lying, vectors)


def rows(vectors: Any, indices: Any) -> Any:
    """Return a copy of some rows.

    >>> import numpy as np
    >>> rows(np.array([[1.0], [2.0], [3.0]]), np.array([0, 2]))
    array([[1.],
           [3.]])
    """
    return vectors[..., indices, :]


def rows_of(vectors: Any, liars: Liars) -> tuple[Any, Any]:
    """Return the row indices of the liars and of the honest, on the device of the vectors.

    >>> import numpy as np
    >>> rows_of(np.zeros((4, 1)), [1, 3])
    (array([1, 3]), array([0, 2]))
    """
    _check(vectors)
    try:
        lying = tuple(map(index, liars))
    except TypeError:
        raise InvalidAttack(f"liars = {liars!r}: give the row numbers of the liars, e.g. [0, 3]") from None
    return _indices(lying, vectors.shape[-2], namespace(vectors), vectors.device)


def _check(vectors: Any) -> None:
    try:
        xp = namespace(vectors)
    except TypeError:
        raise InvalidAttack(f"vectors is a {type(vectors).__name__}: give an array [..., n, k]") from None
    if vectors.ndim < 2 or 0 in vectors.shape:
        raise InvalidAttack(f"vectors has shape {tuple(vectors.shape)}: it must be [..., n, k], none of them 0")
    if not xp.isdtype(vectors.dtype, "real floating"):
        raise InvalidAttack(f"vectors is {vectors.dtype}: give floating-point numbers")


@lru_cache(maxsize=256)  # they rarely change, and a transfer to a device stalls it
def _indices(lying: tuple[int, ...], n: int, xp: Any, where: Any) -> tuple[Any, Any]:
    if len(set(lying)) < len(lying) or not all(0 <= row < n for row in lying):
        raise InvalidAttack(f"liars = {list(lying)}: they must be different rows from 0 to {n - 1}")
    honest = sorted(set(range(n)) - set(lying))
    kind = {"dtype": xp.int64, "device": where}
    return xp.asarray(lying, **kind), xp.asarray(honest, **kind)


def check_factor(name: str, value: Any) -> None:
    """Refuse an option that is not a number of reasonable size, as a multiple of the honest deviation or mean.

    >>> check_factor("omega", float("nan"))
    Traceback (most recent call last):
    cyber0.errors.InvalidAttack: omega = nan must be a number from -1e+100 to 1e+100
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not abs(float(value)) <= FACTOR:
        raise InvalidAttack(f"{name} = {value!r} must be a number from {-FACTOR} to {FACTOR}")


def unreported(name: str, value: Any) -> None:
    """Report nothing: the default `report` of attacks that are called outside a run."""
