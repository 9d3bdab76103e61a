import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import processes
from tests.protocol.ledgers import PUBLIC, ROSTER, fill, identity, reported, sealed
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.errors import InvalidExport, InvalidLedger
from cyber0.protocol import export
from cyber0.protocol.chain import Seal
from cyber0.protocol.ledger import ExportedRun, Memory
from cyber0.protocol.roster import Change
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify

RUN = identity()


def played(rounds, run=RUN, changes=None):
    ledger = Memory()
    fill(ledger, run, rounds, changes=changes)
    return ledger


def adopted(run):
    ledger = Memory()
    ledger.adopt(run)
    return ledger


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@given(rounds=st.integers(0, 8), cut=st.integers(0, 8), fingerprint=st.none() | st.integers(0, 2**64 - 1))
def test_a_run_survives_its_export(rounds, cut, fingerprint):
    ledger = played(rounds)
    ledger.seal(Seal.of(ledger.head, fingerprint, b"signature" if cut % 2 else None))
    cut = min(cut, rounds)
    run = export.exported_run(ledger, cut)
    again = export.from_bytes(export.to_bytes(run))
    assert again == run
    assert again.head == ledger.head_at(cut)
    assert (again.seal is not None) == (cut == rounds)


def test_scalars_that_compress_are_compressed():
    zeros = ExportedRun(identity(rounds=1000), bytes(12 * 1000))
    assert len(export.to_bytes(zeros)) < 1500
    assert export.from_bytes(export.to_bytes(zeros)) == zeros
    noise = export.exported_run(played(100))
    assert len(export.to_bytes(noise)) < 12 * 100 + 1500


@pytest.fixture(scope="module")
def whole():
    """An export with all its parts: a seal, what clients signed at the end, and a roster that has changed."""
    ledger = played(4, changes={1: (Change("admit", "fay", PUBLIC["fay"]),)})
    sealed(ledger, fingerprint=7)
    reported(ledger, *ROSTER)
    run = export.exported_run(ledger)
    assert None not in (run.seal, run.anchor, run.roster)
    assert verify(adopted(run)).findings == []
    return export.to_bytes(run)


@settings(max_examples=400)
@given(data=st.data())
def test_a_changed_byte_is_found(whole, data):
    """Or it changes nothing: compression has more than one way to say the same."""
    content = bytearray(whole)
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    content[place] ^= 1 << bit
    try:
        again = export.from_bytes(bytes(content))
    except InvalidExport:
        return
    assert again == export.from_bytes(whole) or verify(adopted(again)).findings


@pytest.mark.parametrize("size", [0, 8, 11, 12, 20, 100, -1])
def test_half_a_file_is_refused(size):
    content = export.to_bytes(export.exported_run(played(4)))
    with pytest.raises(InvalidExport):
        export.from_bytes(content[:size])
    with pytest.raises(InvalidExport):
        export.from_bytes(content + b"x")


def test_another_version_is_refused():
    content = bytearray(export.to_bytes(export.exported_run(played(1))))
    content[8] = 3
    with pytest.raises(InvalidExport, match="version 3: this cyber0 knows versions 1 and 2"):
        export.from_bytes(bytes(content))
    content[8] = 1
    with pytest.raises(InvalidExport, match="it ends too early or too late"):
        export.from_bytes(bytes(content))


def test_rounds_that_are_not_there():
    with pytest.raises(InvalidLedger, match="round 5: the ledger has 4 rounds"):
        export.exported_run(played(4), 5)


def test_export_and_import_by_command(tmp_path):
    ledger, run, again = tmp_path / "run.ledger", tmp_path / "run.cyber0", tmp_path / "again.ledger"
    with File(ledger) as file:
        fill(file, RUN, 12)
    result = invoke("ledger", "export", ledger, "--out", run)
    assert result.exit_code == 0, result.output
    assert f"{run.stat().st_size:,} bytes" in result.output
    result = invoke("ledger", "import", run, "--ledger", again)
    assert result.exit_code == 0, result.output
    assert "12 rounds, without their votes" in result.output
    with File(ledger, read_only=True) as one, File(again, read_only=True) as other:
        assert one.head == other.head
        assert one.commits() == other.commits()
    for file in (run, again):
        shown = invoke("ledger", "show", file)
        assert shown.exit_code == 0, shown.output
        assert "those of 12 rounds are not here" in shown.output
    assert isinstance(invoke("ledger", "import", run, "--ledger", again).exception, InvalidLedger)
    assert isinstance(invoke("ledger", "import", ledger, "--ledger", tmp_path / "x").exception, InvalidExport)


def test_show(tmp_path):
    path = tmp_path / "run.ledger"
    with File(path) as file:
        head = fill(file, RUN, 6)
        file.seal(Seal.of(head, fingerprint=255))
    result = invoke("ledger", "show", path)
    assert result.exit_code == 0, result.output
    for text in (
        RUN.digest.hex(),
        head.commit.hex(),
        "6 of 100",
        "nnm+cwtm",
        "émile",
        "00000000000000ff",
        "not signed",
    ):
        assert text in result.output


def test_what_is_no_file_is_not_replaced(tmp_path):
    run, pipe = export.exported_run(played(3)), tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert export.write(pipe, run) > 0
    assert export.from_bytes(os.read(reader, 1 << 16)) == run
    os.close(reader)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidExport, match="folder: Is a directory"):
        export.write(tmp_path / "folder", run)
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "folder"}
    assert pipe.is_fifo()


def test_an_import_on_a_full_disk_can_be_tried_again(tmp_path):
    export.write(tmp_path / "run.cyber0", export.exported_run(played(3)))
    words = ["ledger", "import", tmp_path / "run.cyber0", "--ledger", tmp_path / "run.ledger"]
    done = processes.run(processes.command(*words, largest_file=2048), capture_output=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"cyber0: {tmp_path / 'run.ledger'} cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["run.cyber0"]
    assert invoke(*words).exit_code == 0


def test_a_name_that_a_terminal_cannot_show_stops_nothing(tmp_path):
    export.write(tmp_path / "run.cyber0", export.exported_run(played(3)))
    words = ["ledger", "import", tmp_path / "run.cyber0", "--ledger", tmp_path / "zürich"]
    ascii_only = "sys.stdout.reconfigure(encoding='ascii', errors='strict')"
    done = processes.run(processes.command(*words, before=ascii_only), capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"z\xfcrich: 3 rounds" in done.stdout
