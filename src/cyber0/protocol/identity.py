"""The identity of a run: what was agreed before its first round. Whoever holds the same one trains the same model.

An identity is JSON: sorted keys, no spaces, UTF-8. Its SHA-256 names the run and is the start of its chain. It has the
roster and the model's layout by their digests; both are kept beside it.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from cyber0.aggregation import SEMANTICS
from cyber0.commit import Commit
from cyber0.config import Agreement, RunConfig
from cyber0.directions.select import host, is_numpy
from cyber0.errors import Cyber0Error, InvalidIdentity, UnknownName
from cyber0.parameters import Entry, Manifest, Parameters
from cyber0.plan import Plan
from cyber0.protocol.outline import roster_from
from cyber0.protocol.records import Decision, from_wire
from cyber0.protocol.roster import Roster, canonical

__all__ = [
    "FROZEN",
    "PROTOCOL",
    "Identity",
    "Parent",
    "base_digest",
    "layout_bytes",
    "layout_from",
    "meaning_bytes",
    "meaning_from",
    "packed_layout",
    "unlike",
    "unpacked_layout",
]

PROTOCOL = 2
FROZEN = "frozen weights"  # the part of a meaning that is a digest of what is not trained; older runs have none
FIELDS = ("agreement", "base", "federator", "keep_votes", "manifest", "meaning", "protocol", "roster", "semantics")
OLDER = (  # those of version 1, and of the first ledgers
    ("agreement", "base", "keep_votes", "layout", "manifest", "meaning", "protocol", "roster"),
    ("base", "config", "keep_votes", "layout", "manifest", "protocol", "roster"),
)
BASE_DOMAIN = b"cyber0 base 1\0"
LARGEST = 2**24  # bytes of a layout


@dataclass(frozen=True, slots=True)
class Parent:
    """The run whose first rounds another one begins with: its digest, how many rounds, and the link after them.

    `salt` is random, so that no two runs with the same parent are one.
    """

    run: bytes
    rounds: int
    link: bytes
    salt: bytes

    def fields(self) -> dict[str, Any]:
        """Return the parent as JSON can hold it."""
        return {"link": self.link.hex(), "rounds": self.rounds, "run": self.run.hex(), "salt": self.salt.hex()}

    @classmethod
    def of(cls, fields: Any) -> "Parent | None":
        """Return the parent in what JSON held; None where there is none.

        >>> Parent.of({"run": "ab"})
        Traceback (most recent call last):
        cyber0.errors.InvalidIdentity: parent = {'run': 'ab'} must have link, rounds, run and salt
        """
        if fields is None:
            return None
        try:
            run, link, salt = (bytes.fromhex(fields[name]) for name in ("run", "link", "salt"))
            found = cls(run, fields["rounds"], link, salt)
            sound = type(found.rounds) is int and 0 <= found.rounds < 2**32 and len(found.run) == 32
            sound = sound and len(found.link) in (0, 32) and len(found.salt) == 16 and found.fields() == fields
        except (KeyError, TypeError, ValueError):
            sound = found = None
        if found is None or not sound:
            raise InvalidIdentity(f"parent = {fields!r} must have link, rounds, run and salt")
        return found

    @property
    def text(self) -> str:
        """The parent in words."""
        return f"it begins with the first {self.rounds} rounds of run {self.run.hex()}"


@dataclass(frozen=True)
class Identity:
    """What the parties agreed on, the roster that they begin with, and digests of the model's layout and weights.

    Args:
        agreement: What all parties share.
        roster: Who takes part at first.
        manifest: The digest of the model's layout.
        base: The digest of its initial weights.
        layout: The layout itself, if whoever founds the run knows it: a federator has no model, and may not.
        keep_votes: Whether the ledger keeps the values of votes; otherwise their digests.
        meaning: A digest for each part of the task that decides what a label means: its words, its prompt, and so on;
            and, where a model is not trained as a whole, of its frozen weights, buffers and packed bits.
        federator: The public key that signs every link of the chain; empty in a simulated run.
        protocol: The version of the protocol.
        semantics: The version of what rules compute, so that a rule whose bits change later stays what it was.
        parent: The run whose first rounds it begins with, if there is one.
        written: The bytes it was read from, if it was read: they may lack keys that are newer than they are.

    >>> import numpy as np
    >>> from dataclasses import replace
    >>> parameters = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> identity = Identity.of(Agreement(clients=3, byzantine=1), ["ann", "bob", "cy"], parameters)
    >>> identity.manifest == parameters.manifest.digest
    True
    >>> Identity.from_bytes(identity.to_bytes(), identity.roster.to_bytes()) == replace(identity, layout=None)
    True

    """

    agreement: Agreement
    roster: Roster
    manifest: str
    base: str
    layout: Manifest | None = None
    keep_votes: bool = True
    meaning: Mapping[str, str] = field(default_factory=dict[str, str])
    federator: bytes = b""
    protocol: int = PROTOCOL
    semantics: int = SEMANTICS
    parent: Parent | None = None
    written: bytes | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.agreement, RunConfig):  # of which all but the agreement is no matter of the other parties
            object.__setattr__(self, "agreement", self.agreement.agreement)
        if self.roster.size != self.agreement.clients:
            raise InvalidIdentity(f"roster names {self.roster.size} clients, but clients = {self.agreement.clients}")
        _check_digest("manifest", self.manifest)
        _check_digest("base", self.base)
        for part, digest in self.meaning.items():
            _check_digest(f"meaning of {part}", digest)
        if self.layout is not None and self.layout.digest != self.manifest:
            raise InvalidIdentity(f"manifest = {self.manifest} is not the digest of the layout, {self.layout.digest}")

    @classmethod
    def of(
        cls,
        agreement: Agreement,
        roster: Iterable[str],
        parameters: Parameters,
        *,
        keep_votes: bool = True,
        meaning: Mapping[str, str] | None = None,
        keys: Mapping[str, bytes] | None = None,
        federator: bytes = b"",
    ) -> "Identity":
        """Return the identity of a run that starts from these weights, with clients of these names and public keys."""
        manifest = parameters.manifest
        agreement = agreement.agreement if isinstance(agreement, RunConfig) else agreement
        who, digests = Roster.of(agreement, roster, keys), (manifest.digest, base_digest(parameters))
        return cls(agreement, who, *digests, manifest, keep_votes, dict(meaning or {}), federator)

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run's rounds."""
        return self.agreement.plan

    @cached_property
    def digest(self) -> bytes:
        """The name of the run: SHA-256 of its bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def signs(self) -> bool:
        """Whether votes and links of this run are signed."""
        return self.protocol > 1 and bool(self.federator)

    def commit(self, decision: Decision, moment: float = 0.0) -> Commit:
        """Return the commit of a decided round, which parameters can apply; `moment` is as in `Plan.commit`."""
        return self.plan.commit(decision.round, from_wire(decision.scalars, self.plan.rows), moment)

    def to_bytes(self) -> bytes:
        """Return the identity in canonical JSON, or the bytes it was read from."""
        if self.written is not None:
            return self.written
        fields = {
            "agreement": self.agreement.model_dump(mode="json"),
            "base": self.base,
            "federator": self.federator.hex(),
            "keep_votes": self.keep_votes,
            "manifest": self.manifest,
            "meaning": dict(self.meaning),
            "protocol": PROTOCOL,
            "roster": self.roster.digest.hex(),
            "semantics": self.semantics,
        }
        return canonical(fields if self.parent is None else fields | {"parent": self.parent.fields()})

    @classmethod
    def from_bytes(cls, data: bytes, roster: bytes = b"", layout: bytes = b"", *, outlined: bool = False) -> "Identity":
        """Return the identity in these bytes; unknown fields and JSON that is not canonical are refused.

        `outlined` allows an outline in place of the roster: it proves nothing about anybody's key.

        An agreement may lack keys that are newer than it: they have their defaults, and its digest stays. In version 1
        roster and layout are in the identity itself; the first ledgers have the whole configuration of a run in place
        of the agreement, which is a part of it.

        >>> Identity.from_bytes(b'{"protocol": 3}')
        Traceback (most recent call last):
        cyber0.errors.InvalidIdentity: protocol = 3: this version of cyber0 speaks protocol 2, and reads 1
        """
        fields = _fields(data)
        try:
            who = (roster_from if outlined else Roster.from_bytes)(roster) if fields["protocol"] > 1 else None
            identity = _first(fields) if who is None else _second(fields, who, layout)
            object.__setattr__(identity, "written", data)
            canonical_data = canonical(fields)
        except InvalidIdentity:
            raise
        except (Cyber0Error, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InvalidIdentity(f"the identity cannot be used: {error}") from None
        if canonical_data != data:
            raise InvalidIdentity("the identity is not written in the canonical way")
        return identity


def base_digest(parameters: Parameters) -> str:
    """Return the SHA-256 of a domain, the manifest's digest, and all weights in flat order, little-endian.

    Unlike the fingerprint, which is quicker, it also finds forgeries: base weights may come from strangers.

    >>> import numpy as np
    >>> base_digest(Parameters({"w": np.zeros(3, dtype=np.float32)}))[:16]
    'd362e77ce404ef36'
    """
    digest = hashlib.sha256(BASE_DOMAIN + bytes.fromhex(parameters.manifest.digest))
    for _, flat in parameters:
        array = host(flat if is_numpy(flat) else flat.cpu())
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
    return digest.hexdigest()


def layout_bytes(manifest: Manifest) -> bytes:
    """Return a layout as it is sent: the JSON whose SHA-256 is the manifest's digest.

    >>> layout_bytes(Manifest((Entry("w", (3,), "float32", 0),)))
    b'[["w",[3],"float32"]]'
    """
    layout = [[entry.name, list(entry.shape), entry.dtype] for entry in manifest.entries]
    return json.dumps(layout, separators=(",", ":"), ensure_ascii=False).encode()


def packed_layout(layout: bytes) -> bytes:
    """Return a layout as it travels, compressed: names of tensors repeat themselves."""
    return zlib.compress(layout) if layout else b""


def unpacked_layout(data: bytes) -> bytes:
    """Return a layout that came from the network; empty where there is none, or where it is none.

    >>> unpacked_layout(packed_layout(b"[]")), unpacked_layout(b"what?")
    (b'[]', b'')
    """
    try:
        stream = zlib.decompressobj()
        layout = stream.decompress(data, LARGEST)
        return layout if stream.eof else b""
    except zlib.error:
        return b""


def layout_from(data: bytes) -> Manifest:
    """Return the manifest of a layout that came from the network.

    >>> layout_from(b'[["w",[3],"float32"]]').size
    3
    >>> layout_from(b"[]")
    Traceback (most recent call last):
    cyber0.errors.InvalidIdentity: layout: it must name at least one tensor, and none twice
    """
    try:
        return _layout(json.loads(data))
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidIdentity):
            raise
        raise InvalidIdentity(f"layout: it must be a list of [name, shape, type]: {error}") from None


def unlike(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Return the parts in which the meaning that somebody brings differs from that of a run.

    A run that was founded before frozen weights were part of it says nothing about them.

    >>> unlike({"words": "00", FROZEN: "11"}, {"words": "ff"}), unlike({"words": "00"}, {"words": "00", FROZEN: "11"})
    (['words'], ['frozen weights'])
    """
    parts = sorted({*theirs, *ours} - ({FROZEN} - ours.keys()))
    return [part for part in parts if theirs.get(part) != ours.get(part)]


