"""The errors that this library raises.

    Cyber0Error
    ├── InputError (ValueError)          an input cannot be used
    │   ├── KeyOutOfRange                a seed, round, epoch or index is out of range
    │   ├── InvalidSize                  a size, start or dimension does not describe a slice of a direction
    │   ├── InvalidArray                 an array has the wrong type, device, layout or length
    │   ├── InvalidParameters            the parameters of a module cannot be trained, or weights do not fit a run
    │   ├── InvalidCommit                the scalars of a commit cannot be applied
    │   ├── InvalidEstimate              a smoothing, loss or model does not allow an estimate
    │   │   └── EmptyBatch               a batch has no samples
    │   ├── InvalidAggregation           a rule cannot aggregate these vectors with this number of Byzantine ones
    │   ├── InvalidAttack                an attack cannot be mounted on these vectors
    │   ├── InvalidData                  a data file, data set or partition cannot be used
    │   ├── InvalidConfig                a configuration does not describe a run
    │   ├── InvalidIdentity              the identity of a run is damaged, or has an unknown version
    │   ├── InvalidLedger                a file is not a ledger, is damaged, or cannot be written
    │   ├── InvalidExport                a file is not an exported run, or is damaged
    │   ├── InvalidEvidence              a file is no evidence, or proves nothing
    │   ├── InvalidKeys                  a key or certificate is missing, expired or from another authority
    │   ├── InvalidRoster                a change of the roster cannot be made
    │   ├── InvalidSigner                a file has no key to sign with, or no certificate to verify with
    │   ├── InvalidModel                 a language model cannot be loaded, or not used for a task
    │   ├── InvalidName                  a name is not well formed
    │   ├── InvalidUserCode              a user's code raises, or returns something that cannot be used
    │   ├── RejectedMessage              bytes from the network are not a message of this protocol
    │   └── UnknownName                  a name is not among the known ones
    ├── NonFiniteLoss (ArithmeticError)  a loss is NaN or infinite
    ├── Disagreement (RuntimeError)      the clients of a run do not hold the same weights
    ├── FederationError (RuntimeError)   a client cannot take part in a federation
    │   ├── Refused                      the federator or the client refuses the other
    │   └── Unreachable                  no federator answers
    ├── BackendError (RuntimeError)      a backend is not available, or does not give the known answers
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
    "InvalidEvidence",
    "InvalidExport",
    "InvalidIdentity",
    "InvalidKeys",
    "InvalidLedger",
    "InvalidModel",
    "InvalidName",
    "InvalidParameters",
    "InvalidRoster",
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
    """The base class of all errors of this library."""


class InputError(Cyber0Error, ValueError):
    """An input cannot be used; the message names it, its value and what would be right."""


class KeyOutOfRange(InputError):
    """A seed, round, epoch or index is outside the range of the direction stream."""


class InvalidSize(InputError):
    """A size, start or dimension does not describe a slice of a direction."""


class InvalidArray(InputError):
    """An array has the wrong type, device, memory layout or length."""


class InvalidParameters(InputError):
    """The parameters of a module cannot be trained, such as complex ones, or weights do not fit a run."""


class InvalidCommit(InputError):
    """The scalars of a commit cannot be applied: there are none, they are not finite, or their shape is wrong."""


class InvalidEstimate(InputError):
    """A smoothing, loss or model does not allow an estimate."""


class EmptyBatch(InvalidEstimate):
    """A batch has no samples."""


class InvalidAggregation(InputError):
    """A rule cannot aggregate these vectors with this number of Byzantine ones among them.

    >>> import numpy as np
    >>> from cyber0.aggregation import cwtm
    >>> cwtm(np.zeros((4, 2)), byzantine=2)
    Traceback (most recent call last):
    cyber0.errors.InvalidAggregation: byzantine = 2: it must be from 0 to 1, since fewer than half of the n = 4 \
vectors may be Byzantine
    """


class InvalidAttack(InputError):
    """An attack cannot be mounted on these vectors, or one of its options has a value that makes no sense."""


class InvalidData(InputError):
    """A data file, data set or partition cannot be used: it is missing, truncated, altered or too small."""


class InvalidConfig(InputError):
    """A configuration does not describe a run."""


class InvalidIdentity(InputError):
    """The identity of a run is damaged or incomplete, or has a version that is not known here."""


class InvalidLedger(InputError):
    """A file is not a ledger, is damaged, has a newer version or cannot be written; or a round is out of order."""


class InvalidExport(InputError):
    """A file is not an exported run, or is damaged."""


class InvalidEvidence(InputError):
    """A file is no evidence that a party of a run has lied, is damaged, or proves nothing."""


class InvalidSigner(InputError):
    """A file has no key to sign a run with, or no certificate to verify one with."""


class InvalidRoster(InputError):
    """A change of the roster cannot be made, such as one after which too few clients would be left."""


class InvalidKeys(InputError):
    """A key, a certificate or a folder of them cannot be used: missing, expired or from another authority."""


class InvalidModel(InputError):
    """A language model cannot be loaded, or not used for a task, for instance since it has no mask token."""


class InvalidName(InputError):
    """The name of a rule, attack, partition or task is not well formed."""


class InvalidUserCode(InputError):
    """A user's model, loss, metric, data set, partition or task raises, or returns something that cannot be used.

    The message names the object by module and name; the exception that it raised is the cause of this one.
    """


class RejectedMessage(InputError):
    """Bytes from the network are not a message of this protocol; the error's text is the reason."""


class UnknownName(InputError):
    """A name is not among the known ones; `of` says what it would belong to.

    >>> raise UnknownName("family", "gausian", ["gaussian", "sphere"])
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown family 'gausian': use one of gaussian, sphere (did you mean 'gaussian'?)
    >>> raise UnknownName("option", "power", [], of="mean")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown option 'power' of mean: it has no options
    """

    def __init__(self, what: str, name: str, known: Iterable[str], *, of: str = "") -> None:
        known = sorted(known)
        near = get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        use = f"use one of {', '.join(known)}{hint}" if known else f"{'it has' if of else 'there are'} no {what}s"
        super().__init__(f"unknown {what} {name!r}{f' of {of}' if of else ''}: {use}")


class NonFiniteLoss(Cyber0Error, ArithmeticError):
    """A loss is NaN or infinite, so it says nothing about the direction it was measured along."""


class Disagreement(Cyber0Error, RuntimeError):
    """The clients of a run do not hold the same weights, or too few of them report their fingerprint."""


class FederationError(Cyber0Error, RuntimeError):
    """A client cannot take part in a federation."""


class Refused(FederationError):
    """The federator refuses the client, or the client the federator; the error's text is the reason."""


class Unreachable(FederationError):
    """No federator has answered within the time a client was to try."""


class BackendError(Cyber0Error, RuntimeError):
    """A backend of directions is not available, or does not give the known answers."""


class MissingExtra(Cyber0Error, ImportError):
    """An optional dependency is not installed; the error's text says how to install it."""
