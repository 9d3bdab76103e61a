"""Files of strangers: ledgers, exported runs and evidence are read within bounds, and damage is told in a sentence."""

import json
import random
import sqlite3
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.ledgers import PUBLIC, ROSTER, ballot, fill, identity, reported, sealed
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.errors import Cyber0Error, InvalidEvidence, InvalidExport, InvalidLedger
from cyber0.protocol import export
from cyber0.protocol.catching_up import Position
from cyber0.protocol.evidence import certificates_in, equivocation, judge
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import ExportedRun
from cyber0.protocol.roster import Change, Roster
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify
from cyber0.replay import open_ledger

MEASURED = """
import resource, sys, time
from pathlib import Path
from cyber0.errors import Cyber0Error
from cyber0.protocol.verify import verify
from cyber0.replay import open_ledger
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    with open_ledger(Path(sys.argv[1])) as ledger:
        print(verify(ledger).findings[:1])
except Cyber0Error as error:
    print(str(error)[:300])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def measured(path):
    """What a fresh process says of a file, and how many MiB it took."""
    script = [sys.executable, "-c", MEASURED, str(path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    said, size = done.stdout.rsplit("\n", 2)[:2]
    return said, int(size) / (2**20 if sys.platform == "darwin" else 2**10)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A ledger of all that one can have."""
    path = tmp_path_factory.mktemp("files") / "run.ledger"
    with File(path) as file:
        fill(file, identity(), 12)
        sealed(file, 7)
        reported(file, *ROSTER)
    return path


@pytest.fixture(scope="module")
def exported(ledger):
    with File(ledger, read_only=True) as file:
        return export.to_bytes(export.exported_run(file))


def looked_at(path):
    """Look at a file in every way; what is not a sentence of ours fails the test."""
    told = []
    for words in (["verify"], ["ledger", "show"], ["ledger", "export", "--out", path.parent / "out.cyber0"]):
        result = CliRunner().invoke(app, [*map(str, words), str(path)])
        assert isinstance(result.exception, Cyber0Error | SystemExit | None), repr(result.exception)
        told.append(f"{result.output}{result.exception}")
    return told


# Bounds


