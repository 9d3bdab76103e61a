"""Every byte of an export and of a ledger is changed in turn: what it says is the same, or it is refused.

Refused is what cannot be read, and what `verify` finds something wrong with. Of the ledger only some bytes are changed,
others with an authority than without one; CYBER0_FLIPS=1 changes all of them.
"""

import os
import sqlite3
from functools import lru_cache

import pytest
from tests.protocol.ledgers import ROSTER, fill, identity, reported, sealed
from tests.protocol.test_verify import certify, root

from cyber0.errors import Cyber0Error
from cyber0.protocol import audit, export, trust, verify
from cyber0.protocol.ledger import Memory
from cyber0.protocol.roster import Change
from cyber0.protocol.signing import is_by
from cyber0.protocol.sqlite import File

STEP = 1 if os.environ.get("CYBER0_FLIPS") else 61  # bytes of the ledger from one that is changed to the next
ROUNDS, MASKS = 3, (0x01, 0x10, 0x80, 0xFF)


@pytest.fixture(autouse=True)
def _every_signature_is_checked_once(monkeypatch):
    once = lru_cache(maxsize=2**16)(is_by)
    for module in (audit, trust, verify):
        monkeypatch.setattr(module, "is_by", once)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A ledger of signed votes, with a change of the roster, a seal, reports and certificates; in small pages."""
    path = tmp_path_factory.mktemp("flips") / "run.ledger"
    with File(path) as ledger:
        fill(ledger, identity(rounds=ROUNDS, rule="median"), ROUNDS, changes={0: (Change("extend", number=9),)})
        sealed(ledger, fingerprint=7)
        reported(ledger, *ROSTER[:4])
        certify(ledger, "federator", *ROSTER)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA page_size = 512")
    connection.execute("VACUUM")
    connection.close()
    return path


def said(ledger, authority):
    """All that can be learnt from a ledger: of certificates, whose keys they are for, if the authority is known."""
    report = verify.verify(ledger, authority=authority)
    if report.findings:
        raise Cyber0Error(report.findings[0])
    content = [list(ledger.written()), ledger.seals, ledger.reports, ledger.roster, ledger.imported, ledger.anchor]
    whole = ledger.identity, ledger.identity.layout, content, vars(report), report.verdict
    return (*whole, trust.vouched(ledger.certificates, authority) if authority else None)


def differs(read, expected):
    """Whether something else is read than there was, and nobody notices."""
    try:
        return read() != expected
    except Cyber0Error:
        return False


@pytest.mark.parametrize("authority", [None, root()], ids=["without an authority", "with an authority"])
def test_every_byte_of_an_export_matters_or_changes_nothing(made, authority):
    with File(made, read_only=True) as ledger:
        data = export.to_bytes(export.exported_run(ledger))

    def read(changed):
        ledger = Memory()
        ledger.adopt(export.from_bytes(changed))
        return said(ledger, authority)

    expected = read(data)
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ MASKS[at % 4]]) + data[at + 1 :]
        assert not differs(lambda: read(changed), expected), f"byte {at} of {len(data)}"  # noqa: B023
        assert not at % STEP or not differs(lambda: read(data[:at]), expected), f"{at} bytes"  # noqa: B023


@pytest.mark.parametrize("authority", [None, root()], ids=["without an authority", "with an authority"])
def test_every_byte_of_a_ledger_matters_or_changes_nothing(made, tmp_path, authority):
    data, path = made.read_bytes(), tmp_path / "run.ledger"
    path.write_bytes(data)

    def read():
        with File(path, read_only=True) as ledger:
            return said(ledger, authority)

    expected = read()
    with path.open("r+b", buffering=0) as file:
        for at in range(0 if authority else STEP // 2, len(data), STEP):
            file.seek(at)
            file.write(bytes([data[at] ^ MASKS[at % 4]]))
            assert not differs(read, expected), f"byte {at} of {len(data)}"
            file.seek(at)
            file.write(data[at : at + 1])
