"""`cyber0 verify`: check a ledger, an exported run, or evidence."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cyber0.cli.ledger import Run, digest_of, line
from cyber0.cli.replay import (
    Data,
    Model,
    begun_with,
    check_task_options,
    check_writable,
    chosen,
    resumable,
    write,
)
from cyber0.errors import InvalidConfig, InvalidEvidence
from cyber0.files import state_directory
from cyber0.network.key_files import certificate
from cyber0.parameters import Parameters
from cyber0.printable import many
from cyber0.progress import Progress
from cyber0.protocol.evidence import LARGEST, certificates_in, is_evidence, judge
from cyber0.protocol.export import is_export
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.signing import public_key
from cyber0.protocol.trust import vouched
from cyber0.protocol.verify import Report
from cyber0.protocol.verify import verify as check
from cyber0.replay import Checkpoint, open_ledger, rebuild

__all__ = ["conclusion", "verify"]


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
    authority: Annotated[
        Path | None,
        typer.Option(help="The certificate of the authority (ca.pem) that must vouch for the keys of all parties."),
    ] = None,
    expect: Annotated[
        str | None, typer.Option(help="The run's digest, in hexadecimal, which covers the keys it began with.")
    ] = None,
    own_rule: Annotated[
        bool,
        typer.Option(
            "--own-rule", help="Allow a rule given as package.module:object to be imported: only if that code is yours."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --base: write the rebuilt model to this safetensors file.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where --base rebuilds: auto, cpu, cuda, ...")] = "auto",
    data: Data = None,
    model: Model = None,
) -> None:
    """Check a run's record, or evidence: who said every number, every aggregate, the chain, the final model."""
    check_task_options(base, data, model)
    if out is not None and base is None:
        raise InvalidConfig(f"--out {out} is for the model that --base rebuilds: give --base, too")
    if out is not None:
        check_writable(out)
    console = Console()
    if is_evidence(_beginning(run)):
        _judge(console, run, own_rule, authority, digest_of(expect, "--expect"))
        return
    known: dict[str, Any] = {
        "head": digest_of(head, "--head"),
        "expect": digest_of(expect, "--expect"),
        "signer": None if signer is None else public_key(signer),
        "authority": None if authority is None else certificate(authority),
    }
    with open_ledger(run) as ledger:
        with Progress(console, "verifying", ledger.head.rounds) as progress:
            report = check(ledger, own_rule=own_rule, watch=progress.update, **known)
        if base is not None and not report.findings:
            weights, parameters = begun_with(ledger, base, data, model)
            with resumable(console, state_directory() / "verify" / f"{ledger.identity.digest.hex()}.replay") as kept:
                _check_model(console, report, ledger, parameters, device, kept)
                if out is not None and not report.findings:
                    write(weights, out, kept)
                    report.notes.append(f"the model is written to {out}")
        _print(console, report, ledger)
    if report.findings or not (report.sound or is_export(run)):  # an exported run has no votes
        raise typer.Exit(1)


def _beginning(run: Path) -> bytes:
    try:
        with run.open("rb") as file:
            return file.read(64)
    except OSError:  # what reads it next says why
        return b""


def _judge(console: Console, file: Path, own_rule: bool, authority: Path | None, expect: bytes | None) -> None:
    """Print whom a file of evidence accuses, and of what; raise an error if it proves nothing."""
    if (size := file.stat().st_size) > LARGEST:
        raise InvalidEvidence(f"{file} has {size:,} bytes: evidence has at most {LARGEST:,}")
    evidence = file.read_bytes()
    judged = judge(evidence, own_rule)
    if expect not in (None, judged.run):
        raise InvalidEvidence(f"{file} is about the run {judged.run.hex()}, not the expected one")
    line(console, "run", judged.run.hex())
    line(console, "who", judged.party)
    line(console, "key", judged.key.hex())
    line(console, "did what", judged.text)
    line(console, "proven", "who holds that key has signed what the protocol forbids")
    if authority is None:
        line(console, "not proven", "who holds that key: compare it with the certificate or the roster that you trust")
        return
    known = vouched(certificates_in(evidence), certificate(authority))
    whose = sorted(name for name, key in known if key == judged.key)
    if whose:
        names = " and ".join(name or "the federator" for name in whose)
        line(console, "whose", f"{names}, by a certificate of this authority")
    else:
        line(console, "not proven", "who holds that key: no certificate of this authority for it is in the file")


def _check_model(
    console: Console, report: Report, ledger: Ledger, parameters: Parameters, device: str, kept: Checkpoint
) -> None:
    known = {seal.rounds: seal.fingerprint for seal in ledger.seals if seal.fingerprint is not None}
    rounds = max(known, default=ledger.head.rounds)
    with Progress(console, "replaying", rounds) as progress:
        fingerprint = rebuild(ledger, parameters, rounds, chosen(device), progress.update, kept)
    if rounds not in known:
        report.notes.append(f"the ledger records no fingerprint; the model's is {fingerprint:016x}")
    elif known[rounds] == fingerprint:
        report.notes.append(f"the model after {many(rounds, 'round')} has the fingerprint recorded, {fingerprint:016x}")
    else:
        report.findings.append(
            f"round {max(rounds - 1, 0)}: the model after it has the fingerprint {fingerprint:016x}, "
            f"but {known[rounds]:016x} is recorded"
        )


def _print(console: Console, report: Report, ledger: Ledger) -> None:
    line(console, "rounds", f"{report.head.rounds:,}, {report.aggregates:,} of them aggregated again from their votes")
    line(console, "run", ledger.identity.digest.hex())
    line(console, "head", (report.head.link or report.head.commit).hex())
    if ledger.identity.signs:
        line(console, "signed votes", f"{report.votes:,}")
        line(console, "final commits", f"{report.final:,} of {report.head.rounds:,}")
    if report.signed is not None:
        line(console, "signed", f"up to round {report.signed:,}")
    for note in report.notes:
        line(console, "note", note)
    for finding in report.findings:
        line(console, "WRONG", finding)
    line(console, "verdict", report.verdict)
    proven, unproven = conclusion(report, ledger.identity)
    line(console, "proven", proven)
    line(console, "not proven", unproven)


def conclusion(report: Report, identity: Identity) -> tuple[str, str]:
    """Return what a check has proven and what it has not, in a sentence each."""
    if report.findings:
        return "nothing", "anything: no federator that keeps to the protocol writes such a record"
    proven = [f"{many(report.head.rounds, 'commit follows', 'commits follow')} one another"]
    if report.aggregates:
        again = many(report.aggregates, "is", "are")
        proven.append(f"{again} what {identity.agreement.rule} makes of the votes, to the bit")
    if report.votes:
        whose = f"by keys known by {report.authors}" if report.authors else "by the keys in the chain"
        proven.append(f"every vote here is signed {whose}")
    if report.signed and identity.signs:
        proven.append("the federator has signed it")
    return "; ".join(proven), "; ".join([*_unproven(report, identity), "that clients told the truth about their data"])


def _unproven(report: Report, identity: Identity) -> list[str]:
    unproven: list[str] = []
    if not identity.signs:
        unproven.append("who cast the votes, which are not signed")
    elif report.authors:
        unproven.append("that each key is a client of its own: who gave the keys out can have invented clients")
    else:
        unproven.append("whose keys these are: give --authority or --expect")
    if rest := report.head.rounds - report.aggregates:
        unproven.append(f"that {many(rest, 'commit is', 'commits are')} what the rule makes of the votes")
    return unproven
