import re
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
from tests.protocol.ledgers import (
    KEYS,
    PUBLIC,
    ROSTER,
    append,
    ballot,
    decisions,
    fill,
    identity,
    reported,
    sealed,
)
from typer.testing import CliRunner

from cyber0.aggregation import RULES, mean
from cyber0.cli import app
from cyber0.config import Agreement
from cyber0.errors import InvalidConfig, InvalidIdentity, InvalidLedger, InvalidSigner
from cyber0.protocol import export
from cyber0.protocol.audit import Context, is_final
from cyber0.protocol.chain import Seal, done_statement
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory, Report
from cyber0.protocol.records import Ballot, to_wire
from cyber0.protocol.roster import Change, Roster
from cyber0.protocol.signing import encoded, private_key, public_key, sign
from cyber0.protocol.sqlite import File
from cyber0.protocol.trust import CLIENT, FEDERATOR, vouched
from cyber0.protocol.verify import verify

RUN, ROUNDS = identity(), 8
CELLS = [
    *(
        ("rounds", column, row)
        for column in ("round", "scalars", "commit_hash", "link", "signature", "changes")
        for row in (0, 4, 7)
    ),
    *(
        ("ballots", column, row)
        for column in ("round", "place", "client", "verdict", "reason", "vote", "digest", "signature")
        for row in (0, 21, 39)
    ),
    *(("seals", column, 0) for column in ("rounds", "commit_hash", "link", "fingerprint", "signature")),
    *(("run", column, 0) for column in ("identity", "imported", "roster", "layout", "anchor", "adopted")),
    *(("reports", column, 2) for column in ("client", "rounds", "fingerprint", "signature")),
    *(("hashes", column, 7) for column in ("round", "ballots")),
]
SIGNERS = {"ed25519": ed25519.Ed25519PrivateKey.generate(), "ec": ec.generate_private_key(ec.SECP256R1())}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A ledger of signed votes and links, whose end a quorum of clients has signed."""
    path = tmp_path_factory.mktemp("sound") / "run.ledger"
    with File(path) as ledger:
        fill(ledger, RUN, ROUNDS)
        sealed(ledger, fingerprint=7)
        reported(ledger, *ROSTER[:4])
    return path


@pytest.fixture
def copy(sound, tmp_path):
    path = tmp_path / "run.ledger"
    path.write_bytes(sound.read_bytes())
    return path


def checked(path, **options):
    with File(path, read_only=True) as ledger:
        return verify(ledger, signer=KEYS["federator"].public_key(), **options)


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
    keys = {"rounds": "round", "ballots": "round, place", "seals": "rounds", "run": "id", "reports": "client"}
    key = (keys | {"hashes": "round"})[table]
    found = connection.execute(f"SELECT {column}, {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET {row}").fetchone()
    connection.close()
    return found[0], " AND ".join(f"{k} = {v!r}" for k, v in zip(key.split(", "), found[1:], strict=True))


def test_a_sound_ledger(sound):
    report = checked(sound)
    assert report.findings == []
    assert (report.head.rounds, report.aggregates, report.signed) == (ROUNDS, ROUNDS, ROUNDS)
    assert (report.votes, report.final, report.missing) == (40, ROUNDS, 0)
    assert "4 clients signed that they hold the weights 0000000000000007 after it" in report.notes
    assert report.verdict == "internally consistent, authors unproven"


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
    table = data.draw(st.sampled_from(["rounds", "ballots", "hashes"]))
    moves = [(one, -1), (two, one), (-1, two)]
    edit(path, *((f"UPDATE {table} SET round = {there} WHERE round = {here}",) for here, there in moves))
    assert checked(path).findings[0].startswith(f"round {one}: ")


def test_two_ballots_that_change_places_are_found(copy):
    edit(
        copy,
        *((f"UPDATE ballots SET place = {b} WHERE round = 5 AND place = {a}",) for a, b in [(1, 9), (2, 1), (9, 2)]),
    )
    assert checked(copy).findings == ["round 5: its votes do not match the chain"]


def cut(path, *tables):
    """Remove the last two rounds, and all rows of these tables."""
    rounds = [(f"DELETE FROM {table} WHERE round >= 6",) for table in ("rounds", "ballots", "hashes")]
    edit(path, *rounds, *((f"DELETE FROM {table}",) for table in tables))


def test_a_shortened_tail_is_found_against_a_head_a_seal_or_a_report(copy, sound):
    known = checked(sound).head
    cut(copy)
    assert "there is a seal on 8 rounds: the tail was cut off" in checked(copy).findings[0]
    cut(copy, "seals")
    assert checked(copy).findings == ["ann reports 8 rounds, and 6 are here"]
    cut(copy, "reports")
    assert checked(copy).sound  # a prefix of a run is a run: only who knows more can tell
    with File(copy, read_only=True) as ledger:
        for head in (known.commit, known.link):
            assert "is not in its chain" in verify(ledger, head=head).findings[0]
        for head in (ledger.head_at(3).commit, ledger.head_at(3).link):
            assert "the known head is that after 3 rounds; 3 follow" in verify(ledger, head=head).notes


def test_a_rewritten_tail_is_found_against_a_head_or_a_seal(copy, sound):
    """Even if all clients sign it."""
    known = checked(sound).head.commit
    cut(copy)
    with File(copy) as ledger:
        for decision in list(decisions(RUN, ROUNDS, fork=6))[6:]:
            append(ledger, decision)
        assert verify(ledger).findings[0] == "round 7: the seal after it is on another history"
        assert any("is not in its chain" in finding for finding in verify(ledger, head=known).findings)


def test_a_federator_alone_cannot_rewrite_a_tail(copy):
    cut(copy, "seals", "reports")
    with File(copy) as ledger:
        for decision in list(decisions(RUN, ROUNDS, seed=99))[6:]:  # votes of another history
            append(ledger, decision)
        assert verify(ledger).findings == ["round 6: the vote of ann is not signed by it"]


def test_all_votes_replaced_are_found_though_the_federator_signs_all_links():
    """The ledger fits in itself: only the clients' signatures tell."""
    theirs = identity(signs=False)
    ledger = ledger_of(*(replace(decision, changes=()) for decision in decisions(theirs, 8)))
    assert verify(ledger).findings == ["round 0: the vote of ann is not signed by it"]


