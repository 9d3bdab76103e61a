"""Every error this library raises on purpose.

    Cyber0Error
    ├── InputError (ValueError)          something handed in cannot be used
    │   ├── KeyOutOfRange                a seed, round, epoch or index outside its range
    │   ├── InvalidSize                  a size, start or dimension that describes no slice
    │   ├── InvalidArray                 an array of the wrong type, device, layout or length
    │   ├── InvalidParameters            a module whose parameters cannot be trained here
    │   ├── InvalidCommit                scalars that no model can apply
    │   ├── InvalidEstimate              a smoothing, a loss or a model no estimate can be made of
    │   │   └── EmptyBatch               a loss over no samples
    │   ├── InvalidAggregation           vectors, or a number of liars, that a rule cannot aggregate
    │   ├── InvalidAttack                an attack that cannot be mounted on these vectors
    │   ├── InvalidData                  a data file, data set or partition that cannot be used
    │   ├── InvalidConfig                a run that cannot be made of this configuration
    │   ├── InvalidIdentity              a run's identity that is damaged, or of another version
    │   ├── InvalidLedger                a file that is no ledger, or one that cannot be written now
    │   ├── InvalidExport                a file that is no exported run, or a damaged one
    │   ├── InvalidKeys                  a key, a certificate or a folder of them that is missing, expired or of others
    │   ├── InvalidSigner                a file that holds no key or certificate to sign or check with
    │   ├── InvalidModel                 a language model that cannot be had, or not be used for a task
    │   ├── InvalidName                  a name that is not written as one
    │   ├── InvalidUserCode              code of a user that raises, or returns what cannot be used
    │   ├── RejectedMessage              bytes from the network that are no message of this protocol
    │   └── UnknownName                  a name that is not in the list it is looked up in
    ├── NonFiniteLoss (ArithmeticError)  a loss came out NaN or infinite
    ├── Disagreement (RuntimeError)      the clients of a run do not hold the same weights
    ├── FederationError (RuntimeError)   a federation goes on without this client
    │   ├── Refused                      the federator will not have it, and says why
    │   └── Unreachable                  no federator answers
    ├── BackendError (RuntimeError)      a backend is absent, or fails its known answers
    └── MissingExtra (ImportError)       an optional dependency is not installed

>>> from cyber0.directions import DirectionKey
>>> try:
...     DirectionKey(seed=-1, round=0)
... except Cyber0Error as error:
...     print(error)
seed = -1 is out of range: it must be an integer from 0 to 2**64 - 1
"""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "BackendError",
    "Cyber0Error",
    "Disagreement",
    "EmptyBatch",
    "FederationError",
    "InputError",
    "InvalidAggregation",
    "InvalidArray",
    "InvalidAttack",
    "InvalidCommit",
    "InvalidConfig",
    "InvalidData",
    "InvalidEstimate",
    "InvalidExport",
    "InvalidIdentity",
    "InvalidKeys",
    "InvalidLedger",
    "InvalidModel",
    "InvalidName",
    "InvalidParameters",
    "InvalidSigner",
    "InvalidSize",
    "InvalidUserCode",
    "KeyOutOfRange",
    "MissingExtra",
    "NonFiniteLoss",
    "Refused",
    "RejectedMessage",
    "UnknownName",
    "Unreachable",
]


class Cyber0Error(Exception):
    """The root: catch this to catch them all."""


class InputError(Cyber0Error, ValueError):
    """Something handed in cannot be used; the message names it and says what would be right."""


class KeyOutOfRange(InputError):
    """A seed, round, epoch or index outside the range the stream addresses."""


class InvalidSize(InputError):
    """A size, start or dimension that describes no slice of a direction."""


class InvalidArray(InputError):
    """An array of the wrong type, device, layout or length."""


class InvalidParameters(InputError):
    """A module whose parameters cannot be trained here: none, complex, integer, strided, ..."""


class InvalidCommit(InputError):
    """Scalars that no model can apply: none, not finite, or of the wrong shape."""


class InvalidEstimate(InputError):
    """A smoothing, a loss or a model that no estimate can be made of."""


class EmptyBatch(InvalidEstimate):
    """A loss over no samples."""


class InvalidAggregation(InputError):
    """Vectors, or a number of liars among them, that a rule cannot aggregate.

    >>> import numpy as np
    >>> from cyber0.aggregation import cwtm
    >>> cwtm(np.zeros((4, 2)), byzantine=2)
    Traceback (most recent call last):
    cyber0.errors.InvalidAggregation: byzantine = 2 of n = 4 vectors: fewer than half may be, so from 0 to 1
    """


class InvalidAttack(InputError):
    """An attack that cannot be mounted on these vectors, or an option of it that makes no sense."""


class InvalidData(InputError):
    """A data file, data set or partition that cannot be used: missing, truncated, altered, too small."""


class InvalidConfig(InputError):
    """A run that cannot be made of this configuration."""


class InvalidIdentity(InputError):
    """A run's identity that is damaged, not complete, or of a version that is not spoken here."""


class InvalidLedger(InputError):
    """A file that is no ledger, is damaged, is of a newer version, or cannot be written now; or a round out of turn."""


class InvalidExport(InputError):
    """A file that is no exported run, or a damaged one."""


class InvalidSigner(InputError):
    """A file that holds no key or certificate by which a run could be signed or checked."""


class InvalidKeys(InputError):
    """A key, a certificate or a folder of them that cannot be used: missing, expired, of another authority."""


class InvalidModel(InputError):
    """A language model that cannot be had or not be used: no safetensors, no mask token, a label word of two tokens."""


class InvalidName(InputError):
    """A name of a rule, an attack, a partition or a task that is not written as one."""


class InvalidUserCode(InputError):
    """A user's model, loss, metric, data set, partition or task that raises, or returns what cannot be used.

    The message names it by module and name; what it raised is the cause.
    """


class RejectedMessage(InputError):
    """Bytes from the network that are no message of this protocol; the message is the reason."""


class UnknownName(InputError):
    """A name that is not in the list it is looked up in.

    >>> raise UnknownName("family", "gausian", ["gaussian", "sphere"])
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown family 'gausian': use one of gaussian, sphere (did you mean 'gaussian'?)
    """

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        super().__init__(f"unknown {what} {name!r}: use one of {', '.join(known)}{hint}")


class NonFiniteLoss(Cyber0Error, ArithmeticError):
    """A loss came out NaN or infinite, so it says nothing about the direction it was measured along."""


class Disagreement(Cyber0Error, RuntimeError):
    """The clients of a run do not hold the same weights, or too few of them say what they hold."""


class FederationError(Cyber0Error, RuntimeError):
    """A federation goes on without this client."""


class Refused(FederationError):
    """The federator will not have this client, or this client not the federator; the message is the reason."""


class Unreachable(FederationError):
    """No federator answers, for as long as a client was told to try."""


class BackendError(Cyber0Error, RuntimeError):
    """A direction backend is absent, or does not give the known answers."""


class MissingExtra(Cyber0Error, ImportError):
    """An optional dependency is not installed; the message is the line that installs it."""
