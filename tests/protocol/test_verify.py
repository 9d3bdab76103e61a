import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.ledgers import ROSTER, decisions, fill, identity
from typer.testing import CliRunner

from cyber0.aggregation import RULES, mean
from cyber0.cli import app
from cyber0.errors import InvalidIdentity, InvalidLedger, InvalidSigner
from cyber0.protocol import export
from cyber0.protocol.chain import Seal
from cyber0.protocol.ledger import Memory
from cyber0.protocol.records import Ballot, to_wire
from cyber0.protocol.signing import private_key, public_key, signed
from cyber0.protocol.sqlite import File
from cyber0.protocol.verify import verify

RUN, ROUNDS = identity(), 8
CELLS = [
    *(("rounds", column, row) for column in ("round", "scalars", "commit_hash", "votes_hash") for row in (0, 4, 7)),
    *(
        ("ballots", column, row)
        for column in ("round", "place", "client", "verdict", "reason", "vote", "digest")
        for row in (0, 21, 39)
    ),
    *(("seals", column, 0) for column in ("rounds", "commit_hash", "votes_hash", "fingerprint", "signature")),
    *(("run", column, 0) for column in ("identity", "imported")),
]
KEYS = {"ed25519": ed25519.Ed25519PrivateKey.generate(), "ec": ec.generate_private_key(ec.SECP256R1())}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A ledger, signed at its end."""
    path = tmp_path_factory.mktemp("sound") / "run.ledger"
    with File(path) as ledger:
        head = fill(ledger, RUN, ROUNDS)
        ledger.seal(signed(Seal.of(head, fingerprint=7), RUN.digest, KEYS["ec"]))
    return path


@pytest.fixture
def copy(sound, tmp_path):
    path = tmp_path / "run.ledger"
    path.write_bytes(sound.read_bytes())
    return path


def checked(path, **options):
    with File(path, read_only=True) as ledger:
        return verify(ledger, signer=KEYS["ec"].public_key(), **options)


def other(value):
    """Something else of the same kind."""
    if value is None:
        return bytes(32)
    if isinstance(value, int):
        return value + 100
    if isinstance(value, str):
        return value + "x"
    return bytes([value[0] ^ 1]) + value[1:] if value else b"x"


def edit(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement, *values in statements:
            connection.execute(statement, *values)
    connection.close()


def cell(path, table, column, row):
    connection = sqlite3.connect(path)
    key = {"rounds": "round", "ballots": "round, place", "seals": "rounds", "run": "id"}[table]
    found = connection.execute(f"SELECT {column}, {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET {row}").fetchone()
    connection.close()
    return found[0], " AND ".join(f"{k} = {v}" for k, v in zip(key.split(", "), found[1:], strict=True))


def test_a_sound_ledger(sound):
    report = checked(sound)
    assert report.findings == []
    assert (report.head.rounds, report.aggregates, report.signed) == (ROUNDS, ROUNDS, ROUNDS)


@pytest.mark.parametrize(("table", "column", "row"), CELLS)
def test_every_changed_cell_is_found(copy, table, column, row):
    value, where = cell(copy, table, column, row)
    edit(copy, (f"UPDATE {table} SET {column} = ? WHERE {where}", (other(value),)))
    assert found(copy)


@pytest.mark.parametrize(("table", "column", "row"), CELLS)
def test_every_cell_of_another_kind_is_found(copy, table, column, row):
    _, where = cell(copy, table, column, row)
    assert not found(copy)
    try:
        edit(copy, (f"UPDATE {table} SET {column} = 'nonsense' WHERE {where}",))
    except sqlite3.IntegrityError:
        return  # the schema itself refuses
    assert found(copy)


def found(path):
    try:
        return checked(path).findings
    except (InvalidIdentity, InvalidLedger):
        return ["refused"]


@pytest.mark.parametrize("table", ["rounds", "ballots"])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_the_first_bad_round_is_named(copy, table, number):
    column = "scalars" if table == "rounds" else "reason"
    edit(copy, (f"UPDATE {table} SET {column} = 'forged' WHERE round = {number}",))
    assert checked(copy).findings[0].startswith(f"round {number}: ")


@pytest.mark.parametrize("table", ["rounds", "ballots"])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_every_dropped_row_is_found(copy, table, number):
    edit(copy, (f"DELETE FROM {table} WHERE round = {number}" + " AND place = 2" * (table == "ballots"),))
    assert checked(copy).findings[0].startswith(f"round {number}: ")


@settings(max_examples=25)
@given(st.data())
def test_swapped_rows_are_found(sound, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("swapped") / "run.ledger"
    path.write_bytes(sound.read_bytes())
    one, two = sorted(data.draw(st.lists(st.integers(0, ROUNDS - 1), min_size=2, max_size=2, unique=True)))
    table = data.draw(st.sampled_from(["rounds", "ballots"]))
    moves = [(one, -1), (two, one), (-1, two)]
    edit(path, *((f"UPDATE {table} SET round = {there} WHERE round = {here}",) for here, there in moves))
    assert checked(path).findings[0].startswith(f"round {one}: ")


def test_two_ballots_that_change_places_are_found(copy):
    edit(
        copy,
        *((f"UPDATE ballots SET place = {b} WHERE round = 5 AND place = {a}",) for a, b in [(1, 9), (2, 1), (9, 2)]),
    )
    assert checked(copy).findings == ["round 5: its votes do not match the chain"]


def test_a_shortened_tail_is_found_against_a_head_or_a_seal(copy, sound):
    heads = [checked(sound).head]
    edit(copy, ("DELETE FROM rounds WHERE round >= 6",), ("DELETE FROM ballots WHERE round >= 6",))
    assert "there is a seal on 8 rounds: the tail was cut off" in checked(copy).findings[0]
    edit(copy, ("DELETE FROM seals",))
    assert "nothing in it is signed" in checked(copy).findings[0]
    with File(copy, read_only=True) as ledger:
        assert verify(ledger).sound  # a prefix of a run is a run: only who knows more can tell
        for known in (heads[0].commit, heads[0].votes):
            assert "is not in its chain" in verify(ledger, head=known).findings[0]
        report = verify(ledger, head=ledger.head_at(3).commit)
        assert report.notes == ["the known head is that after 3 rounds; 3 follow"]


def test_a_rewritten_tail_is_found_against_a_head_or_a_seal(copy, sound):
    known = checked(sound).head.commit
    edit(copy, ("DELETE FROM rounds WHERE round >= 6",), ("DELETE FROM ballots WHERE round >= 6",))
    with File(copy) as ledger:
        for decision in list(decisions(RUN, ROUNDS, seed=99))[6:]:
            ledger.append(decision)
        assert verify(ledger).findings == ["round 7: the seal after it is on another history"]
        assert any("is not in its chain" in finding for finding in verify(ledger, head=known).findings)


def ledger_of(*rounds, run=RUN):
    ledger = Memory()
    ledger.found(run)
    for decision in rounds:
        ledger.append(decision)
    return ledger


def with_ballots(change):
    """Round 2, in which all are counted, written by a federator that cheats."""
    first, second, third = decisions(RUN, 3)
    return verify(ledger_of(first, second, replace(third, ballots=tuple(change(list(third.ballots)))))).findings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: [replace(b[0], verdict="rejected"), *b[1:]], "are not what nnm.cwtm makes of the counted votes"),
        (lambda b: b[1:], "are not what nnm.cwtm makes of the counted votes"),
        (lambda b: b[:2], "2 votes are counted: at least 3 must be"),
        (lambda b: [b[0], *b], "a client is counted twice"),
        (lambda b: b[::-1], "not in the roster's order"),
        (lambda b: [replace(b[0], client="eve"), *b[1:]], "'eve' is not on the roster"),
        (lambda b: [replace(b[0], verdict="perhaps"), *b[1:]], "a ballot has an unknown verdict"),
        (lambda b: [Ballot.of("ann", "counted", to_wire([[np.nan] * 3])), *b[1:]], "not finite is counted"),
        (lambda b: [Ballot.of("ann", "counted", to_wire([[1.0]])), *b[1:]], "wrong length is counted"),
        (lambda b: [b[0].without_values(), *b[1:]], "values of a counted vote are missing"),
    ],
)
def test_a_federator_that_cheats_is_found(change, message):
    import re

    (finding,) = with_ballots(change)
    assert finding.startswith("round 2: ")
    assert re.search(message, finding)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_gives_its_bits_again(rule):
    run = identity(rule=rule, byzantine=0 if rule == "bulyan" else 1, local_epochs=2)
    report = verify(ledger_of(*decisions(run, 4), run=run))
    assert report.findings == []
    assert report.aggregates == 4


def test_votes_that_are_not_kept_are_not_checked_and_it_says_so():
    run = identity(keep_votes=False)
    report = verify(ledger_of(*decisions(run, 4), run=run))
    assert report.sound
    assert report.aggregates == 0
    assert report.notes == ["the aggregates of 4 rounds were not checked: their votes' values are not here"]


own_mean = mean


def test_a_rule_of_ones_own_runs_only_where_it_may():
    run = identity(rule=f"{__name__}:own_mean")
    ledger = ledger_of(*decisions(run, 4), run=run)
    report = verify(ledger)
    assert report.sound
    assert report.aggregates == 0
    assert "and was not run" in report.notes[0]
    assert verify(ledger, own_rule=True).aggregates == 4


def test_an_imported_run_is_checked_as_far_as_it_goes():
    run = export.from_bytes(export.to_bytes(export.exported_run(ledger_of(*decisions(RUN, 8)), 5)))
    ledger = Memory()
    ledger.adopt(run)
    for decision in list(decisions(RUN, 8))[5:]:
        ledger.append(decision)
    report = verify(ledger)
    assert report.sound
    assert report.aggregates == 3
    assert "5 rounds were imported without their votes" in report.notes


def certificate(key):
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "federator")])
    begin = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + timedelta(days=1))
    made = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256())
    return made.public_bytes(Encoding.PEM)


@pytest.mark.parametrize("kind", KEYS)
def test_a_certificate_checks_what_its_key_signed(tmp_path, kind):
    key, cert, plain = (tmp_path / name for name in ("key.pem", "cert.pem", "public.pem"))
    key.write_bytes(KEYS[kind].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    cert.write_bytes(certificate(KEYS[kind]))
    plain.write_bytes(KEYS[kind].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    ledger = ledger_of(*decisions(RUN, 3))
    ledger.seal(signed(Seal.of(ledger.head), RUN.digest, private_key(key)))
    ledger.append(list(decisions(RUN, 4))[3])
    for path in (cert, plain):
        report = verify(ledger, signer=public_key(path))
        assert report.signed == 3
        assert report.notes == ["1 rounds came after the last signature"]
    stranger = KEYS["ec" if kind == "ed25519" else "ed25519"].public_key()
    assert "is not signed by this signer" in verify(ledger, signer=stranger).findings[0]


def test_a_signature_travels_with_an_export(sound):
    with File(sound, read_only=True) as ledger:
        run = export.from_bytes(export.to_bytes(export.exported_run(ledger)))
    memory = Memory()
    memory.adopt(run)
    assert verify(memory, signer=KEYS["ec"].public_key()).signed == ROUNDS
    forged = Memory()
    forged.adopt(replace(run, scalars=run.scalars[:-1] + b"!"))
    assert verify(forged, signer=KEYS["ec"].public_key()).findings


def test_what_is_no_key(tmp_path):
    path = tmp_path / "key.pem"
    for content in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_bytes(content)
        with pytest.raises(InvalidSigner, match="holds no certificate or public key"):
            public_key(path)
        with pytest.raises(InvalidSigner, match="holds no private key"):
            private_key(path)
    key = rsa.generate_private_key(65537, 2048)
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InvalidSigner, match="use an ECDSA or Ed25519 key"):
        public_key(path)


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_command(copy, tmp_path):
    cert = tmp_path / "cert.pem"
    cert.write_bytes(certificate(KEYS["ec"]))
    head = checked(copy).head.commit.hex()
    result = invoke("verify", copy, "--signer", cert, "--head", head)
    assert result.exit_code == 0, result.output
    assert "8, 8 of them aggregated again" in result.output
    assert "sound" in result.output
    assert isinstance(invoke("verify", copy, "--head", "12").exception, InvalidLedger)
    edit(copy, ("UPDATE ballots SET client = ? WHERE round = 3 AND place = 0", (ROSTER[1],)))
    result = invoke("verify", copy)
    assert result.exit_code == 1
    assert "round 3: its votes do not match the chain" in result.output