def test_who_signs_a_link_of_another_run_is_found():
    other = identity(seed=5)
    assert verify(ledger_of(*decisions(other, 4))).findings == ["round 0: the vote of ann is not signed by it"]


def ledger_of(*rounds, run=RUN, key=KEYS["federator"]):
    ledger = Memory()
    ledger.found(run)
    for decision in rounds:
        append(ledger, decision, key)
    return ledger


def with_ballots(change):
    """Round 2, in which all are counted, written by a federator that cheats."""
    first, second, third = decisions(RUN, 3)
    return verify(ledger_of(first, second, replace(third, ballots=tuple(change(list(third.ballots)))))).findings


LINKS = [written.link for written in ledger_of(*decisions(RUN, 2)).written()]


def cast(values, verdict="counted", client="ann", number=2, link=LINKS[1]):
    """A ballot that its client has signed."""
    return ballot(RUN, RUN.roster, link, number, client, verdict, values)


THREE, OTHER = to_wire([[1.0, 2.0, 3.0]]), to_wire([[3.0, 2.0, 1.0]])
CHEATS = [
    (lambda b: [replace(b[0], verdict="rejected"), *b[1:]], "are not what nnm.cwtm makes of the counted votes"),
    (lambda b: b[1:], "are not what nnm.cwtm makes of the counted votes"),
    (lambda b: b[:2], "2 votes are counted: at least 3 must be"),
    (lambda b: [b[0], *b], "a client is counted twice"),
    (lambda b: b[::-1], "not in the roster's order"),
    (lambda b: [replace(b[0], client="eve"), *b[1:]], "'eve' is not on the roster"),
    (lambda b: [replace(b[0], verdict="perhaps"), *b[1:]], "a ballot has an unknown verdict"),
    (lambda b: [cast(to_wire([[np.nan] * 3])), *b[1:]], "not finite is counted"),
    (lambda b: [cast(to_wire([[1.0]])), *b[1:]], "wrong length is counted"),
    (lambda b: [b[0].without_values(), *b[1:]], "values of a counted vote are missing"),
    (lambda b: [replace(b[0], signature=b""), *b[1:]], "the vote of ann is not signed by it"),
    (lambda b: [replace(b[0], signature=b[1].signature), *b[1:]], "the vote of ann is not signed by it"),
    (lambda b: [Ballot.of("ann", "counted", THREE, signature=b[0].signature), *b[1:]], "ann is not signed by it"),
    (lambda b: [b[0], replace(b[0], client="bob"), *b[2:]], "the vote of bob is not signed by it"),
    (lambda b: [cast(THREE, number=1), *b[1:]], "the vote of ann is not signed by it"),
    (lambda b: [cast(THREE, link=LINKS[0]), *b[1:]], "the vote of ann is not signed by it"),
    (lambda b: [cast(THREE, "late"), *b], "the vote of ann is not signed by it"),
    (lambda b: [cast(THREE, "late", number=1), *b], "the vote of ann is not signed by it"),
    (lambda b: [Ballot.of("ann", "rejected", THREE, "nonsense"), *b[1:]], "the vote of ann is not signed by it"),
    (lambda b: [cast(THREE, "equivocation"), *b[1:]], "ann is said to have cast two different votes, and only one"),
    (lambda b: [cast(THREE, "equivocation")] * 2 + b[1:], "ann is said to have cast two different votes, and only"),
]


