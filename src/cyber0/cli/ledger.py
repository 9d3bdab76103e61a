"""`cyber0 ledger`: look at a run's ledger, copy it, share the run as one small file, make a ledger of such a file.

Or make a new run that begins with the first rounds of another one.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cyber0.errors import InvalidConfig, InvalidExport, InvalidIdentity, InvalidLedger
from cyber0.extras import require
from cyber0.network.keys import federator_key
from cyber0.network.remembered import DEFAULTS
from cyber0.printable import many, printable
from cyber0.protocol import export as exports
from cyber0.protocol.fork import forked
from cyber0.protocol.ledger import Ledger, Memory
from cyber0.protocol.promise import Promise
from cyber0.protocol.records import Verdict
from cyber0.protocol.signing import key_beside, private_key
from cyber0.protocol.sqlite import File
from cyber0.replay import open_ledger

__all__ = ["digest_of", "ledger", "line"]

ledger = typer.Typer(no_args_is_help=True, help="Look at a run's ledger, back it up, export it, import it, go back.")


def _a_file(run: Path) -> Path:
    """Refuse the folder of a simulated run, and say how to export it."""
    if run.is_dir() and (run / "config.toml").exists():
        raise InvalidLedger(
            f"{run} is the folder of a simulated run: make a file of it by cyber0 ledger export {quote(str(run))} "
            "--out run.cyber0, and give that"
        )
    return run


Run = Annotated[Path, typer.Argument(help="A ledger, or an exported run.", show_default=False, callback=_a_file)]


def line(console: Console, name: str, value: object) -> None:
    """Print a name and a value on one line, without markup and without what a file could tell a terminal."""
    console.print(f"{name:16} {printable(value)}", markup=False, highlight=False, soft_wrap=True)


def digest_of(text: str | None, option: str) -> bytes | None:
    """Return the digest that an option gives in hexadecimal.

    >>> digest_of("12ab", "--expect")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: --expect 12ab: a digest is 64 hexadecimal digits
    """
    try:
        digest = None if text is None else bytes.fromhex(text)
    except ValueError:
        digest = b""
    if digest is not None and len(digest) != 32:
        raise InvalidConfig(f"{option} {text}: a digest is 64 hexadecimal digits")
    return digest


@ledger.command()
def show(file: Run) -> None:
    """Show what a ledger or an exported run holds."""
    console = Console()
    with open_ledger(file) as run:
        _show_run(console, run)
        line(console, "size", f"{file.stat().st_size:,} bytes")
        _show_parties(console, run)
        if isinstance(run, File):
            console.print(_table(run))
        if run.imported:
            line(console, "votes", f"those of {many(run.imported, 'round')} are not here")
        if run.lost:
            line(console, "votes", f"of the first {run.lost:,} rounds some are lost: cyber0 verify says which")


def _show_run(console: Console, run: Ledger) -> None:
    identity, head = run.identity, run.head
    agreement, plan = identity.agreement, identity.plan
    line(console, "run", identity.digest.hex())
    if identity.parent is not None:
        line(console, "parent", f"{identity.parent.text}, whose link was {identity.parent.link.hex() or 'not known'}")
    line(console, "task", f"{agreement.task}, seed {agreement.seed}")
    if agreement.model is not None:
        line(console, "model", f"{agreement.model}, {agreement.precision}")
    if agreement.objective != "plain":
        line(console, "objective", agreement.objective)
    line(console, "rule", f"{agreement.rule}, {agreement.byzantine} of {many(agreement.clients, 'client')} may lie")
    line(console, "step", f"{plan.rows} x {many(plan.directions, f'{plan.family} direction')}, {plan.scheme}")
    line(console, "lr", f"{agreement.lr}, {agreement.schedule}, {agreement.step_rule} steps")
    line(console, "manifest", identity.manifest)
    line(console, "base", identity.base)
    for part, digest in sorted(identity.meaning.items()):
        line(console, "meaning", f"{part:16} {digest}")
    line(console, "rounds", f"{head.rounds:,} of {run.roster.last:,}, {4 * plan.scalars:,} bytes each")
    line(console, "head", "not known" if head.link is None else head.link.hex())
    line(console, "commits' head", head.commit.hex())
    for seal in run.seals[-1:]:
        mark = "no fingerprint" if seal.fingerprint is None else f"fingerprint {seal.fingerprint:016x}"
        line(
            console,
            "last seal",
            f"after {many(seal.rounds, 'round')}, {'signed' if seal.signature else 'not signed'}, {mark}",
        )


def _show_parties(console: Console, run: Ledger) -> None:
    """Show who takes part from the next round on, by which keys, and what is about to change."""
    identity, roster = run.identity, run.roster
    line(console, "federator", f"key {identity.federator.hex()}" if identity.federator else "no key")
    line(console, "links", "signed, and the votes on them" if identity.signs else "not signed")
    if identity.protocol > 1:
        line(console, "quorum", f"{roster.quorum} of {len(roster.names)}, {roster.byzantine} of whom may lie")
    for name, key in zip(roster.names, roster.keys, strict=True):
        line(console, "client", f"{name}, {'key ' + key.hex()[:16] if key else 'no key yet'}")
    for promised in run.promises:
        line(console, "promise", f"{promised.client}, from round {promised.round:,} on: {_promise(promised.promise)}")
    for change in roster.pending:
        line(console, "pending", f"{change.text}, from the round after the next on")
    if run.reports:
        marks = Counter(report.fingerprint for report in run.reports)
        said = ", ".join(f"{mark:016x} by {count}" for mark, count in marks.most_common())
        line(console, "reports", f"of {many(len(run.reports), 'client')} at the end, signed: {said}")


def _promise(promise: bytes) -> str:
    try:
        return Promise.from_bytes(promise).text
    except InvalidIdentity as error:
        return str(error)


def _table(run: File) -> Table:
    verdicts = get_args(Verdict)
    table = Table("client", *verdicts, title="ballots")
    for client, counts in run.counts().items():
        table.add_row(escape(printable(client)), *(f"{counts.get(verdict, 0):,}" for verdict in verdicts))
    return table


@ledger.command()
def backup(
    file: Annotated[Path, typer.Argument(help="A ledger; a federator may be writing it.", show_default=False)],
    copy: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
) -> None:
    """Copy a ledger with all its votes, as it is at this instant, also while a federator writes it.

    To restore it, put the copy in the ledger's place and start the federator again: its clients give it the rounds that
    were decided since. Keep the key that signs the ledger as well: it is in a file of its own.
    """
    console = Console()
    with File(file, read_only=True) as run:
        run.backup(copy)
    with File(copy, read_only=True) as copied:
        rounds = copied.head.rounds if copied.founded else 0
        line(console, "written to", f"{copy}: {many(rounds, 'round')}, with their votes")
    key = file.with_name(file.name + "-key.pem")
    if key.exists():
        line(console, "not copied", f"{key}, which signs it: keep a copy of that in a safe place, too")


@ledger.command()
def export(
    file: Annotated[Path, typer.Argument(help="A ledger, or the folder of a run by `cyber0 run`.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The file to write, e.g. run.cyber0.", show_default=False)],
    rounds: Annotated[
        int | None,
        typer.Option("--round", min=0, help="Stop after so many rounds. \\[default: all]", show_default=False),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="For the folder of a run: where its data are now.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="For the folder of a run: where its model is now.", show_default=False)
    ] = None,
) -> None:
    """Write a run without its votes as one small file, which with the base model rebuilds the trained one."""
    for name, value in (("--data", data), ("--model", model)):
        if value is not None and not file.is_dir():
            raise InvalidConfig(f"{name} {value} is for the folder of a run, and {file} is none: leave it out")
    with _played(file, None if data is None else str(data), model) if file.is_dir() else open_ledger(file) as run:
        exported = exports.exported_run(run, rounds)
    size = exports.write(out, exported)
    console = Console()
    line(console, "rounds", f"{exported.rounds:,}")
    line(console, "head", exported.head.commit.hex())
    line(console, "signed", "yes" if exported.seal is not None and exported.seal.signature else "no")
    line(console, "written to", f"{out}, {size:,} bytes")


@contextmanager
def _played(folder: Path, data: str | None, model: str | None) -> Generator[Ledger]:
    """Open the run in a folder as a ledger."""
    require("torch", extra="train")
    from cyber0.simulation.export import from_folder

    with Memory() as memory:
        memory.adopt(from_folder(folder, data, model))
        yield memory


@ledger.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="An exported run.", show_default=False)],
    out: Annotated[Path, typer.Option("--ledger", help="The ledger to make.", show_default=False)],
) -> None:
    """Make a ledger of an exported run, to be continued; it has no votes of the rounds so far."""
    if not exports.is_export(file):
        raise InvalidExport(f"{file} is not an exported run" if file.exists() else f"there is no file {file}")
    if out.exists():
        raise InvalidLedger(f"{out} exists: name a new file")
    exported = exports.read(file)
    with _new_ledger(out) as made:
        made.adopt(exported)
    line(Console(), "written to", f"{out}: {many(exported.rounds, 'round')}, without their votes")


@ledger.command()
def fork(
    file: Annotated[Path, typer.Argument(help="The ledger of a run, or an exported run.", show_default=False)],
    new: Annotated[Path, typer.Argument(help="The ledger to make.", show_default=False)],
    rounds: Annotated[
        int | None,
        typer.Option("--round", min=0, help="Begin with so many rounds of it. \\[default: all]", show_default=False),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="How many the new run has in all. \\[default: as many as that one]"),
    ] = None,
    tls: Annotated[Path | None, typer.Option(help="The folder made by cyber0 keys init.", show_default=False)] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="The key that signs the ledger. \\[default: that of --tls, or beside it]", show_default=False
        ),
    ] = None,
) -> None:
    """Go back: make a new run that begins with the first rounds of another one, and names it as its parent.

    A run itself cannot be taken back, since nobody signs a round of it twice. Clients join the new run as any other,
    and keep what they have of the old one.
    """
    beside = file.with_name(file.name + "-key.pem")
    signer = key or (federator_key(tls) if tls else beside)
    if not signer.exists():
        raise InvalidConfig(f"there is no key {signer}: give the one that signs {file}, by --tls or --key")
    copied = new.with_name(new.name + "-key.pem")
    if signer == beside and copied.exists() and not new.exists():
        raise InvalidConfig(f"{copied} exists, and may be the key of another run: name a new ledger")
    with open_ledger(file) as run:
        made = forked(run, run.head.rounds if rounds is None else rounds, private_key(signer), last)
        settings = run.settings if isinstance(run, File) else {}
    with _new_ledger(new) as written:
        written.adopt(made)
        written.remember({name: value for name, value in settings.items() if name in DEFAULTS})
        if signer == beside:
            key_beside(copied, beside)
    console = Console()
    line(console, "run", made.identity.digest.hex())
    line(console, "parent", "" if made.identity.parent is None else made.identity.parent.text)
    line(console, "written to", f"{new}: {many(made.rounds, 'round')}, without their votes, which {file} has")
    line(console, "next", f"cyber0 serve --ledger {quote(str(new))}, with the same --listen and --tls")


@contextmanager
def _new_ledger(path: Path) -> Generator[File]:
    """Make a ledger; nothing is left of it where that fails: it is no ledger yet, and would be in the way."""
    if path.exists():
        raise InvalidLedger(f"{path} exists: name a new file")
    try:
        with File(path) as made:
            yield made
    except BaseException:
        for suffix in ("", "-lock", "-shm", "-wal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        raise
