"""Going back on purpose: a new run that begins with the first rounds of another one.

Nobody signs a round of one run twice, so a run cannot be taken back. A new run can begin with its commits: it has an
identity of its own, which names the parent, and so a digest and a chain of its own. The commits come without their
votes, as those of an imported run do; the link after them is made of the parent's and signed by the federator.
"""

import secrets
from dataclasses import replace
from typing import Any

from cyber0.config import Agreement
from cyber0.errors import InvalidLedger
from cyber0.protocol.chain import Anchor, Head, commit_hashes, genesis, link_statement
from cyber0.protocol.export import roster_after
from cyber0.protocol.identity import Identity, Parent
from cyber0.protocol.ledger import ExportedRun, Ledger
from cyber0.protocol.roster import Roster
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import PrivateKey, encoded, sign

__all__ = ["forked"]


def forked(ledger: Ledger, rounds: int, key: PrivateKey, last: int | None = None) -> ExportedRun:
    """Return a new run that begins with the first rounds of a ledger, to be adopted by a new one.

    Args:
        ledger: The parent, which is not changed.
        rounds: How many rounds of it.
        key: What signs the parent, and will sign the new run.
        last: How many rounds the new run has in all; by default as many as the parent had.

    """
    parent = ledger.identity
    _check(ledger, rounds, key)
    roster = roster_after(ledger, rounds).in_force() if rounds else parent.roster
    agreement = _agreement(parent.agreement, roster, last)
    if agreement.rounds < rounds:
        raise InvalidLedger(f"a run of {agreement.rounds} rounds cannot begin with {rounds}: give it more")
    quorum = Settings(agreement, roster.names, semantics=parent.semantics).quorum
    who = Roster(roster.names, roster.keys, roster.byzantine, quorum, agreement.rounds)
    named = Parent(parent.digest, rounds, ledger.head_at(rounds).link or b"", secrets.token_bytes(16))
    identity = replace(parent, agreement=agreement, roster=who, parent=named, written=None)
    if rounds == 0:
        return ExportedRun(identity, b"", identity.digest, certificates=tuple(ledger.certificates))
    scalars = ledger.commits(0, rounds)
    anchor, head = _link(identity, named, scalars)
    signature = sign(key, link_statement(identity.digest, rounds, head.link or b""))
    certificates = tuple(ledger.certificates)
    return ExportedRun(identity, scalars, head.link, None, anchor, signature, certificates=certificates)


def _check(ledger: Ledger, rounds: int, key: PrivateKey) -> None:
    identity = ledger.identity
    if identity.protocol == 1:
        raise InvalidLedger("this run is of version 1: it can be verified, replayed and exported, but not continued")
    if not identity.signs:
        raise InvalidLedger("this run was simulated, and nobody has signed it: it cannot be continued")
    if not 0 <= rounds <= ledger.head.rounds:
        raise InvalidLedger(f"round {rounds}: the ledger has {ledger.head.rounds} rounds")
    if (public := encoded(key.public_key())) != identity.federator:
        raise InvalidLedger(
            f"the ledger is signed with the key {identity.federator.hex()[:16]}, and this one is {public.hex()[:16]}: "
            "give the key it began with, by --tls or --key"
        )


def _agreement(agreement: Agreement, roster: Roster, last: int | None) -> Agreement:
    """Return the agreement of the new run: the same, for who is on the roster by then."""
    now: dict[str, Any] = {"clients": len(roster.names), "byzantine": roster.byzantine, "rounds": last or roster.last}
    return Agreement(**{**agreement.model_dump(), **now})


def _link(identity: Identity, parent: Parent, scalars: bytes) -> tuple[Anchor, Head]:
    """Return what the link after the parent's rounds is made of, and that link: the parent's stands for their votes."""
    commit = commit_hashes(identity.digest, scalars, 4 * identity.plan.scalars)[-1]
    before = genesis(identity.digest).link or b""
    anchor = Anchor(before, parent.link or bytes(32), identity.roster.digest)
    return anchor, Head(parent.rounds, commit, anchor.following(commit))
