"""Messages to bytes and back. Any bytes that arrive give a message or a `RejectedMessage`."""

from collections.abc import Callable
from dataclasses import fields
from math import isnan
from typing import Any, cast, get_args

from google.protobuf.message import DecodeError

from cyber0.errors import RejectedMessage
from cyber0.protocol import messages
from cyber0.protocol import wire_pb2 as wire
from cyber0.protocol.messages import VERSION, FromClient, FromFederator
from cyber0.protocol.records import Verdict

__all__ = ["decode_from_client", "decode_from_federator", "encode", "size_limit"]

LIMIT = 2**20  # bytes of a message, where the scalars of a round need no more
LAYOUT = 2**19  # bytes of a model's layout, compressed: hundred thousands of tensors
ENTRY = 256  # bytes of a client on a roster
MEANING = 2**14  # bytes of a task's digests
CHANGES = 2**16  # bytes of changes of the roster
CERTIFICATE = 2**13  # bytes
REASON = 1000  # characters
PROMISE = 1024  # bytes of what a private client promises

# The wire's messages bear the names of ours, field for field.
ENVELOPES: dict[str, Any] = {
    cast("Any", kind.message_type).name: (envelope, kind.name)
    for envelope in (wire.ToFederator, wire.ToClient)
    for kind in envelope.DESCRIPTOR.oneofs_by_name["kind"].fields
}
OURS: dict[str, Any] = {kind: getattr(messages, name) for name, (_, kind) in ENVELOPES.items()}
FIELDS: dict[str, list[str]] = {kind: [field.name for field in fields(ours)] for kind, ours in OURS.items()}
OPTIONAL = {"vote": ["fingerprint"], "evaluation": ["accuracy"]}  # None where they are not sent

# What a field must be, beyond its type on the wire.
RIGHT: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda name: 0 < len(name) <= 100 and name.isprintable(), "1 to 100 printable characters"),
    "client": (lambda name: len(name) <= 100 and name.isprintable(), "at most 100 printable characters"),
    "manifest": (lambda digest: len(digest) == 32, "a digest of 32 bytes"),
    "base": (lambda digest: len(digest) == 32, "a digest of 32 bytes"),
    "head": (lambda digest: len(digest) in (0, 32), "a digest of 32 bytes, or empty"),
    "run": (lambda digest: len(digest) in (0, 32), "a digest of 32 bytes, or empty"),
    "key": (lambda key: len(key) in (0, 32, 33), "a public key of 32 or 33 bytes, or empty"),
    "federator": (lambda key: len(key) in (0, 32, 33), "a public key of 32 or 33 bytes, or empty"),
    "signature": (lambda signature: len(signature) in (0, 64), "64 bytes, or empty"),
    "voted_link": (lambda digest: len(digest) in (0, 32), "a digest of 32 bytes, or empty"),
    "voted_signature": (lambda signature: len(signature) in (0, 64), "64 bytes, or empty"),
    "promise": (lambda promise: len(promise) <= PROMISE, f"at most {PROMISE} bytes"),
    "promise_signature": (lambda signature: len(signature) in (0, 64), "64 bytes, or empty"),
    "ballots": (lambda hashes: len(hashes) % 32 == 0, "hashes of 32 bytes each"),
    "anchor": (lambda anchor: len(anchor) in (0, 96), "96 bytes, or empty"),
    "rosters": (lambda rosters: len(rosters) % 40 == 0, "rounds and digests of 40 bytes together"),
    "changes": (lambda changes: len(changes) <= CHANGES, f"at most {CHANGES} bytes"),
    "change": (lambda change: len(change) <= CHANGES, f"at most {CHANGES} bytes"),
    "certificate": (lambda certificate: len(certificate) <= CERTIFICATE, f"at most {CERTIFICATE} bytes"),
    "layout": (lambda layout: len(layout) <= LAYOUT, f"at most {LAYOUT} bytes"),
    "meaning": (lambda meaning: len(meaning) <= MEANING, f"at most {MEANING} bytes"),
    "scalars": (lambda scalars: len(scalars) % 4 == 0, "float32 numbers of 4 bytes each"),
    "accuracy": (lambda accuracy: 0 <= accuracy <= 1, "a number from 0 to 1"),
    "loss": (lambda loss: not isnan(loss), "a number"),
    "samples": (lambda samples: samples > 0, "at least 1"),
    "verdict": (lambda verdict: verdict in get_args(Verdict), f"one of {', '.join(get_args(Verdict))}"),
    "reason": (lambda reason: len(reason) <= REASON, f"at most {REASON} characters"),
}
CHECKED = {kind: [name for name in names if name in RIGHT] for kind, names in FIELDS.items()}


