"""`cyber0 verify`: check a ledger or an exported run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cyber0.cli.ledger import Run, line
from cyber0.cli.replay import Data, Model, begun_with, check_task_options, chosen
from cyber0.errors import InvalidLedger
from cyber0.parameters import Parameters
from cyber0.progress import Progress
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.signing import public_key
from cyber0.protocol.verify import Report
from cyber0.protocol.verify import verify as check
from cyber0.replay import open_ledger, rebuild

__all__ = ["verify"]


def verify(
    run: Run,
    base: Annotated[
        str | None,
        typer.Option(help="The weights it began with, or 'task': also rebuild the model and compare its fingerprint."),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="A hash you know of its chain, in hexadecimal: check that it is there.")
    ] = None,
    signer: Annotated[
        Path | None, typer.Option(help="The federator's certificate or public key (PEM): check the signatures.")
    ] = None,
    own_rule: Annotated[
        bool,
        typer.Option(
            "--own-rule", help="Allow a rule given as package.module:object to be imported: only if that code is yours."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="Where --base rebuilds: auto, cpu, cuda, ...")] = "auto",
    data: Data = None,
    model: Model = None,
) -> None:
    """Check a run's record: its chain of hashes, every aggregate from its votes, its signatures, its final model."""
    check_task_options(base, data, model)
    console = Console()
    key = None if signer is None else public_key(signer)
    with open_ledger(run) as ledger:
        with Progress(console, "verifying", ledger.head.rounds) as progress:
            report = check(ledger, head=_known(head), signer=key, own_rule=own_rule, watch=progress.update)
        if base is not None and report.sound:
            _, parameters = begun_with(ledger, base, data, model)
            _check_model(console, report, ledger, parameters, device)
    _print(console, report)
    if not report.sound:
        raise typer.Exit(1)


def _known(head: str | None) -> bytes | None:
    try:
        known = None if head is None else bytes.fromhex(head)
    except ValueError:
        known = b""
    if known is not None and len(known) != 32:
        raise InvalidLedger(f"--head {head}: a hash is 64 hexadecimal digits")
    return known


def _check_model(console: Console, report: Report, ledger: Ledger, parameters: Parameters, device: str) -> None:
    known = {seal.rounds: seal.fingerprint for seal in ledger.seals if seal.fingerprint is not None}
    rounds = max(known, default=ledger.head.rounds)
    with Progress(console, "replaying", rounds) as progress:
        fingerprint = rebuild(ledger, parameters, rounds, chosen(device), progress.update)
    if rounds not in known:
        report.notes.append(f"the ledger records no fingerprint; the model's is {fingerprint:016x}")
    elif known[rounds] == fingerprint:
        report.notes.append(f"the model after {rounds} rounds has the fingerprint recorded, {fingerprint:016x}")
    else:
        report.findings.append(
            f"round {max(rounds - 1, 0)}: the model after it has the fingerprint {fingerprint:016x}, "
            f"but {known[rounds]:016x} is recorded"
        )


def _print(console: Console, report: Report) -> None:
    line(console, "rounds", f"{report.head.rounds:,}, {report.aggregates:,} of them aggregated again from their votes")
    line(console, "head", report.head.commit.hex())
    if report.signed is not None:
        line(console, "signed", f"up to round {report.signed:,}")
    for note in report.notes:
        line(console, "note", note)
    for finding in report.findings:
        line(console, "WRONG", finding)
    line(console, "verdict", "sound" if report.sound else "NOT SOUND")
