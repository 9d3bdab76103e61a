"""How a ledger lies in a SQLite file: its tables in each version, what is read from them, and rows made of records."""

from pathlib import Path
from typing import Any, cast

from cyber0.errors import InvalidLedger
from cyber0.protocol.chain import Seal
from cyber0.protocol.identity import layout_bytes
from cyber0.protocol.ledger import ExportedRun, Report
from cyber0.protocol.records import Ballot, Promised, Verdict

MAGIC, SCHEMA = 0x43594230, 2  # "CYB0"
TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY CHECK (id = 0), identity BLOB NOT NULL, imported INTEGER NOT NULL, roster BLOB NOT NULL,
    layout BLOB NOT NULL, anchor BLOB NOT NULL, adopted BLOB NOT NULL
);
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, scalars BLOB NOT NULL, commit_hash BLOB NOT NULL, link BLOB, signature BLOB NOT NULL,
    changes BLOB NOT NULL
);
CREATE TABLE ballots (
    round INTEGER NOT NULL, place INTEGER NOT NULL, client TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL,
    vote BLOB, digest BLOB, signature BLOB NOT NULL, PRIMARY KEY (round, place)
) WITHOUT ROWID;
CREATE TABLE seals (
    rounds INTEGER PRIMARY KEY, commit_hash BLOB NOT NULL, link BLOB NOT NULL, fingerprint BLOB, signature BLOB
);
CREATE TABLE reports (
    client TEXT PRIMARY KEY, rounds INTEGER NOT NULL, fingerprint BLOB NOT NULL, signature BLOB NOT NULL
);
CREATE TABLE certificates (certificate BLOB PRIMARY KEY);
"""
LATER_TABLES = (  # which a ledger of the same version may lack, from the end
    """
CREATE TABLE lost (round INTEGER PRIMARY KEY, ballots BLOB NOT NULL);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
""",
    """
