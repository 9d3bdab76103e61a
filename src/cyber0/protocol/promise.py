r"""What a private client promises about its votes: clipping and noise, signed with the key that signs its votes.

A promise is JSON in the canonical form; its client signs

    "cyber0 promise 1\0" | the digest of the run's terms | its name, with its length | the promise

The terms are the agreement, the model and the federator's key, which a client knows before it says Hello. A promise is
kept beside the chain, not in it: the federator cannot forge one, and can leave one out.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cyber0.config import Agreement
from cyber0.errors import InvalidIdentity
from cyber0.protocol.identity import Identity, Parent, meaning_bytes
from cyber0.protocol.records import Promised, prefixed
from cyber0.protocol.roster import Roster, canonical
from cyber0.protocol.signing import is_by

__all__ = ["Promise", "broken", "check_promises", "promise_statement", "terms_digest", "terms_of"]

FAMILY = "rounded gaussian"
LARGEST = 1024  # bytes


@dataclass(frozen=True, slots=True)
class Promise:
    """Each local step is a sum over a Poisson sample, of vectors clipped to `clip`, with noise of `noise` x `clip`.

    >>> Promise.from_bytes(Promise(clip=10.0, noise=0.85).to_bytes())
    Promise(clip=10.0, noise=0.85)
    >>> Promise.from_bytes(b"{}")
    Traceback (most recent call last):
    cyber0.errors.InvalidIdentity: promise: it must be JSON with clip, family, noise and sampling
    """

    clip: float
    noise: float

    @property
    def text(self) -> str:
        """The promise in words."""
        return f"each sample clipped to {self.clip:g}, {FAMILY} noise of {self.noise:g} times that, Poisson batches"

    def to_bytes(self) -> bytes:
        """Return the promise in canonical JSON."""
        return canonical({"clip": self.clip, "family": FAMILY, "noise": self.noise, "sampling": "poisson"})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Promise":
        """Return the promise in these bytes, which must be canonical."""
        try:
            fields = json.loads(data[: LARGEST + 1])
            promise = cls(fields["clip"], fields["noise"])
            sound = all(type(value) in (int, float) for value in (promise.clip, promise.noise))
            sound = (
                sound and 0 < promise.clip < math.inf and 0 < promise.noise < math.inf and promise.to_bytes() == data
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            sound = promise = None
        if promise is None or not sound:
            raise InvalidIdentity("promise: it must be JSON with clip, family, noise and sampling")
        return promise


def terms_digest(
    agreement: Agreement, manifest: bytes, base: bytes, meaning: bytes, federator: bytes, parent: Parent | None
) -> bytes:
    """Return a digest of what a client knows of a run before it says Hello."""
    digests = [part.hex() for part in (manifest, base, meaning, federator)]
    if parent is not None:  # another run under the same terms
        digests += [parent.run.hex(), parent.salt.hex()]
    return hashlib.sha256(canonical([agreement.model_dump(mode="json"), *digests])).digest()


def terms_of(identity: Identity) -> bytes:
    """Return the same digest, of a run that is founded."""
    model = bytes.fromhex(identity.manifest), bytes.fromhex(identity.base), meaning_bytes(identity.meaning)
    return terms_digest(identity.agreement, *model, identity.federator, identity.parent)


def promise_statement(terms: bytes, client: str, promise: bytes) -> bytes:
    """Return what a client signs."""
    return b"cyber0 promise 1\0" + terms + prefixed(client) + promise


def broken(agreement: Agreement, client: str, promise: bytes, signature: bytes, key: bytes, terms: bytes) -> str:
    """Return why a promise, or none, does not do for a run; an empty text if it does.

    >>> broken(Agreement(), "ann", b"", b"", b"", b"")
    ''
    >>> broken(Agreement(least_noise=0.5), "ann", b"", b"", b"", b"")
    'it promises no noise, and this run asks every client for a noise multiplier of at least 0.5: join with --epsilon'
    """
    least = agreement.least_noise
    if not promise:
        asks = f"this run asks every client for a noise multiplier of at least {least}"
        return "" if least is None else f"it promises no noise, and {asks}: join with --epsilon"
    try:
        found = Promise.from_bytes(promise)
    except InvalidIdentity as error:
        return str(error)
    if agreement.clip is not None and found.clip != agreement.clip:
        return f"it promises to clip to {found.clip:g}: this run clips to {agreement.clip:g}"
    if least is not None and found.noise < least:
        return f"it promises a noise multiplier of {found.noise:g}: this run asks for at least {least:g}"
    if not is_by(key, signature, promise_statement(terms, client, promise)):
        return "its promise of privacy is not signed with its key"
    return ""


def check_promises(promised: Sequence[Promised], identity: Identity, rosters: Sequence[Roster]) -> list[str]:
    """Return what is wrong with the promises of a ledger, in sentences.

    A promise must be signed with a key that its client has or had on the roster.
    """
    terms, found = terms_of(identity), list[str]()
    for each in promised:
        keys = {roster.key(each.client) for roster in rosters} - {b""}
        reasons = [
            broken(identity.agreement, each.client, each.promise, each.signature, key, terms) for key in sorted(keys)
        ]
        if "" not in reasons:
            reason = next(iter(reasons), "it is on no roster")
            found.append(f"the promise of {each.client} before round {each.round}: {reason}")
    return found
