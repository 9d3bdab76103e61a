"""The search for the strength omega >= 0 that moves the aggregate farthest from the honest mean.

A search is given a function `distance(omegas)` from `[c, ...]` to `[c, ...]`: c candidates for each element of the
batch axes, which are searched together. `unit` is an array `[...]` of the omegas that push a lie about as far from the
mean as honest vectors are: where rules that compare distances begin to drop lies. `also` are further omegas
`[c, ...]` worth a try, where the rule may turn; None without any. It returns (omega, distance).

- `line` is sequential and starts from omega 0 and step 1: expansion by doubling, then contraction, 16 evaluations in
  all. It is the search of the paper and of Allouah et al., Fixing by Mixing, AISTATS 2023.
- `grid` is dense: 256 candidates in one call, 2.7 % apart around the unit and wider far above it.
- `zoom` is omega 0, a short grid and two finer ones, each around the best so far: 43 candidates in four calls. To the
  short grid come the omegas worth a try, and then the finer ones are around the best eight. The default: in all 4,608
  scenes of `python -m benchmarks.attacks` it comes within 1 % of the best.
- `both` takes the better of `line` and `zoom`.
- `zoom-1` and `both-1` are `zoom` and `both` as they were before they knew of omegas worth a try; `zoom-2` and
  `both-2`, before `zoom` tried omega 0, and those omegas against `nnm+krum` that `mixed_krum` proposes. To the bit.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cyber0.attacks.scene import namespace

__all__ = ["DEFAULT", "MORE", "MORE_2", "SEARCHES", "both", "grid", "line", "zoom"]

Distance = Callable[[Any], Any]
Found = tuple[Any, Any]

EVALUATIONS, RATIO = 16, 0.8
FAR = 1e6  # in units: beyond every honest vector in every coordinate
DENSE = np.concatenate([np.geomspace(0.05, 20, 224), np.geomspace(21, FAR, 32)])
COARSE = np.array([0.15, 0.25, *np.geomspace(0.4, 2.2, 15), 3.0, 4.5, 8.0, 32.0, 256.0, 1e4, FAR])
RATIOS = COARSE[1:] / COARSE[:-1]
SPACING = np.maximum(np.append(RATIOS, 1.0), np.append(1.0, RATIOS))  # from each to the farther of its neighbours
# Powers of the spacing; at first beyond the next neighbours, since what Krum picks after nnm is not monotonic.
CLOSER = (2.2 * np.linspace(-1, 1, 14)[1:-1], np.linspace(-1, 1, 8)[1:-1])
PEAKS = 8  # places around which to look closer, where there are omegas worth a try
BETWEEN = np.linspace(0, 1, 10)[1:-1]
TINY = 1e-300  # in place of zero in a denominator


def line(distance: Distance, unit: Any, also: Any = None) -> Found:  # noqa: ARG001
    """Search by steps: double the step while that improves, then shrink it and step back and forth around the best.

    >>> omega, value = line(lambda omegas: -(omegas - 5) ** 2, np.ones(()))
    >>> round(float(omega), 2)
    4.94
    """
    xp = namespace(unit)
    best, step = xp.zeros_like(unit), xp.ones_like(unit)
    value = distance(best[None])[0]
    probe, expanding = best + step, step > 0
    for _ in range(EVALUATIONS - 1):
        found = distance(probe[None])[0]
        best, value = _better((probe, found), (best, value))
        expanding = expanding & (best == probe)
        step = xp.where(expanding, 2 * step, RATIO * step)
        probe = xp.where(expanding, best + step, _contracted(probe, best, step))
    return best, value


def grid(distance: Distance, unit: Any, also: Any = None) -> Found:  # noqa: ARG001
    """Search a dense grid, in one call.

    >>> omega, value = grid(lambda omegas: -(omegas - 5) ** 2, np.ones(()))
    >>> round(float(omega), 2)
    4.95
    """
    omega, value, _ = _best(distance, _column(DENSE, unit) * unit)
    return omega, value


def zoom(distance: Distance, unit: Any, also: Any = None) -> Found:
    """Search a short grid, and the omegas worth a try, then two finer grids around the best so far, and try omega 0.

    >>> omega, value = zoom(lambda omegas: -(omegas - 5) ** 2, np.ones(()))
    >>> round(float(omega), 2)
    4.96
    >>> zoom(lambda omegas: np.where(omegas == 1.234, 9.0, 0.0), np.ones(()), also=np.array([1.234]))[1]
    array(9.)
    >>> zoom(lambda omegas: -omegas, np.ones(()))[0]
    array(0.)
    """
    zero = namespace(unit).zeros_like(unit)
    return _better((zero, distance(zero[None])[0]), zoom_2(distance, unit, also))


def zoom_2(distance: Distance, unit: Any, also: Any = None) -> Found:
    """Search as `zoom` does without omega 0.

    >>> omega, value = zoom_2(lambda omegas: -(omegas - 5) ** 2, np.ones(()))
    >>> round(float(omega), 2)
    4.96
    """
    if also is None:
        return zoom_1(distance, unit)
    xp = namespace(unit)
    omegas = xp.sort(xp.concat([_column(COARSE, unit) * unit, also]), axis=0)
    found = distance(omegas)
    places = xp.argsort(-found, axis=0)[:PEAKS]
    low, high = (
        xp.take_along_axis(omegas, xp.clip(places + step, 0, len(omegas) - 1), axis=0)[None] for step in (-1, 1)
    )
    finer = low + (high - low) * _column(BETWEEN, unit)[:, None]
    finer = finer.reshape(-1, *unit.shape)
    omegas, found = xp.concat([omegas, finer]), xp.concat([found, distance(finer)])
    order = xp.argsort(omegas, axis=0)
    omegas, found = (xp.take_along_axis(each, order, axis=0) for each in (omegas, found))
    best = xp.argmax(found, axis=0)[None]
    below, above = (_taken(omegas, xp.clip(best + step, 0, len(omegas) - 1)) for step in (-1, 1))
    last = below + (above - below) * _column(BETWEEN, unit)
    return _better(_best(distance, last)[:2], (_taken(omegas, best), _taken(found, best)))


def zoom_1(distance: Distance, unit: Any, also: Any = None) -> Found:  # noqa: ARG001
    """Search as `zoom` does without omegas worth a try and without omega 0.

    >>> omega, value = zoom_1(lambda omegas: -(omegas - 5) ** 2, np.ones(()))
    >>> round(float(omega), 2)
    4.96
    """
    coarse = _column(COARSE, unit) * unit
    *found, at = _best(distance, coarse)
    spacing = _taken(_column(SPACING, unit) + 0 * coarse, at)
    for powers in CLOSER:
        found = _better(_best(distance, found[0] * spacing ** _column(powers, unit)), found)
        spacing = spacing ** (powers[1] - powers[0])
    omega, value = found
    return omega, value


def both(distance: Distance, unit: Any, also: Any = None) -> Found:
    """Search by `line` and by `zoom`, and return the better result.

    >>> omega, value = both(lambda omegas: -(omegas - 5) ** 2, np.ones(()))
    >>> round(float(omega), 2)
    4.96
    """
    return _better(zoom(distance, unit, also), line(distance, unit))


def both_2(distance: Distance, unit: Any, also: Any = None) -> Found:
    """Search by `line` and by `zoom_2`, and return the better result.

    >>> omega, value = both_2(lambda omegas: -(omegas - 5) ** 2, np.ones(()))
    >>> round(float(omega), 2)
    4.96
    """
    return _better(zoom_2(distance, unit, also), line(distance, unit))


def both_1(distance: Distance, unit: Any, also: Any = None) -> Found:  # noqa: ARG001
    """Search by `line` and by `zoom_1`, and return the better result.

    >>> omega, value = both_1(lambda omegas: -(omegas - 5) ** 2, np.ones(()))
    >>> round(float(omega), 2)
    4.96
    """
    return both_2(distance, unit)


SEARCHES: dict[str, Callable[[Distance, Any, Any], Found]] = {
    "both": both,
    "both-1": both_1,
    "both-2": both_2,
    "grid": grid,
    "line": line,
    "zoom": zoom,
    "zoom-1": zoom_1,
    "zoom-2": zoom_2,
}
DEFAULT = "zoom"
MORE = ("zoom", "both")  # they try omegas worth a try
MORE_2 = ("zoom-2", "both-2")  # so do these, as they were found before


def _contracted(probe: Any, best: Any, step: Any) -> Any:
    """Return the probe after a step towards the best; a step down is halved until it stays at 0 or above."""
    xp = namespace(probe)
    halvings = xp.ceil(xp.log2(xp.clip(step / xp.clip(probe, TINY, None), 1.0, None)))
    return xp.where(probe < best, probe + step, xp.clip(probe - step * 0.5**halvings, 0.0, None))


def _better(new: Sequence[Any], old: Sequence[Any]) -> Found:
    """Return the better of two results, the old one where they are equal."""
    xp, better = namespace(new[1]), new[1] > old[1]
    return xp.where(better, new[0], old[0]), xp.where(better, new[1], old[1])


def _best(distance: Distance, omegas: Any) -> tuple[Any, Any, Any]:
    """Return the best candidate, its distance and its place."""
    found = distance(omegas)
    at = namespace(omegas).argmax(found, axis=0)[None]
    return _taken(omegas, at), _taken(found, at), at


def _taken(candidates: Any, at: Any) -> Any:
    return namespace(candidates).take_along_axis(candidates, at, axis=0)[0]


def _column(values: Any, unit: Any) -> Any:
    """Return values along a new first axis, in the library and on the device of `unit`."""
    return _placed(tuple(values.tolist()), unit.ndim, namespace(unit), unit.device)


@lru_cache(maxsize=64)  # a transfer to a device stalls it
def _placed(values: tuple[float, ...], axes: int, xp: Any, device: Any) -> Any:
    return xp.asarray(values, dtype=xp.float64, device=device).reshape(-1, *(1,) * axes)
