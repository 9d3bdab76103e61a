r"""A whole run in one small file: with the base model, all that is needed to rebuild the trained one.

Little-endian throughout:

    magic            8 bytes, 89 63 79 62 65 72 30 0A ("\x89cyber0\n")
    version          16 bits, 2
    flags            16 bits; bit 0: the scalars are compressed
    sections, each a length of 64 bits and as many bytes:
        identity     its canonical JSON, compressed (zlib)
        scalars      float32, those of all rounds one after another, compressed where that is shorter
        commit hash  32 bytes: the last hash of the chain of commits
        link         32 bytes: the last link; nothing where it is not known
        seal         nothing, or: rounds (64 bits), commit hash, link (32 bytes each), the length of the
                     fingerprint (8 bits: 0 or 8), the fingerprint, the signature (the rest; nothing: none)
        roster       the first one, in canonical JSON, compressed
        layout       of the model, in JSON, compressed; nothing where it is not known
        anchor       96 bytes: what the last link was made of; nothing where it is not known
        signature    of the last link, by the federator; nothing where there is none
        later        the roster after the last round, compressed; nothing where it is the first one
        reports      what clients signed at the end, in JSON, compressed; nothing where there are none
        certificates in DER, each after its length of 32 bits

Version 1 ends with the seal, and has roster and layout in the identity.
"""

import json
import zlib
from pathlib import Path
from typing import Any

from cyber0.errors import Cyber0Error, InvalidExport, InvalidIdentity, InvalidLedger
from cyber0.files import write_atomically
from cyber0.protocol.chain import Anchor, Seal
from cyber0.protocol.identity import Identity, layout_bytes
from cyber0.protocol.ledger import ExportedRun, Ledger, Report
from cyber0.protocol.roster import Roster, canonical

__all__ = ["exported_run", "from_bytes", "read", "to_bytes", "write"]

MAGIC, VERSION, COMPRESSED = b"\x89cyber0\n", 2, 1
SECTIONS = {1: 5, 2: 12}
LARGEST = 2**32  # bytes of a file, and of its scalars
SMALL = 2**24  # bytes of any other part
RATIO, FLOOR = 64, 2**22  # compressed scalars are at most so many times as long as they are in the file, or these bytes
ROUNDS = 2**16  # with more rounds than these, each takes at least a byte of the file
STEP = 2**20  # bytes that are decompressed at a time


def exported_run(ledger: Ledger, rounds: int | None = None) -> ExportedRun:
    """Return the first rounds of a ledger (by default all) without their votes, with the last seal on them.

    >>> import numpy as np
    >>> from cyber0.config import Agreement
    >>> from cyber0.parameters import Parameters
    >>> from cyber0.protocol.ledger import Memory
    >>> from cyber0.protocol.records import Decision
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> ledger = Memory()
    >>> ledger.found(Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros))
    >>> head = ledger.append(Decision(0, bytes(4), ()))
    >>> from_bytes(to_bytes(exported_run(ledger))).head == head
    True
    """
    last = ledger.head.rounds
    if rounds is not None and not 0 <= rounds <= last:
        raise InvalidLedger(f"round {rounds}: the ledger has {last} rounds")
    rounds = last if rounds is None else rounds
    identity, head = ledger.identity, ledger.head_at(rounds)
    seals = [seal for seal in ledger.seals if seal.rounds <= rounds]
    seal = seals[-1] if seals else None
    run = ExportedRun(identity, ledger.commits(0, rounds), head.link, seal)
    if identity.protocol == 1 or head.link is None or rounds == 0:
        return run
    roster, anchor, signature = _end(ledger, rounds)
    return ExportedRun(
        *(identity, run.scalars, head.link, seal, anchor, signature),
        roster=None if roster == identity.roster else roster,
        reports=tuple(report for report in ledger.reports if report.rounds == rounds),
        certificates=tuple(ledger.certificates),
    )


def _end(ledger: Ledger, rounds: int) -> tuple[Roster, Anchor | None, bytes]:
    """Return the roster after so many rounds, and what the last link was made of, and its signature."""
    (written,) = ledger.written(rounds - 1, rounds)
    if rounds == ledger.imported:
        return ledger.adopted, ledger.anchor, written.signature
    roster = roster_after(ledger, rounds)
    if written.decision.lost and not written.signature:
        raise InvalidLedger(
            f"round {rounds}: the link after these rounds was given back by a client without its signature: export "
            "fewer rounds, or more"
        )
    before = ledger.head_at(rounds - 1).link or bytes(32)
    return roster, Anchor(before, written.decision.ballots_hash, roster.digest), written.signature


def roster_after(ledger: Ledger, rounds: int) -> Roster:
    """Return the roster after so many rounds of a ledger."""
    if rounds == ledger.head.rounds:
        return ledger.roster
    if ledger.imported:
        raise InvalidLedger(
            f"round {rounds}: how the roster of an imported run changed is not known: export all rounds"
        )
    roster = ledger.identity.roster
    for decision in ledger.decisions(0, rounds):
        roster = roster.after(decision.changes)
    return roster