def test_what_a_client_signed_is_no_cheat():
    """A late vote on the link of its round, and two votes of a client that equivocates, are written as they came."""
    for change, message in (
        (lambda b: [cast(THREE, "late", number=1, link=LINKS[0]), *b], []),
        (lambda b: [cast(THREE, "equivocation"), cast(OTHER, "equivocation"), *b], []),
    ):
        assert with_ballots(change) == message


@pytest.mark.parametrize(("change", "message"), CHEATS, ids=[message for _, message in CHEATS])
def test_a_federator_that_cheats_is_found(change, message):
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
    assert (report.aggregates, report.votes) == (0, 20)
    assert "the aggregates of 4 rounds were not checked: their votes' values are not here" in report.notes


own_mean = mean


def test_a_rule_of_ones_own_runs_only_where_it_may():
    run = identity(rule=f"{__name__}:own_mean")
    ledger = ledger_of(*decisions(run, 4), run=run)
    report = verify(ledger)
    assert report.sound
    assert report.aggregates == 0
    assert "and was not run" in report.notes[0]
    assert verify(ledger, own_rule=True).aggregates == 4


@pytest.mark.parametrize("keeps", [True, False], ids=["keeps votes", "keeps none"])
def test_an_imported_run_is_checked_as_far_as_it_goes(keeps):
    """One that promises its votes is not sound without them."""
    played = identity(keep_votes=keeps)
    run = export.from_bytes(export.to_bytes(export.exported_run(ledger_of(*decisions(played, 8), run=played), 5)))
    ledger = Memory()
    ledger.adopt(run)
    assert verify(ledger).findings == []
    for decision in list(decisions(played, 8))[5:]:
        append(ledger, decision)
    report = verify(ledger)
    assert report.findings == []
    assert (report.sound, report.missing) == (not keeps, 5 * keeps)
    assert report.verdict.startswith("commits proven, votes missing of 5 rounds" if keeps else "internally consistent")
    assert (report.aggregates, report.votes) == (3 * keeps, 16)
    assert "5 rounds were imported without their votes" in report.notes


