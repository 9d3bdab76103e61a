"""Operations on directions: sample them, move weights along them, sum them, project on them."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cyber0.directions.backend import Backend, Buffer, Packed
from cyber0.directions.key import DirectionKey, Family, check_slice, pack
from cyber0.directions.native import WHOLE, Cpu
from cyber0.directions.select import Hosted, device_of, empty, get_backend, host, is_numpy
from cyber0.errors import InvalidArray
from cyber0.extras import require

__all__ = [
    "buffer",
    "combine",
    "descend",
    "fingerprint",
    "fold",
    "perturb",
    "perturb_pair",
    "prepare",
    "project",
    "sample",
]

PROJECTION_CHUNK = 2**22
PROJECTED_AT_ONCE = {"cuda": 2**25}  # numbers of all directions together; elsewhere 2**22, which caches hold


def sample(
    key: DirectionKey,
    size: int,
    start: int = 0,
    family: Family = "gaussian",
    dimension: int | None = None,
    backend: str | Backend | None = None,
    device: Any = None,
) -> Any:
    """Return coordinates start .. start + size - 1 of a direction, in float32.

    The result is a NumPy array, or a torch tensor if a `device` is given. `dimension` is the length of the whole
    direction; a slice of a `sphere` direction needs it, since its scale depends on all coordinates.

    >>> sample(DirectionKey(seed=0x0123456789ABCDEF, round=3, epoch=2, index=1), 3)
    array([-0.52767867, -0.3393627 , -0.10535558], dtype=float32)
    >>> sample(DirectionKey(seed=1, round=0), 4, start=2**40, family="rademacher")
    array([-1.,  1.,  1.,  1.], dtype=float32)
    """
    dimension = check_slice(size, start, family, dimension)
    device = _device(device)
    chosen, packed = prepare([key], [1.0], family, dimension, backend, device)
    out = empty(size, device)
    chosen.fill(out.reshape(1, -1), packed, start)
    return out


def matrix(
    keys: Sequence[DirectionKey],
    dimension: int,
    *,
    family: Family = "gaussian",
    backend: str | Backend | None = None,
    device: Any = None,
) -> Any:
    """Return whole directions as the rows of a matrix `[len(keys), dimension]` in float32, for small models.

    >>> keys = [DirectionKey(seed=1, round=0, index=r) for r in range(2)]
    >>> bool((matrix(keys, 5)[1] == sample(keys[1], 5)).all())
    True
    """
    check_slice(dimension, 0, family, dimension)
    device = _device(device)
    out = empty(len(keys) * dimension, device).reshape(len(keys), dimension)
    native = _native_for(get_backend(backend, device), dimension, device) if family == "sphere" and keys else None
    if native is not None:
        ones = np.ones(len(keys))
        _remember(keys, dimension, native.fill_spheres(out, pack(keys, "gaussian", ones, ones)).tolist())
        return out
    chosen, packed = prepare(keys, np.ones(len(keys)), family, dimension, backend, device)
    chosen.fill(out, packed, 0)
    return out


def perturb(
    weights: Any,
    key: DirectionKey,
    scale: float,
    *,
    out: Any = None,
    start: int = 0,
    family: Family = "gaussian",
    dimension: int | None = None,
    backend: str | Backend | None = None,
) -> Any:
    """Return weights + scale * z, without storing z; `weights` are coordinates start, start + 1, ... of a model.

    `out`, to write the result to, may be float32 or bf16 (in NumPy: uint16, the bits of a bf16), or `weights` itself.

    >>> perturb(np.ones(3, dtype=np.float32), DirectionKey(seed=0x0123456789ABCDEF, round=3, epoch=2, index=1), 0.5)
    array([0.73616064, 0.8303186 , 0.9473222 ], dtype=float32)
    """
    flat, (target,) = _flat(weights, out)
    chosen, packed = _prepare_slice(flat, [key], [scale], start, family, dimension, backend)
    chosen.move(flat, packed, start, target, None)
    return _shaped(target, weights, out)


def perturb_pair(
    weights: Any,
    key: DirectionKey,
    scale: float,
    *,
    out: tuple[Any, Any] | None = None,
    start: int = 0,
    family: Family = "gaussian",
    dimension: int | None = None,
    backend: str | Backend | None = None,
) -> tuple[Any, Any]:
    """Return (weights + scale * z, weights - scale * z), generating z once.

    >>> plus, minus = perturb_pair(np.zeros(2, dtype=np.float32), DirectionKey(seed=1, round=0), 0.5)
    >>> bool((plus == -minus).all())
    True
    """
    plus, minus = out or (None, None)
    flat, (up, down) = _flat(weights, plus, minus)
    if down.dtype != up.dtype:
        raise InvalidArray(f"out: both arrays must be of one type, not {up.dtype} and {down.dtype}")
    chosen, packed = _prepare_slice(flat, [key], [scale], start, family, dimension, backend)
    chosen.move(flat, packed, start, up, down)
    return _shaped(up, weights, plus), _shaped(down, weights, minus)


def combine(
    keys: Sequence[DirectionKey],
    coefficients: Sequence[float] | NDArray[Any],
    size: int,
    *,
    start: int = 0,
    family: Family = "gaussian",
    dimension: int | None = None,
    backend: str | Backend | None = None,
    device: Any = None,
) -> Any:
    """Return 0 + c z + c' z' + ..., each product and each sum rounded to float32, in the order given.

    >>> keys = [DirectionKey(seed=1, round=0, index=r) for r in range(2)]
    >>> bool((combine(keys, [2.0, 0.0], 5) == 2 * sample(keys[0], 5)).all())
    True
    """
    device = _device(device)
    out = empty(size, device) if size > 0 else np.empty(0, dtype=np.float32)
    chosen, packed = _prepare_slice(out, keys, coefficients, start, family, dimension, backend)
    chosen.descend(None, packed, start, out)
    return out


def descend(
    weights: Any,
    keys: Sequence[DirectionKey],
    coefficients: Sequence[float] | NDArray[Any],
    *,
    out: Any = None,
    start: int = 0,
    family: Family = "gaussian",
    dimension: int | None = None,
    backend: str | Backend | None = None,
) -> Any:
    """Return weights - combine(keys, coefficients), in one pass; `out` may be `weights` itself.

    A bf16 result is rounded stochastically, with 16 bits of the stream of the first key's seed and round.

    >>> keys = [DirectionKey(seed=1, round=0, index=r) for r in range(2)]
    >>> w = np.ones(5, dtype=np.float32)
    >>> bool((descend(w, keys, [0.1, 0.2]) == w - combine(keys, [0.1, 0.2], 5)).all())
    True
    """
    flat, (target,) = _flat(weights, out)
    chosen, packed = _prepare_slice(flat, keys, coefficients, start, family, dimension, backend)
    chosen.descend(flat, packed, start, target)
    return _shaped(target, weights, out)


def project(
    vectors: Any,
    keys: Sequence[DirectionKey],
    *,
    start: int = 0,
    family: Family = "gaussian",
    dimension: int | None = None,
    backend: str | Backend | None = None,
) -> Any:
    """Return the inner products of float32 vectors with each direction, in float64, a chunk at a time.

    One vector [size] gives [directions], several [vectors, size] give [vectors, directions]: every direction is then
    generated once for all of them. Unlike the other operations, its last bits depend on the device.

    >>> key = DirectionKey(seed=1, round=0)
    >>> project(sample(key, 1000, family="sphere"), [key], family="sphere").round(6)
    array([1.])
    >>> project(np.ones((3, 8), dtype=np.float32), [key], family="rademacher")
    array([[-2.],
           [-2.],
           [-2.]])
    """
    flat, _ = _flat(vectors)
    if vectors.ndim == 1:
        return _project_one(flat, keys, start, family, dimension, backend)
    rows = flat.reshape(-1, vectors.shape[-1])
    size, device = rows.shape[1], device_of(flat)
    if len(flat) == 0:
        raise InvalidArray(f"vectors have shape {tuple(vectors.shape)}: give at least one, with one number or more")
    chosen, packed = _prepare_slice(rows[0], keys, np.ones(len(keys)), start, family, dimension, backend)
    at_once = PROJECTED_AT_ONCE.get("cpu" if device is None else device.type, 2**22)
    width = min(size, max(1, at_once // len(keys)))
    z = empty(len(keys) * width, device)
    totals: Any = np.zeros((len(rows), len(keys)))
    totals = totals if device is None else flat.new_zeros(totals.shape).double()
    for first in range(0, size, width):
        part = rows[:, first : first + width]
        filled = z[: len(keys) * part.shape[1]].reshape(len(keys), -1)
        chosen.fill(filled, packed, start + first)
        totals += part @ filled.T
    return totals.reshape(*vectors.shape[:-1], len(keys))


def _project_one(
    flat: Buffer,
    keys: Sequence[DirectionKey],
    start: int,
    family: Family,
    dimension: int | None,
    backend: str | Backend | None,
) -> Any:
    """Return the inner products of one vector, each by itself: votes of the scheme `compressed` rest on these bits."""
    chosen, packed = _prepare_slice(flat, keys, np.ones(len(keys)), start, family, dimension, backend)
    z = empty(min(len(flat), PROJECTION_CHUNK), device_of(flat))
    totals: Any = np.zeros(len(keys)) if device_of(flat) is None else flat.new_zeros(len(keys)).double()
    for first in range(0, len(flat), len(z)):
        part = flat[first : first + len(z)]
        for i in range(len(keys)):
            chosen.fill(z[: len(part)].reshape(1, -1), packed[i : i + 1], start + first)
            totals[i] += z[: len(part)] @ part
    return totals


def fingerprint(weights: Any, *, start: int = 0, backend: str | Backend | None = None) -> int:
    """Return a 64-bit hash of the weights' bits and positions, the same on every device.

    It is a sum, so the fingerprint of a vector is the sum of those of its chunks, modulo 2**64. bf16 weights hash as
    the float32 of the same value. It detects accidents, not forgeries.

    >>> w = np.arange(8, dtype=np.float32)
    >>> (fingerprint(w[:3]) + fingerprint(w[3:], start=3)) % 2**64 == fingerprint(w)
    True
    """
    flat, _ = _flat(weights)
    return get_backend(backend, device_of(flat)).fingerprint(flat, start)


def _device(device: Any) -> Any:
    if device is None:
        return None
    torch = require("torch", extra="train")
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())  # as tensors name it
    return device


def prepare(
    keys: Sequence[DirectionKey],
    coefficients: Sequence[float] | NDArray[Any],
    family: Family,
    dimension: int,
    backend: str | Backend | None,
    device: Any,
) -> tuple[Backend, Packed]:
    """Return the backend for a device, and the directions packed for it, of which it can then compute any slice."""
    if len(keys) == 0 or len(keys) != len(coefficients):
        raise InvalidArray(
            f"{len(keys)} keys and {len(coefficients)} coefficients: give at least one key, and a coefficient for each"
        )
    values = np.asarray(coefficients, dtype=np.float64)
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    if not np.isfinite(rounded).all():
        raise InvalidArray(f"coefficient {values[~np.isfinite(rounded)][0]} is not a finite float32")
    chosen = get_backend(backend, device)
    units = _units(keys, dimension, chosen, device) if family == "sphere" else np.ones(len(keys))
    return chosen, pack(keys, family, units, rounded)


def fold(
    tensors: Sequence[tuple[Buffer, int]],
    packed: Packed,
    family: Family,
    dimension: int,
    backend: str | Backend | None,
    device: Any,
) -> None:
    """Descend by each row of packed [commits, directions] in turn, in place.

    `tensors` are flat buffers on one device, each with its first coordinate. All units in `packed` are 1; those of
    spheres are computed here.

    >>> packed = pack([DirectionKey(seed=1, round=t) for t in range(2)], "gaussian", [1.0, 1.0], [0.5, 0.5])
    >>> w = np.ones(3, dtype=np.float32)
    >>> fold([(w, 0)], packed.reshape(2, 1), "sphere", 3, None, None)
    >>> w.round(2)
    array([0.34, 0.99, 0.95], dtype=float32)
    """
    chosen = get_backend(backend, device)
    if family == "sphere":
        if (native := _native_for(chosen, dimension, device)) is not None:
            native.fold_spheres([(host(flat), start) for flat, start in tensors], packed, dimension)
            return
        lengths = chosen.squared_lengths(packed.ravel(), dimension, device)
        packed = packed.copy()
        packed["unit"] = _unit(lengths).reshape(packed.shape)
    for flat, start in tensors:
        chosen.fold(flat, packed, start)


def _native_for(chosen: Backend, dimension: int, device: Any) -> Cpu | None:
    """Return the compiled backend, if it is chosen, for directions that a cache holds until their length is known."""
    native = chosen.inner if isinstance(chosen, Hosted) else chosen
    near = dimension <= WHOLE and (device is None or device.type == "cpu")
    return native if near and isinstance(native, Cpu) else None


def _prepare_slice(
    flat: Buffer,
    keys: Sequence[DirectionKey],
    coefficients: Sequence[float] | NDArray[Any],
    start: int,
    family: Family,
    dimension: int | None,
    backend: str | Backend | None,
) -> tuple[Backend, Packed]:
    dimension = check_slice(len(flat), start, family, dimension)
    return prepare(keys, coefficients, family, dimension, backend, device_of(flat))


_UNITS: dict[tuple[DirectionKey, int], float] = {}  # a cache: units are the same on every backend and device


def _units(keys: Sequence[DirectionKey], dimension: int, backend: Backend, device: Any) -> list[float]:
    """Return the factors that scale Gaussian directions to length one.

    Squared lengths are sums of integers, so that they do not depend on the order of summation.
    """
    known = {key: _UNITS.get((key, dimension)) for key in keys}
    missing = [key for key, unit in known.items() if unit is None]
    if missing:
        packed = pack(missing, "gaussian", np.ones(len(missing)), np.ones(len(missing)))
        units = _unit(backend.squared_lengths(packed, dimension, device))
        known |= dict(zip(missing, units.tolist(), strict=True))
        _remember(missing, dimension, units.tolist())
    return cast("list[float]", [known[key] for key in keys])


def _remember(keys: Sequence[DirectionKey], dimension: int, units: list[float]) -> None:
    """Keep units for whoever asks for these directions again, as the commit of a round does."""
    if len(_UNITS) > 2**16:
        _UNITS.clear()
    _UNITS.update({(key, dimension): unit for key, unit in zip(keys, units, strict=True)})


def _unit(squared_lengths: list[int]) -> NDArray[np.float32]:
    squared = np.array(squared_lengths, dtype=np.float64)
    return (1.0 / np.sqrt(np.maximum(squared, 1) / 2**20)).astype(np.float32)  # 0 is possible in one dimension


def _flat(weights: Any, *outs: Any) -> tuple[Buffer, list[Buffer]]:
    """Return `weights` and the outputs as flat buffers that share their memory; allocate an output that is None."""
    flat = buffer(weights, "weights")
    made = [
        empty(len(flat), device_of(flat), bf16=flat.itemsize == 2) if out is None else buffer(out, "out")
        for out in outs
    ]
    for out in made:
        if len(out) != len(flat) or device_of(out) != device_of(flat):
            raise InvalidArray(
                f"out has {len(out)} values on {device_of(out) or 'NumPy'}, but weights has {len(flat)} on "
                f"{device_of(flat) or 'NumPy'}: they must have as many on the same device"
            )
    return flat, made


def buffer(array: Any, name: str) -> Buffer:
    """Return a NumPy array or torch tensor as a flat buffer that shares its memory; refuse any other, by its name."""
    if is_numpy(array):
        known = array.dtype in (np.float32, np.uint16)
        contiguous = array.flags.c_contiguous
    else:
        torch = require("torch", extra="train")
        if not isinstance(array, torch.Tensor):
            raise InvalidArray(f"{name} is a {type(array).__name__}: give a NumPy array or a torch tensor")
        array = array.detach()
        known = array.dtype in (torch.float32, torch.bfloat16)
        contiguous = array.is_contiguous()
    if not known:
        raise InvalidArray(f"{name} is {array.dtype}: give float32, or bf16 (in NumPy: its bits as uint16)")
    if not contiguous:
        raise InvalidArray(f"{name} is not contiguous: give a contiguous array or slice, e.g. by .contiguous()")
    return array.reshape(-1)


def _shaped(flat: Buffer, weights: Any, out: Any) -> Any:
    return flat.reshape(weights.shape) if out is None else out