def meaning_bytes(meaning: Mapping[str, str]) -> bytes:
    """Return what the labels of a task mean, a digest for each part, as it is sent.

    >>> meaning_bytes({"words": "00", "prompt": "ff"})
    b'{"prompt":"ff","words":"00"}'
    """
    return canonical(dict(meaning))


def meaning_from(data: bytes) -> dict[str, str]:
    """Return the meaning that came from the network.

    >>> meaning_from(b'{"words":7}')
    Traceback (most recent call last):
    cyber0.errors.InvalidIdentity: meaning: it must be JSON with a SHA-256 in hexadecimal digits for each part
    """
    try:
        found = json.loads(data or b"{}")
        for part, digest in found.items():
            _check_digest(f"meaning of {part}", digest)
    except (ValueError, AttributeError, RecursionError):
        raise InvalidIdentity("meaning: it must be JSON with a SHA-256 in hexadecimal digits for each part") from None
    return found


def _fields(data: bytes) -> dict[str, Any]:
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidIdentity(f"the identity is not JSON: {error}") from None
    if not isinstance(loaded, dict) or "protocol" not in loaded:
        raise InvalidIdentity("the identity names no protocol")
    fields = cast("dict[str, Any]", loaded)
    if fields["protocol"] not in (1, PROTOCOL) or type(fields["protocol"]) is not int:
        raise InvalidIdentity(
            f"protocol = {fields['protocol']!r}: this version of cyber0 speaks protocol {PROTOCOL}, and reads 1"
        )
    if not isinstance(fields.get("keep_votes", True), bool):
        raise InvalidIdentity(f"keep_votes = {fields['keep_votes']!r} must be true or false")
    known = FIELDS if fields["protocol"] == PROTOCOL else OLDER["config" in fields]
    if fields["protocol"] == PROTOCOL and "parent" in fields:
        known = (*known, "parent")
    for name in (*known, *fields):
        if name not in known or name not in fields:
            problem = "is missing" if name in known else "is unknown"
            raise InvalidIdentity(f"the identity's field {name!r} {problem}: it has {', '.join(known)}")
    return fields