def to_bytes(run: ExportedRun) -> bytes:
    r"""Return the content of the file of a run.

    >>> import numpy as np
    >>> from cyber0.config import Agreement
    >>> from cyber0.parameters import Parameters
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> identity = Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros)
    >>> to_bytes(ExportedRun(identity, scalars=bytes(4)))[:8]
    b'\x89cyber0\n'
    """
    short = zlib.compress(run.scalars, 9)
    expands = len(run.scalars) > _most(short, run.identity) or run.rounds > max(ROUNDS, len(short))
    flags = COMPRESSED if len(short) < len(run.scalars) and not expands else 0
    sections = [
        zlib.compress(run.identity.to_bytes(), 9),
        short if flags else run.scalars,
        run.head.commit,
        run.link or b"",
        _seal_to_bytes(run.seal),
    ]
    if run.identity.protocol > 1:
        sections += _later_sections(run)
    parts = [MAGIC, run.identity.protocol.to_bytes(2, "little"), flags.to_bytes(2, "little")]
    for section in sections:
        parts += [len(section).to_bytes(8, "little"), section]
    return b"".join(parts)


def _later_sections(run: ExportedRun) -> list[bytes]:
    layout = run.identity.layout
    reports = [[r.client, r.rounds, r.fingerprint, r.signature.hex()] for r in run.reports]
    return [
        zlib.compress(run.identity.roster.to_bytes(), 9),
        b"" if layout is None else zlib.compress(layout_bytes(layout), 9),
        b"" if run.anchor is None else run.anchor.to_bytes(),
        run.signature,
        b"" if run.roster is None else zlib.compress(run.roster.to_bytes(), 9),
        zlib.compress(canonical(reports), 9) if reports else b"",
        b"".join(len(der).to_bytes(4, "little") + der for der in run.certificates),
    ]


def from_bytes(data: bytes) -> ExportedRun:
    """Return the run in a file's content; content that does not match its own hash is refused.

    >>> from_bytes(b"something else")
    Traceback (most recent call last):
    cyber0.errors.InvalidExport: this is not an exported run
    """
    version, compressed, (identity, scalars, commit, link, seal, *later) = _sections(data)
    if len(commit) != 32 or len(link) not in (0, 32):
        raise InvalidExport("the exported run is damaged: a hash does not have 32 bytes")
    roster, layout, *rest = later or (b"", b"")
    try:
        found = Identity.from_bytes(*(_decompressed(part) if part else b"" for part in (identity, roster, layout)))
        if found.protocol != version:
            raise InvalidExport(f"the exported run is damaged: version {version} holds a run of {found.protocol}")
        more = _later_from_bytes(rest)
        scalars = _scalars(scalars, found, more[2] if more else None, compressed=compressed)
        run = ExportedRun(found, scalars, link or None, _seal_from_bytes(seal), *more)
    except InvalidIdentity as error:
        raise InvalidExport(f"the exported run is damaged: {error}") from None
    if run.head.commit != commit:
        raise InvalidExport("the exported run is damaged: its scalars do not match the hash at its end")
    if run.anchor is not None and run.anchor.following(run.head.commit) != run.link:
        raise InvalidExport("the exported run is damaged: its commits do not match the link at its end")
    if (run.roster or run.identity.roster).digest != (run.anchor.roster if run.anchor else run.identity.roster.digest):
        raise InvalidExport("the exported run is damaged: its roster does not match the link at its end")
    return run


def _scalars(data: bytes, identity: Identity, later: Roster | None, *, compressed: bool) -> bytes:
    """Return the scalars of all rounds: whole rounds, and no more than the run can have, whatever the file says."""
    width, rounds = 4 * identity.plan.scalars, max(identity.agreement.rounds, (later or identity.roster).last)
    scalars = _decompressed(data, min(_most(data, identity), width * rounds)) if compressed else data
    if len(scalars) % width:
        raise InvalidExport(f"the exported run is damaged: a round has {width:,} bytes, and the last one fewer")
    if len(scalars) // width > (max(ROUNDS, len(data)) if compressed else rounds):
        raise InvalidExport(f"the exported run is damaged: {len(data):,} bytes hold {len(scalars) // width:,} rounds")
    return scalars


def _most(data: bytes, identity: Identity) -> int:
    """Return how many bytes compressed scalars may have: votes are hardly ever shorter when compressed."""
    return min(LARGEST, max(FLOOR, RATIO * len(data), 4 * identity.plan.scalars))