def encode(message: FromClient | FromFederator) -> bytes:
    """Return the bytes of a message; of a reason that is too long only the beginning, and what is text.

    >>> from cyber0.protocol.messages import Vote
    >>> encode(Vote(7, bytes.fromhex("0000803f"))).hex()
    '1208080712040000803f'
    """
    envelope, kind = ENVELOPES[type(message).__name__]
    values = {name: getattr(message, name) for name in FIELDS[kind]}
    if "reason" in values:  # it may quote what somebody else has sent
        values["reason"] = values["reason"][:REASON].encode(errors="replace").decode()
    return envelope(**{kind: values}).SerializeToString()


def decode_from_client(data: bytes, limit: int = LIMIT) -> FromClient:
    """Return the message in a client's bytes; `limit` is how many bytes it may have.

    >>> from cyber0.protocol.messages import Vote
    >>> decode_from_client(encode(Vote(7, b"four", fingerprint=9)))
    Vote(round=7, scalars=b'four', fingerprint=9, signature=b'')
    >>> decode_from_client(b"what?")
    Traceback (most recent call last):
    cyber0.errors.RejectedMessage: the 5 bytes that came are not a message of a client
    """
    return _decode(data, limit, wire.ToFederator(), "a client")


def decode_from_federator(data: bytes, limit: int = LIMIT) -> FromFederator:
    """Return the message in the federator's bytes; `limit` is how many bytes it may have.

    >>> from cyber0.protocol.messages import RoundOpen
    >>> decode_from_federator(encode(RoundOpen(7)))
    RoundOpen(round=7)
    """
    return _decode(data, limit, wire.ToClient(), "the federator")


def size_limit(scalars: int, clients: int = 0) -> int:
    """Return how many bytes a message may have in a run with so many scalars per round, and a roster of so many.

    >>> size_limit(64), size_limit(2**20), size_limit(64, clients=10_000)
    (1048576, 4198400, 2560000)
    """
    return max(LIMIT, 4 * scalars + 4096, ENTRY * clients)


def _decode(data: bytes, limit: int, envelope: wire.ToFederator | wire.ToClient, whose: str) -> Any:
    if len(data) > limit:
        raise RejectedMessage(f"a message of {len(data)} bytes is too long: at most {limit} are allowed")
    try:
        envelope.ParseFromString(data)
    except DecodeError:
        raise RejectedMessage(f"the {len(data)} bytes that came are not a message of {whose}") from None
    kind = cast("str | None", envelope.WhichOneof("kind"))
    if kind is None:
        raise RejectedMessage(f"the {len(data)} bytes that came hold no message of {whose} in version {VERSION}")
    return _made(kind, getattr(envelope, kind))


def _made(kind: str, part: Any) -> Any:
    """Return a message of ours, whose fields are what they must be."""
    if kind == "vote" and len(part.scalars) % 4 == 0 and len(part.signature) in (0, 64):  # in little time: most are
        mark = part.fingerprint if part.HasField("fingerprint") else None
        return messages.Vote(part.round, part.scalars, mark, part.signature)
    values = {name: getattr(part, name) for name in FIELDS[kind]}
    for name in OPTIONAL.get(kind, ()):
        if not part.HasField(name):
            values[name] = None
    for name in CHECKED[kind]:
        value, (is_right, what) = values[name], RIGHT[name]
        if value is not None and not is_right(value):
            raise RejectedMessage(f"{kind}.{name} = {repr(value)[:80]} must be {what}")
    return OURS[kind](**values)