CREATE TABLE hashes (round INTEGER PRIMARY KEY, ballots BLOB NOT NULL);
""",
)
FIRST_TABLES = """
CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 0), identity BLOB NOT NULL, imported INTEGER NOT NULL);
CREATE TABLE rounds (round INTEGER PRIMARY KEY, scalars BLOB NOT NULL, commit_hash BLOB NOT NULL, votes_hash BLOB);
CREATE TABLE ballots (
    round INTEGER NOT NULL, place INTEGER NOT NULL, client TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL,
    vote BLOB, digest BLOB, PRIMARY KEY (round, place)
) WITHOUT ROWID;
CREATE TABLE seals (
    rounds INTEGER PRIMARY KEY, commit_hash BLOB NOT NULL, votes_hash BLOB NOT NULL, fingerprint BLOB, signature BLOB
);
"""
SELECT = {  # rounds and ballots of each version
    1: (
        "SELECT round, scalars, commit_hash, votes_hash, x'', x'' FROM rounds WHERE round >= ? AND round < ? "
        "ORDER BY round LIMIT ?",
        "SELECT round, place, client, verdict, reason, vote, digest, x'' FROM ballots WHERE round BETWEEN ? AND ? "
        "ORDER BY round, place",
    ),
    2: (
        "SELECT round, scalars, commit_hash, link, signature, changes FROM rounds WHERE round >= ? AND round < ? "
        "ORDER BY round LIMIT ?",
        "SELECT * FROM ballots WHERE round BETWEEN ? AND ? ORDER BY round, place",
    ),
}
IDENTITY = {1: "SELECT identity, x'', x'' FROM run", 2: "SELECT identity, roster, layout FROM run"}
HEAD = {
    1: "SELECT commit_hash, votes_hash FROM rounds WHERE round = ?",
    2: "SELECT commit_hash, link FROM rounds WHERE round = ?",
}
FAULTS = {
    "has ballots, but was not decided": (
        "SELECT DISTINCT round FROM ballots WHERE round NOT IN (SELECT round FROM rounds)"
    ),
    "has ballots that are not numbered 0, 1, ...": (
        "SELECT round FROM ballots GROUP BY round HAVING min(place) != 0 OR max(place) != count(*) - 1"
    ),
    "has a ballot with a vote and a digest beside it": (
        "SELECT DISTINCT round FROM ballots WHERE vote IS NOT NULL AND digest IS NOT NULL"
    ),
}
LATER_FAULTS = (  # by tables that came later
    {
        "has lost its ballots, but was not decided": (
            "SELECT round FROM lost WHERE round NOT IN (SELECT round FROM rounds)"
        ),
        "has ballots, though they are lost": (
            "SELECT DISTINCT round FROM ballots WHERE round IN (SELECT round FROM lost)"
        ),
        "has no hash of the ballots that are lost": (
            "SELECT round FROM lost WHERE typeof(ballots) != 'blob' OR length(ballots) != 32"
        ),
    },
    {
        "has a hash of ballots, but was not decided": (
            "SELECT round FROM hashes WHERE round NOT IN (SELECT round FROM rounds)"
        ),
    },
)
LINKS = (  # what links are made of, by how many of the tables that came later there are
    "SELECT round, scalars, signature, changes, NULL, 0 FROM rounds WHERE round >= ? AND round < ? "
    "ORDER BY round LIMIT ?",
    "SELECT rounds.round, scalars, signature, changes, lost.ballots, lost.round IS NOT NULL FROM rounds "
    "LEFT JOIN lost ON lost.round = rounds.round WHERE rounds.round >= ? AND rounds.round < ? "
    "ORDER BY rounds.round LIMIT ?",
    "SELECT rounds.round, scalars, signature, changes, coalesce(hashes.ballots, lost.ballots), "
    "lost.round IS NOT NULL FROM rounds LEFT JOIN lost ON lost.round = rounds.round "
    "LEFT JOIN hashes ON hashes.round = rounds.round WHERE rounds.round >= ? AND rounds.round < ? "
    "ORDER BY rounds.round LIMIT ?",
)
PROMISE = "promise:"  # the beginning of a setting that is none: what a client has promised about its privacy


def ballot_from(row: tuple[Any, ...]) -> Ballot:
    """Return a ballot of a row. A row that was tampered with gives one, too, whose hash does not match the chain."""
    _, _, client, verdict, reason, vote, digest, signature = row
    verdict = verdict if isinstance(verdict, str) else repr(verdict)
    if vote is not None:
        return Ballot.of(str(client), cast("Verdict", verdict), blob(vote), str(reason), blob(signature))
    return Ballot(str(client), cast("Verdict", verdict), None, blob(digest), str(reason), blob(signature))


def run_row(run: ExportedRun, imported: int) -> tuple[Any, ...]:
    """Return the row of a run that begins with so many imported rounds."""
    identity = run.identity
    layout = b"" if identity.layout is None else layout_bytes(identity.layout)
    anchor = b"" if run.anchor is None else run.anchor.to_bytes()
    adopted = b"" if run.roster is None else run.roster.to_bytes()
    return 0, identity.to_bytes(), imported, identity.roster.to_bytes(), layout, anchor, adopted


def statements(tables: str) -> list[str]:
    """Return the statements that make tables, as a database keeps them."""
    return [" ".join(statement.split()) for statement in tables.split(";")[:-1]]


def later_tables(path: Path, schema: int, rows: list[tuple[Any, Any]]) -> int:
    """Return how many of `LATER_TABLES` a file has; refuse one of others than a ledger makes.

    Args:
        path: The file.
        schema: The version of its tables.
        rows: Name and statement of all that is defined in it.

    """
    made = statements(TABLES if schema == SCHEMA else FIRST_TABLES)
    found = sorted(" ".join(str(sql).split()) for _, sql in rows)
    for later in range(1 + (len(LATER_TABLES) if schema == SCHEMA else 0)):
        if found == sorted([*made, *statements("".join(LATER_TABLES[:later]))]):
            return later
    names = ", ".join(sorted(str(name) for name, _ in rows)[:20])
    raise InvalidLedger(f"{path} is no ledger: its tables ({names}) are not as a ledger makes them")


def seal_from(path: Path, rounds: int, commit: Any, link: Any, mark: Any, signature: Any) -> Seal:
    """Return the seal of a row."""
    blobs = isinstance(commit, bytes) and isinstance(link, bytes) and isinstance(signature, bytes | None)
    if not blobs or rounds < 0 or not (mark is None or (isinstance(mark, bytes) and len(mark) == 8)):
        raise InvalidLedger(f"{path} is damaged: the seal on {rounds} rounds cannot be read")
    return Seal(rounds, commit, link, None if mark is None else int.from_bytes(mark, "little"), signature)


def report_from(path: Path, client: Any, rounds: Any, mark: Any, signature: Any) -> Report:
    """Return the report of a row."""
    blobs = isinstance(mark, bytes) and len(mark) == 8 and isinstance(signature, bytes)
    if not blobs or not isinstance(client, str) or not isinstance(rounds, int):
        raise InvalidLedger(f"{path} is damaged: the report of {client!r} cannot be read")
    return Report(client, rounds, int.from_bytes(mark, "little"), signature)


def promised_from(path: Path, name: str, value: Any) -> Promised:
    """Return the promise of a setting."""
    try:
        number, _, client = name.removeprefix(PROMISE).partition(":")
        return Promised(client, int(number), bytes.fromhex(value["promise"]), bytes.fromhex(value["signature"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidLedger(f"{path} is damaged: a promise cannot be read: {error}") from None


def blob(value: Any) -> bytes:
    """Return the bytes of a column; of one that was tampered with, some that match no hash."""
    return value if isinstance(value, bytes) else repr(value).encode()
