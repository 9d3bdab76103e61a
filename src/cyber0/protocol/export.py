r"""A whole run in one small file: with the base model, all that is needed to rebuild the trained one.

Little-endian throughout:

    magic            8 bytes, 89 63 79 62 65 72 30 0A ("\x89cyber0\n")
    version          16 bits, 1
    flags            16 bits; bit 0: the scalars are compressed
    five sections, each a length of 64 bits and as many bytes:
        identity     its canonical JSON, compressed (zlib)
        scalars      float32, those of all rounds one after another, compressed where that is shorter
        commit hash  32 bytes: the last link of the commits' chain
        votes hash   32 bytes: the last link of the votes' chain; nothing where it is not known
        seal         nothing, or: rounds (64 bits), commit hash, votes hash (32 bytes each), the length of the
                     fingerprint (8 bits: 0 or 8), the fingerprint, the signature (the rest; nothing: none)
"""

import zlib
from pathlib import Path

from cyber0.errors import InvalidExport, InvalidIdentity, InvalidLedger
from cyber0.files import write_atomically
from cyber0.protocol.chain import Seal
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import ExportedRun, Ledger

__all__ = ["exported_run", "from_bytes", "read", "to_bytes", "write"]

MAGIC, VERSION, COMPRESSED = b"\x89cyber0\n", 1, 1
SECTIONS = 5
LARGEST = 2**32  # bytes that a section may have when it is no longer compressed


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
    head = ledger.head_at(last if rounds is None else rounds)
    seals = [seal for seal in ledger.seals if seal.rounds <= head.rounds]
    return ExportedRun(ledger.identity, ledger.commits(0, head.rounds), head.votes, seals[-1] if seals else None)


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
    flags = COMPRESSED if len(short) < len(run.scalars) else 0
    sections = [
        zlib.compress(run.identity.to_bytes(), 9),
        short if flags else run.scalars,
        run.head.commit,
        run.votes or b"",
        _seal_to_bytes(run.seal),
    ]
    parts = [MAGIC, VERSION.to_bytes(2, "little"), flags.to_bytes(2, "little")]
    for section in sections:
        parts += [len(section).to_bytes(8, "little"), section]
    return b"".join(parts)


def from_bytes(data: bytes) -> ExportedRun:
    """Return the run in a file's content; content that does not match its own hash is refused.

    >>> from_bytes(b"something else")
    Traceback (most recent call last):
    cyber0.errors.InvalidExport: this is not an exported run
    """
    identity, scalars, commit, votes, seal = _sections(data)
    if len(commit) != 32 or len(votes) not in (0, 32):
        raise InvalidExport("the exported run is damaged: a hash does not have 32 bytes")
    try:
        run = ExportedRun(Identity.from_bytes(_decompressed(identity)), scalars, votes or None, _seal_from_bytes(seal))
    except InvalidIdentity as error:
        raise InvalidExport(f"the exported run is damaged: {error}") from None
    if len(scalars) % (4 * run.identity.plan.scalars) or run.head.commit != commit:
        raise InvalidExport("the exported run is damaged: its scalars do not match the hash at its end")
    return run


def read(path: Path) -> ExportedRun:
    """Return the run in a file.

    >>> read(Path("no/such/run.cyber0"))
    Traceback (most recent call last):
    cyber0.errors.InvalidExport: cannot read no/such/run.cyber0: No such file or directory
    """
    try:
        return from_bytes(path.read_bytes())
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


def _sections(data: bytes) -> list[bytes]:
    if data[:8] != MAGIC:
        raise InvalidExport("this is not an exported run")
    version, flags = int.from_bytes(data[8:10], "little"), int.from_bytes(data[10:12], "little")
    if version != VERSION or flags & ~COMPRESSED:
        raise InvalidExport(f"this is an exported run of version {version}: this cyber0 knows version {VERSION}")
    sections: list[bytes] = []
    at = 12
    for _ in range(SECTIONS):
        length = int.from_bytes(data[at : at + 8], "little")
        sections.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    if at != len(data):
        raise InvalidExport("the exported run is damaged: it ends too early or too late")
    if flags & COMPRESSED:
        sections[1] = _decompressed(sections[1])
    return sections


def _decompressed(data: bytes) -> bytes:
    machine = zlib.decompressobj()
    try:
        content = machine.decompress(data, LARGEST)
    except zlib.error as error:
        raise InvalidExport(f"the exported run is damaged: {error}") from None
    if not machine.eof or machine.unused_data:
        raise InvalidExport("the exported run is damaged: a compressed part ends too early or too late")
    return content


def _seal_to_bytes(seal: Seal | None) -> bytes:
    if seal is None:
        return b""
    reported = b"" if seal.fingerprint is None else seal.fingerprint.to_bytes(8, "little")
    numbers = seal.rounds.to_bytes(8, "little") + seal.commit + seal.votes
    return numbers + bytes([len(reported)]) + reported + (seal.signature or b"")


def _seal_from_bytes(data: bytes) -> Seal | None:
    if not data:
        return None
    if len(data) < 73 or data[72] not in (0, 8) or len(data) < 73 + data[72]:
        raise InvalidExport("the exported run is damaged: its seal cannot be read")
    reported, signature = data[73 : 73 + data[72]], data[73 + data[72] :]
    fingerprint = int.from_bytes(reported, "little") if reported else None
    return Seal(int.from_bytes(data[:8], "little"), data[8:40], data[40:72], fingerprint, signature or None)
