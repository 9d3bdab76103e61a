"""Pseudorandom directions that everybody derives from a shared seed, equal to the last bit on every device.

>>> from cyber0.directions import DirectionKey, sample
>>> sample(DirectionKey(seed=7, round=0, epoch=0, index=1), size=4).round(3)
array([ 1.148,  1.443, -0.275, -0.003], dtype=float32)

Any slice of a direction can be computed without the coordinates before it, and `perturb`, `perturb_pair` and `descend`
never store a whole direction. `stream` is the definition, in 100 lines; `api` has the operations; `docs/stream.md` is
the specification.
"""

from cyber0.directions.api import combine, descend, fingerprint, matrix, perturb, perturb_pair, project, sample
from cyber0.directions.backend import Backend
from cyber0.directions.key import COMPRESSED_EPOCH, FAMILIES, DirectionKey, Family
from cyber0.directions.native import Cpu
from cyber0.directions.select import BACKENDS

__all__ = [
    "BACKENDS",
    "COMPRESSED_EPOCH",
    "FAMILIES",
    "Backend",
    "Cpu",
    "DirectionKey",
    "Family",
    "combine",
    "descend",
    "fingerprint",
    "matrix",
    "perturb",
    "perturb_pair",
    "project",
    "sample",
]