def _first(fields: dict[str, Any]) -> Identity:
    layout = None if fields["layout"] is None else _layout(fields["layout"])
    agreement = _agreement(fields)
    return Identity(
        agreement,
        Roster.of(agreement, fields["roster"]),
        fields["manifest"],
        fields["base"],
        layout,
        fields["keep_votes"],
        fields.get("meaning", {}),
        protocol=1,
    )


def _second(fields: dict[str, Any], who: Roster, layout: bytes) -> Identity:
    if who.digest.hex() != fields["roster"]:
        raise InvalidIdentity(f"roster = {fields['roster']} is not the digest of the roster, {who.digest.hex()}")
    if type(fields["semantics"]) is not int or not 1 <= fields["semantics"] <= SEMANTICS:
        raise InvalidIdentity(f"semantics = {fields['semantics']!r}: this version of cyber0 knows 1 to {SEMANTICS}")
    return Identity(
        _agreement(fields),
        who,
        fields["manifest"],
        fields["base"],
        layout_from(layout) if layout else None,
        fields["keep_votes"],
        fields["meaning"],
        bytes.fromhex(fields["federator"]),
        semantics=fields["semantics"],
        parent=Parent.of(fields["parent"]) if "parent" in fields else None,
    )


def _agreement(fields: dict[str, Any]) -> Agreement:
    if "config" not in fields:
        return Agreement(**fields["agreement"])
    for key in fields["config"]:
        if key not in RunConfig.model_fields:
            raise UnknownName("key", key, RunConfig.model_fields)
    return Agreement(**{key: value for key, value in fields["config"].items() if key in Agreement.model_fields})


def _check_digest(name: str, digest: Any) -> None:
    if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise InvalidIdentity(f"{name} = {digest!r} must be the 64 hexadecimal digits of a SHA-256")


def _layout(layout: Sequence[Any]) -> Manifest:
    entries: list[Entry] = []
    start = 0
    for name, shape, dtype in layout:
        sound = isinstance(name, str) and all(isinstance(n, int) and n > 0 for n in shape)
        if not sound or dtype not in ("float32", "bfloat16"):
            raise InvalidIdentity(f"layout: [{name!r}, {shape!r}, {dtype!r}] is not a tensor that can be trained")
        entries.append(Entry(name, tuple(shape), dtype, start))
        start += entries[-1].size
    if not entries or len({entry.name for entry in entries}) < len(entries):
        raise InvalidIdentity("layout: it must name at least one tensor, and none twice")
    return Manifest(tuple(entries))