def bomb(width, size, rounds=2**31):
    """An exported run of so many bytes of zeros, with the right hash at its end if that were reached."""
    run = identity(directions=width // 4, rounds=rounds, signs=False)
    machine, block = zlib.compressobj(9), bytes(2**20)
    scalars = b"".join([*(machine.compress(block) for _ in range(size // 2**20)), machine.flush()])
    parts = export.to_bytes(ExportedRun(run, b"", run.digest))
    sections = export._sections(parts)[2]
    sections[1] = scalars
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in sections)
    return parts[:10] + b"\x01\x00" + framed


def test_a_small_export_does_not_become_large(tmp_path):
    path = tmp_path / "bomb.cyber0"
    path.write_bytes(bomb(2**18, 2**29))
    assert path.stat().st_size < 2**20
    said, mebibytes = measured(path)
    assert "is damaged: a part would have more than" in said
    assert mebibytes < 200


def test_a_small_export_does_not_become_many_rounds(tmp_path):
    path = tmp_path / "bomb.cyber0"
    path.write_bytes(bomb(4, 2**22))
    said, mebibytes = measured(path)
    assert "bytes hold 1,048,576 rounds" in said
    assert mebibytes < 200


def test_an_export_has_no_more_rounds_than_its_run(tmp_path):
    path = tmp_path / "long.cyber0"
    path.write_bytes(bomb(4, 2**20, rounds=1000))
    assert "is damaged: a part would have more than 4,000 bytes" in measured(path)[0]
    run = identity(rounds=3, signs=False)
    data = export.to_bytes(ExportedRun(run, bytes(range(48)), run.digest))
    with pytest.raises(InvalidExport, match="48 bytes hold 4 rounds"):
        export.from_bytes(data)


@pytest.mark.parametrize("place", [0, 5, 6, 9, 10])
def test_no_other_part_of_an_export_becomes_large(exported, place):
    _, flags, sections = export._sections(exported)
    sections[place] = zlib.compress(b"[" + b"[]," * 2**23 + b"[]]")
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in sections)
    with pytest.raises(InvalidExport, match="a part would have more than 16,777,216 bytes"):
        export.from_bytes(exported[:10] + bytes([flags, 0]) + framed)


def test_what_is_written_can_be_read_however_well_it_compresses():
    run = ExportedRun(identity(directions=1, rounds=2**24, signs=False), bytes(2**20))
    assert export.from_bytes(export.to_bytes(run)) == run
    run = ExportedRun(identity(directions=2**16, rounds=99, signs=False), bytes(2**18 * 32))
    assert export.from_bytes(export.to_bytes(run)) == run


# Tables that are none


def changed(ledger, tmp_path, *statements, values=()):
    """A copy of a ledger in which these statements were executed."""
    path = tmp_path / "changed.ledger"
    path.write_bytes(ledger.read_bytes())
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement, values)
    connection.commit()
    connection.close()
    return path


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n)"
STRANGE = {
    "endless view": (
        "DROP TABLE rounds",
        f"CREATE VIEW rounds AS {ENDLESS} SELECT i AS round, zeroblob(12) AS scalars, zeroblob(32) AS commit_hash, "
        "zeroblob(32) AS link, x'' AS signature, x'' AS changes FROM n",
    ),
    "endless run": ("DROP TABLE run", f"CREATE VIEW run AS {ENDLESS} SELECT i AS identity, 0 AS imported FROM n"),
    "another view": (f"CREATE VIEW more AS {ENDLESS} SELECT * FROM n",),
    "trigger": ("CREATE TRIGGER more AFTER INSERT ON rounds BEGIN DELETE FROM ballots; END",),
    "generated column": (
        "DROP TABLE seals",
        "CREATE TABLE seals (rounds INTEGER PRIMARY KEY, commit_hash AS (zeroblob(100000000)), link BLOB, "
        "fingerprint BLOB, signature BLOB)",
    ),
    "virtual table": ("DROP TABLE seals", "CREATE VIRTUAL TABLE seals USING rtree(rounds, commit_hash, link)"),
    "missing table": ("DROP TABLE ballots",),
    "index": ("CREATE INDEX more ON ballots (length(vote))",),
}


@pytest.mark.parametrize("statements", STRANGE.values(), ids=STRANGE)
def test_a_file_of_other_tables_is_no_ledger(ledger, tmp_path, statements):
    path = changed(ledger, tmp_path, *statements)
    for told in looked_at(path):
        assert "are not as a ledger makes them" in told
    with pytest.raises(InvalidLedger, match="are not as a ledger makes them"):
        File(path)


def test_a_table_whose_pages_stand_for_each_other_is_damaged(tmp_path):
    """Each of 2 levels names its first page only: with a few levels more the table would have more rows than atoms."""
    path = tmp_path / "run.ledger"
    with File(path) as file:
        fill(file, identity(signs=False, directions=300, rounds=400), 400)
    data = bytearray(path.read_bytes())
    with sqlite3.connect(path) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'rounds'").fetchone()
    connection.close()
    size = int.from_bytes(data[16:18], "big")
    start = (root - 1) * size
    assert data[start] == 5  # an interior page of a table
    cells = int.from_bytes(data[start + 3 : start + 5], "big")
    places = [start + int.from_bytes(data[start + 12 + 2 * n : start + 14 + 2 * n], "big") for n in range(cells)]
    for place in places:
        data[place : place + 4] = data[places[0] : places[0] + 4]
    path.write_bytes(data)
    for told in looked_at(path):
        assert "is damaged" in told


def test_a_device_is_no_ledger():
    with pytest.raises(InvalidLedger, match="/dev/null is a device, not a ledger"), open_ledger(Path("/dev/null")):
        pass


def test_the_bound_on_opening_a_file_is_none_on_what_is_written_then(tmp_path, monkeypatch):
    monkeypatch.setattr("cyber0.protocol.storage.STEPS", 0)
    monkeypatch.setattr("cyber0.protocol.storage.EVERY", 100)
    with File(tmp_path / "run.ledger") as file:
        assert fill(file, identity(), 30).rounds == 30


# Values that are none


ODD = [b"", b"\xff\xfe", 7, -1, 2**62, 1.5, "x", "[]", b"[]", b"{}", "9" * 5000]
COLUMNS = {
    "run": ("identity", "imported", "roster", "layout", "anchor", "adopted"),
    "rounds": ("round", "scalars", "commit_hash", "link", "signature", "changes"),
    "ballots": ("round", "place", "client", "verdict", "reason", "vote", "digest", "signature"),
    "seals": ("rounds", "commit_hash", "link", "fingerprint", "signature"),
    "reports": ("client", "rounds", "fingerprint", "signature"),
    "certificates": ("certificate",),
}


@pytest.mark.parametrize(("table", "column"), [(table, name) for table, names in COLUMNS.items() for name in names])
def test_a_value_of_another_kind_is_told_in_a_sentence(ledger, tmp_path, table, column):
    is_number = (table, column) in (("rounds", "round"), ("seals", "rounds"))  # SQLite itself refuses anything else
    for value in (each for each in ODD if isinstance(each, int) or not is_number):
        path = changed(ledger, tmp_path, f"UPDATE OR IGNORE {table} SET {column} = ?", values=(value,))
        looked_at(path)


def test_a_blob_in_place_of_a_verdict_is_found(ledger, tmp_path):
    path = changed(ledger, tmp_path, "UPDATE ballots SET verdict = x'ff00' WHERE round = 3")
    verified, shown, _ = looked_at(path)
    assert "round 3: its votes do not match the chain" in verified
    assert "ballots" in shown


# Damage


def damaged(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 40])):
        at, how = rng.randrange(len(data)), rng.random()
        if how < 0.7:
            data[at] = rng.randrange(256)
        elif how < 0.8:
            del data[max(1, at) : at + rng.randrange(1, 50)]
        elif how < 0.9:
            data[at:at] = rng.randbytes(rng.randrange(1, 20))
        else:
            del data[max(at, 20) :]
    return bytes(data)