def test_an_imported_run_must_fit_the_link_at_its_end():
    run = export.exported_run(ledger_of(*decisions(RUN, 4)))
    for forged, message in (
        (replace(run, scalars=run.scalars[:-1] + b"!"), "round 3: the commits up to it do not belong to the link"),
        (replace(run, anchor=None), "round 3: nothing shows that the commits up to it belong to the link"),
        (replace(run, signature=bytes(64)), "round 3: the link after it is not signed by the federator"),
        (
            replace(run, roster=replace(RUN.roster, quorum=4)),
            "round 3: the roster after it does not belong",
        ),
    ):
        ledger = Memory()
        ledger.adopt(forged)
        assert verify(ledger).findings[0].startswith(message)


# Who vouches for the keys


def certificate(key):
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "federator")])
    begin = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + timedelta(days=1))
    made = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256())
    return made.public_bytes(Encoding.PEM)


@pytest.mark.parametrize("kind", SIGNERS)
def test_a_certificate_checks_what_its_key_signed(tmp_path, kind):
    key, cert, plain = (tmp_path / name for name in ("key.pem", "cert.pem", "public.pem"))
    key.write_bytes(SIGNERS[kind].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    cert.write_bytes(certificate(SIGNERS[kind]))
    plain.write_bytes(SIGNERS[kind].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    run = replace(RUN, federator=encoded(SIGNERS[kind].public_key()))
    ledger = ledger_of(*decisions(run, 3), run=run, key=private_key(key))
    for path in (cert, plain):
        report = verify(ledger, signer=public_key(path))
        assert (report.findings, report.signed) == ([], 3)
    stranger = SIGNERS["ec" if kind == "ed25519" else "ed25519"]
    (finding,) = verify(ledger, signer=stranger.public_key()).findings
    assert finding.startswith(f"the federator of this run has the key {run.federator.hex()[:16]}, not that of this")
    append(ledger, list(decisions(run, 4))[3], stranger)
    assert verify(ledger).findings == ["round 3: the link after it is not signed by the federator"]
    ledger.append(list(decisions(run, 5))[4])
    assert len(verify(ledger).findings) == 1


def test_a_seal_of_another_is_found():
    ledger = ledger_of(*decisions(RUN, 3))
    seal = Seal.of(ledger.head, fingerprint=7)
    for signature in (None, sign(KEYS["ann"], seal.statement(RUN.digest))):
        ledger.seal(replace(seal, signature=signature))
        assert verify(ledger).findings == ["round 2: the seal after it is not signed by the federator"]


def test_a_signature_travels_with_an_export(sound):
    with File(sound, read_only=True) as ledger:
        run = export.from_bytes(export.to_bytes(export.exported_run(ledger)))
    memory = Memory()
    memory.adopt(run)
    report = verify(memory, signer=KEYS["federator"].public_key())
    assert (report.signed, report.final) == (ROUNDS, ROUNDS)
    assert len(run.reports) == 4
    forged = Memory()
    forged.adopt(replace(run, scalars=run.scalars[:-1] + b"!"))
    assert verify(forged, signer=KEYS["federator"].public_key()).findings


def test_a_quorum_of_reports_makes_the_last_commit_final_and_fewer_do_not():
    ledger = ledger_of(*decisions(RUN, 4))
    assert verify(ledger).final == 3
    reported(ledger, *ROSTER[:3])
    assert verify(ledger).final == 3
    reported(ledger, ROSTER[3], fingerprint=8)  # other weights
    assert verify(ledger).final == 3
    reported(ledger, ROSTER[3])
    assert verify(ledger).final == 4
    append(ledger, list(decisions(RUN, 5))[4])  # reports on an earlier end stay true
    assert (verify(ledger).findings, verify(ledger).final) == ([], 4)


AUTHORITIES = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ours", "other")}


def vouching(subject, public, usage, authority="ours"):
    """A certificate of an authority, in DER, for a name and a key."""
    name, issuer = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (subject, f"cyber0 {authority}")
    )
    begin = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer, name, public, x509.random_serial_number(), begin, begin + timedelta(days=1)
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return builder.sign(AUTHORITIES[authority], SHA256())


def root(authority="ours"):
    return vouching(f"cyber0 {authority}", AUTHORITIES[authority].public_key(), None, authority)


def certify(ledger, *names, authority="ours", usage=CLIENT):
    for name in names:
        made = vouching(name, KEYS[name].public_key(), FEDERATOR if name == "federator" else usage, authority)
        ledger.certify(made.public_bytes(Encoding.DER))


def test_an_authority_proves_who_the_clients_are():
    ledger = ledger_of(*decisions(RUN, 4))
    (finding,) = verify(ledger, authority=root()).findings
    assert finding == "no certificate of this authority is here for the federator's key"
    certify(ledger, "federator", *ROSTER[1:])
    certify(ledger, "ann", authority="other")
    certify(ledger, "ann", usage=FEDERATOR)  # no client's certificate
    (finding,) = verify(ledger, authority=root()).findings
    assert finding == f"no certificate of this authority is here for the key {PUBLIC['ann'].hex()[:16]} of ann"
    certify(ledger, "ann")
    report = verify(ledger, authority=root())
    assert report.sound
    assert report.verdict == (
        "sound: every number was said by its client, whose key is known by the authority's certificates"
    )
    assert "not proven: that the authority invented no client, and that no vote was left out" in report.notes
    assert verify(ledger, authority=root("other")).findings


def test_a_damaged_certificate_is_for_nobody():
    made = vouching("ann", KEYS["ann"].public_key(), CLIENT).public_bytes(Encoding.DER)
    (whose,) = vouched([made], root())
    for at in range(len(made)):
        for mask in (0x01, 0x80, 0xFF):
            changed = made[:at] + bytes([made[at] ^ mask]) + made[at + 1 :]
            assert vouched([changed], root()) <= {whose}


def test_the_digest_of_a_run_pins_the_keys_of_its_parties():
    ledger = ledger_of(*decisions(RUN, 4))
    report = verify(ledger, expect=RUN.digest)
    assert (report.sound, report.authors) == (True, "the run's digest")
    assert verify(ledger, expect=bytes(32)).findings == [
        f"this is the run {RUN.digest.hex()}, not the expected " + "0" * 64
    ]


def test_a_run_without_signatures_proves_nobody():
    run = identity(signs=False)
    ledger = ledger_of(*decisions(run, 4), run=run)
    report = verify(ledger, expect=run.digest)
    assert (report.sound, report.verdict) == (True, "internally consistent, authors unproven")
    assert "its votes are not signed: who cast them is not proven" in report.notes
    assert "this authority vouches for none of them" in verify(ledger, authority=root()).findings[0]


@pytest.mark.parametrize("asked", [True, False], ids=["by its client", "by the operator"])
def test_a_new_key_needs_the_old_one_or_a_certificate(asked):
    change = Change("rotate", "ann", PUBLIC["ann's second"])
    if asked:
        change = replace(change, signature=sign(KEYS["ann"], change.statement(RUN.digest)))
    ledger = ledger_of(*decisions(RUN, 5, changes={1: (change,)}))
    certify(ledger, "federator", *ROSTER)
    if not asked:
        (finding,) = verify(ledger, authority=root()).findings
        assert finding.endswith(f"for the key {change.key.hex()[:16]} of ann")
        made = vouching("ann", KEYS["ann's second"].public_key(), CLIENT)
        ledger.certify(made.public_bytes(Encoding.DER))
    assert verify(ledger, authority=root()).findings == []


def forgetful(changes):
    """A run of nine rounds whose votes of rounds 1 to 6 are lost, with the certificates of its first keys."""
    ledger = ledger_of()
    for decision in decisions(RUN, 9, changes=changes):
        lost = 1 <= decision.round < 7
        append(ledger, replace(decision, ballots=(), lost=decision.ballots_hash) if lost else decision)
    certify(ledger, "federator", *ROSTER)
    return ledger


@pytest.mark.parametrize("back", [5, 6], ids=["came and went", "voted afterwards"])
def test_a_key_that_was_there_only_while_votes_are_lost_needs_no_certificate(back):
    """Its certificate was lost with them: the record would be called unsound without anybody's fault."""
    second = Change("rotate", "ann", PUBLIC["ann's second"])
    ledger = forgetful({1: (second,), back: (Change("rotate", "ann", PUBLIC["ann"]),)})
    report, text = verify(ledger, authority=root()), f"for the key {second.key.hex()[:16]} of ann"
    if back == 5:
        assert report.findings == []
        assert report.verdict == "commits proven, votes missing of 6 rounds"
        assert any(f"{text}, by which no vote that is here was signed" in note for note in report.notes)
    else:
        (finding,) = report.findings
        assert finding.endswith(text)


def test_a_key_nobody_vouches_for_hands_on_nothing():
    """A federator could have made it up in rounds whose votes are lost, and signed with it for the next."""
    second = Change("rotate", "ann", PUBLIC["ann's second"])
    third = Change("rotate", "ann", PUBLIC["ann's third"])
    third = replace(third, signature=sign(KEYS["ann's second"], third.statement(RUN.digest)))
    (finding,) = verify(forgetful({1: (second,), 4: (third,)}), authority=root()).findings
    assert finding.endswith(f"for the key {third.key.hex()[:16]} of ann")
    second = replace(second, signature=sign(KEYS["ann"], second.statement(RUN.digest)))
    assert verify(forgetful({1: (second,), 4: (third,)}), authority=root()).findings == []


def test_a_key_that_was_there_only_while_votes_are_lost_makes_no_commit_final():
    names = ("ann", "bob")
    there = tuple(Change("rotate", name, PUBLIC[f"{name}'s second"]) for name in names)
    back = tuple(Change("rotate", name, PUBLIC[name]) for name in names)
    ledger = forgetful({1: there, 4: back})
    reported(ledger, "cy", "dee")
    statement = done_statement(RUN.digest, 9, ledger.head.link, 7)
    for name in names:
        ledger.report(Report(name, 9, 7, sign(KEYS[f"{name}'s second"], statement)))
    report = verify(ledger, authority=root())
    assert (report.findings, report.final) == ([], 8)
    reported(ledger, *names)
    assert verify(ledger, authority=root()).final == 9


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
    plain = KEYS["federator"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    cert.write_bytes(plain)
    head = checked(copy).head.commit.hex()
    result = invoke("verify", copy, "--signer", cert, "--head", head)
    assert result.exit_code == 0, result.output
    assert "8, 8 of them aggregated again" in result.output
    assert "NOT SOUND" not in result.output
    assert isinstance(invoke("verify", copy, "--head", "12").exception, InvalidConfig)
    edit(copy, ("UPDATE ballots SET client = ? WHERE round = 3 AND place = 0", (ROSTER[1],)))
    result = invoke("verify", copy)
    assert result.exit_code == 1
    assert "round 3: its votes do not match the chain" in result.output


def test_reports_of_all_clients_must_be_more_than_those_of_the_invited():
    """Two sets of reports that make a last commit final must share an honest client of the whole roster."""
    who = Roster.of(agreement := Agreement(clients=10, byzantine=1, participation=0.5), map(str, range(10)))
    keys = replace(who, keys=tuple(bytes([place]) * 33 for place in range(10)))
    identity = Identity(agreement, keys, "0" * 64, "0" * 64)
    context = Context(identity, keys, b"")
    assert next(votes for votes in range(11) if is_final(context, votes)) == 4
    assert next(votes for votes in range(11) if is_final(context, votes, of_all=True)) == 6
