"""The ledger on disk: one SQLite file, which one federator writes while others may read it."""

import json
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cyber0.errors import InvalidIdentity, InvalidLedger
from cyber0.protocol.chain import Anchor, Head, Seal, advance, genesis
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import ExportedRun, Linked, Report, Written, check_seal, imported_rounds, is_news, prepared
from cyber0.protocol.records import Decision, Promised
from cyber0.protocol.roster import Change, Roster, changes_from, changes_to_bytes
from cyber0.protocol.schema import (
    FAULTS,
    HEAD,
    IDENTITY,
    LATER_FAULTS,
    LATER_TABLES,
    LINKS,
    MAGIC,
    PROMISE,
    SCHEMA,
    SELECT,
    TABLES,
    ballot_from,
    blob,
    later_tables,
    promised_from,
    report_from,
    run_row,
    seal_from,
    statements,
)
from cyber0.protocol.storage import Lock, check_whole, connect, copy, leave_wal, sync_folder, trust

__all__ = ["File"]

PAGE, BALLOTS = 256, 2**16  # rounds that are read at a time, and about so many ballots
CACHE = 128  # kB of pages that a connection which writes keeps in memory: it reads little


class File:
    """A ledger in a file. One process at a time opens it to write; with `read_only=True` nothing is changed.

    >>> import numpy as np
    >>> from tempfile import mkdtemp
    >>> from cyber0.config import Agreement
    >>> from cyber0.parameters import Parameters
    >>> from cyber0.protocol.records import Ballot
    >>> zeros = Parameters({"w": np.zeros(3, dtype=np.float32)})
    >>> path = Path(mkdtemp()) / "run.ledger"
    >>> with File(path) as ledger:
    ...     ledger.found(Identity.of(Agreement(clients=1, byzantine=0, directions=1), ["ann"], zeros))
    ...     head = ledger.append(Decision(0, bytes(4), (Ballot.of("ann", "counted", bytes(4)),)))
    >>> with File(path, read_only=True) as ledger:
    ...     ledger.head == head, [ballot.client for ballot in next(ledger.decisions()).ballots]
    (True, ['ann'])
    """

    def __init__(self, path: Path | str, *, read_only: bool = False, synchronous: str = "FULL") -> None:
        self.path = Path(path)
        self._lock: Lock | None = None
        self._identity: Identity | None = None
        self._head: Head | None = None
        self._roster: Roster | None = None
        self._schema = SCHEMA
        self._has_tables, self._later = True, len(LATER_TABLES)  # any at all; how many of those that it may lack
        self._connection: Any = None
        try:
            if not read_only:
                self._lock = Lock(self.path)
            check_whole(self.path, self._lock)
            self._connection = connect(self.path, read_only=read_only)
            with self._reading():  # of one instant: another process may be making its tables
                self._check_schema()
            if not read_only:
                for setting in ("journal_mode = WAL", f"synchronous = {synchronous}", f"cache_size = -{CACHE}"):
                    self._connection.execute(f"PRAGMA {setting}")
                if self._has_tables and self._schema == SCHEMA and self._later < len(LATER_TABLES):
                    self._make_tables("".join(LATER_TABLES[self._later :]))
        except sqlite3.Error as error:
            self.close()
            raise InvalidLedger(f"{self.path} cannot be written: {error}") from None
        except BaseException:
            self.close()
            raise

    def _check_schema(self) -> None:
        (magic,), (schema,) = (self._all(f"PRAGMA {name}")[0] for name in ("application_id", "user_version"))
        if magic == 0 and not self._all("SELECT name FROM sqlite_master"):
            trust(self._connection)
            self._has_tables, self._later = False, 0
            return  # a file that was made, and nothing written yet
        if magic != MAGIC:
            raise InvalidLedger(f"{self.path} is a database, but not a ledger")
        if schema not in SELECT:
            raise InvalidLedger(
                f"{self.path} is a ledger of version {schema}: this cyber0 knows versions 1 and {SCHEMA}"
            )
        self._schema = schema
        self._check_tables()

    def _check_tables(self) -> None:
        """Refuse a file of other tables than a ledger makes: a view can be endless, and a trigger do anything."""
        rows = self._all("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
        self._later = later_tables(self.path, self._schema, rows)
        if wrong := trust(self._connection):
            raise InvalidLedger(f"{self.path} is damaged: {wrong}")

    @property
    def identity(self) -> Identity:
        """As in `Ledger`."""
        if self._identity is None:
            if not self.founded:
                raise InvalidLedger(f"{self.path} holds no run yet")
            self._identity = Identity.from_bytes(*map(blob, self._all(IDENTITY[self._schema])[0]))
        return self._identity

    @property
    def founded(self) -> bool:
        """As in `Ledger`."""
        return bool(self._all("SELECT 1 FROM sqlite_master WHERE name = 'run'") and self._all("SELECT 1 FROM run"))

    @property
    def imported(self) -> int:
        """As in `Ledger`."""
        imported = self._all("SELECT imported FROM run")[0][0]
        if not isinstance(imported, int):
            raise InvalidLedger(f"{self.path} is damaged: imported = {imported!r} must be a number of rounds")
        return imported

    @property
    def head(self) -> Head:
        """As in `Ledger`."""
        if self._head is not None:  # only this process writes
            return self._head
        return self.head_at(self._stop(None))

    @property
    def roster(self) -> Roster:
        """As in `Ledger`."""
        if self._roster is None:
            self._roster = self._roster_at_head()
        return self._roster

    def _roster_at_head(self) -> Roster:
        if self._schema == 1:
            return self.identity.roster
        roster, at = self.adopted, self.imported  # the next round whose changes are not made yet
        for number, changes in self.changed():
            roster = roster if number == at else roster.after(())
            roster, at = roster.after(changes), number + 1
        return roster if at == self._stop(None) else roster.after(())

    def changed(self) -> list[tuple[int, tuple[Change, ...]]]:
        """As in `Ledger`."""
        if self._schema == 1:
            return []
        rows = self._all("SELECT round, changes FROM rounds WHERE changes != x'' ORDER BY round")
        return [(number, changes_from(blob(changes))) for number, changes in rows]

    def found(self, identity: Identity) -> None:
        """As in `Ledger`."""
        self._begin(ExportedRun(identity, b"", identity.digest), imported=0)
        self._identity = identity  # the same again, read from the file, would take as much memory

    def adopt(self, run: ExportedRun) -> None:
        """As in `Ledger`."""
        self._begin(run, imported=run.rounds)

    def _begin(self, run: ExportedRun, imported: int) -> None:
        if self.founded:
            raise InvalidLedger(f"{self.path} holds a run already")
        if run.identity.protocol == 1:
            raise InvalidLedger(
                "this run is of version 1: it can be verified, replayed and exported, but not continued"
            )
        if not self._has_tables:
            self._make_tables("".join((TABLES, *LATER_TABLES)))
        with self._writing():
            self._connection.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?)", run_row(run, imported))
            for written in imported_rounds(run):
                self._insert(written)
            if run.seal is not None:
                self._insert_seal(run.seal)
            for report in run.reports:
                self._insert_report(report)
            for certificate in run.certificates:
                self._connection.execute("INSERT OR IGNORE INTO certificates VALUES (?)", (certificate,))
        self._all("PRAGMA wal_checkpoint(PASSIVE)")  # so that a copy without the log is seen to be one
        sync_folder(self.path)

    def _make_tables(self, tables: str) -> None:
        with self._writing():
            for statement in statements(tables):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id = {MAGIC}")
            self._connection.execute(f"PRAGMA user_version = {SCHEMA}")
        self._has_tables, self._later = True, len(LATER_TABLES)

    def append(self, decision: Decision, signature: bytes = b"") -> Head:
        """As in `Ledger`."""
        return self.append_all([(decision, signature)])

    def append_all(self, decisions: Iterable[tuple[Decision, bytes]]) -> Head:
        """Write the next rounds with their signatures in one transaction: after a crash, all are there or none."""
        head, roster = self.head, self.roster
        with self._writing():
            for decision, signature in decisions:
                decided = prepared(self.identity, head, decision)
                roster = roster.after(decided.changes)
                head = advance(head, decided, roster)
                self._insert(Written(decided, head.commit, head.link, signature, decided.ballots_hash))
        self._head, self._roster = head, roster
        return head

    def _insert(self, written: Written) -> None:
        decision = written.decision
        changes = changes_to_bytes(decision.changes)
        row = (decision.round, decision.scalars, written.commit, written.link, written.signature, changes)
        self._connection.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", row)
        rows = (
            (
                *(decision.round, place, b.client, b.verdict, b.reason, b.values),
                *(b.digest if b.values is None else None, b.signature),
            )
            for place, b in enumerate(decision.ballots)
        )
        self._connection.executemany("INSERT INTO ballots VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        if written.ballots:
            self._connection.execute("INSERT INTO hashes VALUES (?, ?)", (decision.round, written.ballots))
        if decision.lost:
            self._connection.execute("INSERT INTO lost VALUES (?, ?)", (decision.round, decision.lost))

    def decisions(self, start: int = 0, stop: int | None = None) -> Iterator[Decision]:
        """As in `Ledger`."""
        return (written.decision for written in self.written(start, stop))

    def written(self, start: int = 0, stop: int | None = None) -> Iterator[Written]:
        """As in `Ledger`."""
        stop = self._stop(stop)
        select, more = SELECT[self._schema]
        page = max(1, min(PAGE, BALLOTS // max(1, len(self.identity.roster.names)))) if start < stop else 1
        while rounds := self._all(select, (start, stop, page)):
            between = (rounds[0][0], rounds[-1][0])
            rows = self._all(more, between)
            ballots = {number: tuple(map(ballot_from, group)) for number, group in groupby(rows, itemgetter(0))}
            lost, hashes = self._hashes("lost", *between), self._hashes("hashes", *between)
            for number, scalars, commit, link, signature, changes in rounds:
                content = blob(scalars), ballots.get(number, ()), self._changes(number, changes)
                decision = Decision(number, *content, lost.get(number, b""))
                yield Written(decision, commit, link, blob(signature), hashes.get(number, b""))
            start = rounds[-1][0] + 1

    def _hashes(self, table: str, first: int, last: int) -> dict[int, bytes]:
        """Return the hashes of ballots that a table has, by round."""
        if not any(table in statement for statement in LATER_TABLES[: self._later]):
            return {}
        rows = self._all(f"SELECT round, ballots FROM {table} WHERE round BETWEEN ? AND ?", (first, last))  # noqa: S608
        return {number: blob(ballots) for number, ballots in rows}

    def linked(self, start: int = 0, stop: int | None = None) -> Iterator[Linked]:
        """As in `Ledger`. Of a round of a ledger that kept no hashes all ballots are read."""
        if self._schema == 1:
            yield from map(Linked.of, self.written(start, stop))
            return
        stop = self._stop(stop)
        while start < stop and (rounds := self._all(LINKS[self._later], (start, stop, PAGE))):
            for number, scalars, signature, changes, ballots, lost in rounds:
                if ballots is None:
                    yield Linked.of(next(self.written(number, number + 1)))
                else:
                    made = blob(scalars), blob(ballots), self._changes(number, changes), blob(signature)
                    yield Linked(number, *made, bool(lost))
            start = rounds[-1][0] + 1

    @property
    def lost(self) -> int:
        """As in `Ledger`."""
        found = self._all("SELECT max(round) FROM lost")[0][0] if self._later else None
        return 0 if found is None else found + 1

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked for when the run was served, by name; it may be known before the run is founded."""
        if not self._later:
            return {}
        try:
            return {name: json.loads(value) for name, value in self._all("SELECT name, value FROM settings")}
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidLedger(f"{self.path} is damaged: its settings cannot be read: {error}") from None

    def remember(self, settings: Mapping[str, Any]) -> None:
        """Keep what was asked for, by name, in place of what was kept under these names."""
        if not self._has_tables:
            self._make_tables("".join((TABLES, *LATER_TABLES)))
        rows = [(name, json.dumps(value)) for name, value in settings.items()]
        with self._writing():
            self._connection.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", rows)

    def promise(self, promised: Promised) -> None:
        """As in `Ledger`."""
        if is_news(promised, self.promises):
            value = {"promise": promised.promise.hex(), "signature": promised.signature.hex()}
            self.remember({f"{PROMISE}{promised.round}:{promised.client}": value})

    @property
    def promises(self) -> list[Promised]:
        """As in `Ledger`."""
        found = {name: value for name, value in self.settings.items() if name.startswith(PROMISE)}
        promises = (promised_from(self.path, name, value) for name, value in found.items())
        return sorted(promises, key=lambda each: (each.round, each.client))

    def _changes(self, number: int, changes: Any) -> tuple[Change, ...]:
        try:
            return changes_from(blob(changes))
        except InvalidIdentity as error:
            raise InvalidLedger(f"{self.path} is damaged in round {number}: {error}") from None

    def commits(self, start: int = 0, stop: int | None = None) -> bytes:
        """As in `Ledger`."""
        between = (start, self._stop(stop) - 1)
        rows = self._all("SELECT scalars FROM rounds WHERE round BETWEEN ? AND ? ORDER BY round", between)
        return b"".join(blob(row[0]) for row in rows)

    def head_at(self, rounds: int) -> Head:
        """As in `Ledger`."""
        if rounds == 0:
            return genesis(self.identity.digest)
        found = self._all(HEAD[self._schema], (rounds - 1,))
        if not found:
            raise InvalidLedger(f"{self.path} does not have round {rounds - 1}")
        commit, last = found[0]
        return Head(rounds, blob(commit), None if last is None else blob(last))

    def seal(self, seal: Seal) -> None:
        """As in `Ledger`."""
        check_seal(seal, self.head_at(seal.rounds))
        with self._writing():
            self._insert_seal(seal)

    def _insert_seal(self, seal: Seal) -> None:
        reported = None if seal.fingerprint is None else seal.fingerprint.to_bytes(8, "little")
        row = (seal.rounds, seal.commit, seal.link, reported, seal.signature)
        self._connection.execute("INSERT OR REPLACE INTO seals VALUES (?, ?, ?, ?, ?)", row)

    @property
    def seals(self) -> list[Seal]:
        """As in `Ledger`."""
        return [seal_from(self.path, *row) for row in self._all("SELECT * FROM seals ORDER BY rounds")]

    def report(self, report: Report) -> None:
        """As in `Ledger`."""
        with self._writing():
            self._insert_report(report)

    def _insert_report(self, report: Report) -> None:
        row = (report.client, report.rounds, report.fingerprint.to_bytes(8, "little"), report.signature)
        self._connection.execute("INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?)", row)

    @property
    def reports(self) -> list[Report]:
        """As in `Ledger`."""
        if self._schema == 1:
            return []
        rows = self._all("SELECT client, rounds, fingerprint, signature FROM reports ORDER BY client")
        return [report_from(self.path, *row) for row in rows]

    def certify(self, *certificates: bytes) -> None:
        """As in `Ledger`."""
        with self._writing():
            rows = ((certificate,) for certificate in sorted(certificates))  # as they are stored
            self._connection.executemany("INSERT OR IGNORE INTO certificates VALUES (?)", rows)

    @property
    def certificates(self) -> list[bytes]:
        """As in `Ledger`."""
        if self._schema == 1:
            return []
        return [blob(row[0]) for row in self._all("SELECT certificate FROM certificates ORDER BY certificate")]

    @property
    def adopted(self) -> Roster:
        """As in `Ledger`."""
        data = b"" if self._schema == 1 else blob(self._all("SELECT adopted FROM run")[0][0])
        return Roster.from_bytes(data) if data else self.identity.roster

    @property
    def anchor(self) -> Anchor | None:
        """As in `Ledger`."""
        data = b"" if self._schema == 1 else blob(self._all("SELECT anchor FROM run")[0][0])
        if len(data) not in (0, 96):
            raise InvalidLedger(f"{self.path} is damaged: its anchor has {len(data)} bytes, not 96")
        return Anchor.from_bytes(data) if data else None

    def faults(self) -> list[tuple[int, str]]:
        """As in `Ledger`."""
        queries = FAULTS.copy()
        for later in LATER_FAULTS[: self._later]:
            queries |= later
        found = [(row[0], problem) for problem, query in queries.items() for row in self._all(query)]
        return sorted((number if isinstance(number, int) else -1, problem) for number, problem in found)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many ballots of each verdict each client has."""
        counts: dict[str, dict[str, int]] = {name: {} for name in self.roster.names}
        for client, verdict, number in self._all(
            "SELECT client, verdict, count(*) FROM ballots GROUP BY client, verdict ORDER BY client, verdict"
        ):
            counts.setdefault(client, {})[verdict] = number
        return counts

    def backup(self, path: Path) -> None:
        """Copy it to a new file, as it is now, also while a federator writes it."""
        copy(self._connection, path)

    def close(self) -> None:
        """Close the file; only that of the lock on its name stays beside it."""
        if self._connection is not None:
            if self._lock is not None:
                leave_wal(self._connection)
            self._connection.close()
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _stop(self, stop: int | None) -> int:
        if stop is not None:
            return stop
        ((last,),) = self._all("SELECT max(round) FROM rounds") if self.founded else [(None,)]
        return 0 if last is None else last + 1

    def _all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # which may have a damaged name in its text
            raise InvalidLedger(f"{self.path} is damaged or in use: {error}") from None

    @contextmanager
    def _reading(self) -> Generator[None]:
        """Read the file as it is when the first query begins, whoever writes meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Generator[None]:
        """Write in one transaction, which is on disk when it ends."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise InvalidLedger(f"{self.path} cannot be written: {error}") from None