@pytest.mark.parametrize("kind", ["ledger", "export"])
def test_random_damage_gives_a_sentence(ledger, exported, tmp_path, kind):
    whole, path = ledger.read_bytes() if kind == "ledger" else exported, tmp_path / "damaged"
    rng, refused = random.Random(kind), 0  # noqa: S311
    for _ in range(150):
        path.write_bytes(damaged(whole, rng))
        try:
            with open_ledger(path) as run:
                refused += bool(verify(run).findings)
                export.to_bytes(export.exported_run(run))
        except Cyber0Error:
            refused += 1
    assert refused > 70  # of a ledger, much is room that is not in use


def anything_like(value, data):
    """Draw something at random in place of a part of a value that JSON can hold."""
    if isinstance(value, dict | list) and value and data.draw(st.booleans()):
        places = sorted(value) if isinstance(value, dict) else range(len(value))
        place = data.draw(st.sampled_from(places))
        value[place] = anything_like(value[place], data)
        return value
    return data.draw(JSON)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_an_identity_of_any_json_gives_a_sentence(data):
    run = identity()
    fields = anything_like(json.loads(run.to_bytes()), data)
    written = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    with suppress(Cyber0Error):
        Identity.from_bytes(written, run.roster.to_bytes())


@given(st.data())
def test_a_roster_of_any_json_gives_a_sentence(data):
    roster = identity().roster.after([Change("admit", "zed", bytes(33))])
    fields = anything_like(json.loads(roster.to_bytes()), data)
    with suppress(Cyber0Error):
        Roster.from_bytes(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def accusing():
    """Evidence about a client that has signed two votes."""
    run = identity()
    start = Position.start(run)
    votes = [(start.head.link, ballot(run, run.roster, start.head.link, 0, "bob", "counted", each)) for each in VOTES]
    return equivocation(start, 0, "bob", votes)


VOTES = (bytes(12), b"another vote")


@given(st.data())
def test_evidence_of_any_json_gives_a_sentence_or_accuses_who_signed(data):
    fields = anything_like(json.loads(accusing()), data)
    written = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    with suppress(InvalidEvidence):
        certificates_in(written)
    with suppress(InvalidEvidence):
        judged = judge(written)
        assert (judged.party, judged.key) == ("bob", PUBLIC["bob"])