def _later_from_bytes(sections: list[bytes]) -> tuple[Any, ...]:
    if not sections:
        return ()
    anchor, signature, later, reports, certificates = sections
    if len(anchor) not in (0, 96) or len(signature) not in (0, 64):
        raise InvalidExport("the exported run is damaged: its last link cannot be read")
    try:
        said = tuple(_report(*fields) for fields in json.loads(_decompressed(reports))) if reports else ()
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, Cyber0Error):
            raise
        raise InvalidExport(f"the exported run is damaged: its reports cannot be read: {error}") from None
    return (
        Anchor.from_bytes(anchor) if anchor else None,
        signature,
        Roster.from_bytes(_decompressed(later)) if later else None,
        said,
        tuple(_certificates(certificates)),
    )


def _report(client: Any, rounds: Any, fingerprint: Any, signature: Any) -> Report:
    if not isinstance(client, str) or type(rounds) is not int or type(fingerprint) is not int:
        raise InvalidExport("the exported run is damaged: a report cannot be read")
    if not 0 <= fingerprint < 2**64 or not 0 <= rounds < 2**32:
        raise InvalidExport("the exported run is damaged: a report is out of range")
    return Report(client, rounds, fingerprint, bytes.fromhex(signature))


def _certificates(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    while data:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 + size or not size:
            raise InvalidExport("the exported run is damaged: its certificates cannot be read")
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def read(path: Path) -> ExportedRun:
    """Return the run in a file.

    >>> read(Path("no/such/run.cyber0"))
    Traceback (most recent call last):
    cyber0.errors.InvalidExport: cannot read no/such/run.cyber0: No such file or directory
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise InvalidExport(f"it has more than {LARGEST:,} bytes, and an exported run has at most these")
        return from_bytes(data)
    except OSError as error:
        raise InvalidExport(f"cannot read {path}: {error.strerror}") from None
    except InvalidExport as error:
        raise InvalidExport(f"{path}: {error}") from None


def write(path: Path, run: ExportedRun) -> int:
    """Write a run to a file, completely or not at all, and return how many bytes it has.

    >>> import numpy as np
    >>> from tempfile import mkdtemp
    >>> from cyber0.config import Agreement
    >>> from cyber0.parameters import Parameters
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> identity = Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros)
    >>> path = Path(mkdtemp()) / "run.cyber0"
    >>> write(path, ExportedRun(identity, scalars=bytes(4))) == path.stat().st_size
    True
    """
    data = to_bytes(run)
    try:
        write_atomically(path, data)
    except OSError as error:
        raise InvalidExport(f"cannot write {path}: {error.strerror}") from None
    return len(data)


def is_export(path: Path) -> bool:
    """Return whether a file begins like an exported run."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _sections(data: bytes) -> tuple[int, bool, list[bytes]]:
    """Return the version of a file, whether its scalars are compressed, and its sections."""
    if data[:8] != MAGIC:
        raise InvalidExport("this is not an exported run")
    version, flags = int.from_bytes(data[8:10], "little"), int.from_bytes(data[10:12], "little")
    if version not in SECTIONS or flags & ~COMPRESSED:
        raise InvalidExport(f"this is an exported run of version {version}: this cyber0 knows versions 1 and {VERSION}")
    sections: list[bytes] = []
    at = 12
    for _ in range(SECTIONS[version]):
        length = int.from_bytes(data[at : at + 8], "little")
        sections.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    if at != len(data):
        raise InvalidExport("the exported run is damaged: it ends too early or too late")
    return version, bool(flags & COMPRESSED), sections


def _decompressed(data: bytes, most: int = SMALL) -> bytes:
    """Return what was compressed, if it is no longer than `most` bytes: what is longer is never made whole."""
    machine, content = zlib.decompressobj(), bytearray()
    try:
        while not machine.eof and (more := machine.decompress(data, STEP)):
            content += more
            data = machine.unconsumed_tail
            if len(content) > most:
                raise InvalidExport(f"the exported run is damaged: a part would have more than {most:,} bytes")
    except zlib.error as error:
        raise InvalidExport(f"the exported run is damaged: {error}") from None
    if not machine.eof or machine.unused_data or machine.unconsumed_tail:
        raise InvalidExport("the exported run is damaged: a compressed part ends too early or too late")
    return bytes(content)


def _seal_to_bytes(seal: Seal | None) -> bytes:
    if seal is None:
        return b""
    reported = b"" if seal.fingerprint is None else seal.fingerprint.to_bytes(8, "little")
    numbers = seal.rounds.to_bytes(8, "little") + seal.commit + seal.link
    return numbers + bytes([len(reported)]) + reported + (seal.signature or b"")


def _seal_from_bytes(data: bytes) -> Seal | None:
    if not data:
        return None
    if len(data) < 73 or data[72] not in (0, 8) or len(data) < 73 + data[72]:
        raise InvalidExport("the exported run is damaged: its seal cannot be read")
    reported, signature = data[73 : 73 + data[72]], data[73 + data[72] :]
    fingerprint = int.from_bytes(reported, "little") if reported else None
    return Seal(int.from_bytes(data[:8], "little"), data[8:40], data[40:72], fingerprint, signature or None)
