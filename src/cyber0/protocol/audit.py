"""Check a decided round from its ballots: who voted, that they signed it, and what the rule makes of it.

The same for whoever verifies a ledger and for a client that audits a round of a run it takes part in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from cyber0 import aggregation
from cyber0.errors import Cyber0Error
from cyber0.plan import participants
from cyber0.protocol.chain import vote_statement
from cyber0.protocol.decide import admissible, decide
from cyber0.protocol.identity import Identity
from cyber0.protocol.records import Ballot, Decision, Verdict, from_wire, to_wire
from cyber0.protocol.roster import Roster
from cyber0.protocol.signing import is_by

__all__ = ["Context", "Wrong", "check_aggregate", "check_ballots", "is_final", "rule_of"]


class Wrong(Exception):
    """What is wrong with a round; `accuses`: whoever signed the link after it has lied.

    What the link does not cover accuses nobody: that the values of a vote are missing may be the fault of who shows it.
    """

    def __init__(self, text: str, *, accuses: bool = True) -> None:
        super().__init__(text)
        self.accuses = accuses


@dataclass(frozen=True)
class Context:
    """What a round was decided in: the run, the roster of the round, and the links after it began and one before."""

    identity: Identity
    roster: Roster
    link: bytes
    previous: bytes = b""

    @property
    def invited(self) -> int:
        """How many clients are invited to a round."""
        return self.identity.agreement.invited_of(self.roster.size)


def rule_of(identity: Identity, own_rule: bool = False) -> aggregation.Composition | None:
    """Return the rule of a run, in its version; None if it is code of the user's that is not to be run."""
    if ":" in identity.agreement.rule and not own_rule:
        return None
    return aggregation.get_rule(identity.agreement.rule, identity.semantics)


def is_final(context: Context, votes: int, *, of_all: bool = False) -> bool:
    """Return whether so many signed votes on a link make the commits that it contains final.

    `of_all`: they are reports after the last round, which all clients make, and not only those who are invited.

    Two sets of more than (m + b) / 2 of m invited clients share an honest one, and that one signs one link per round.
    A client whose key was not known when the run was founded counts as one that may lie: nobody but the federator saw
    whose key it is.
    """
    unknown = sum(not key for key in context.identity.roster.keys)
    asked = context.roster.size if of_all else context.invited
    return 2 * votes > asked + context.roster.byzantine + unknown


def check_ballots(context: Context, decision: Decision) -> list[Ballot]:
    """Return the ballots that count; raise `Wrong` if a federator could not have written these."""
    roster, ballots = context.roster, decision.ballots
    _check_form(roster, ballots)
    if context.identity.signs:
        check_signatures(context, decision)
    counted = [ballot for ballot in ballots if ballot.verdict == "counted"]
    if len({ballot.client for ballot in counted}) < len(counted):
        raise Wrong("a client is counted twice")
    _check_invited(context, decision.round, counted)
    least = max(2 * roster.byzantine + 1, roster.quorum)
    if len(counted) < least:
        raise Wrong(f"{len(counted)} votes are counted: at least {least} must be")
    _check_equivocations(ballots)
    if context.identity.keep_votes and any(ballot.values is None for ballot in counted):
        raise Wrong("the values of a counted vote are missing, though this run keeps them", accuses=False)
    return counted


def _check_form(roster: Roster, ballots: tuple[Ballot, ...]) -> None:
    for ballot in ballots:
        if ballot.client not in roster.places:
            raise Wrong(f"{ballot.client!r} is not on the roster")
        if ballot.verdict not in get_args(Verdict):
            raise Wrong(f"a ballot has an unknown verdict: the verdicts are {', '.join(get_args(Verdict))}")
    places = [roster.places[ballot.client] for ballot in ballots]
    if places != sorted(places):
        raise Wrong("its ballots are not in the roster's order")


def check_signatures(context: Context, decision: Decision) -> None:
    """Raise `Wrong` if a ballot is not signed by its client."""
    for ballot in decision.ballots:
        if not is_cast(context, decision.round, ballot):
            raise Wrong(f"the vote of {ballot.client} is not signed by it")


def is_cast(context: Context, round: int, ballot: Ballot) -> bool:  # noqa: A002
    """Return whether a ballot that is written with a round is signed by its client: late ones for the round before."""
    late = ballot.verdict == "late"
    link, number = (context.previous, round - 1) if late else (context.link, round)
    if number < 0:
        return False
    statement = vote_statement(context.identity.digest, number, link, ballot.digest)
    return is_by(context.roster.key(ballot.client), ballot.signature, statement)


def check_aggregate(
    context: Context, decision: Decision, counted: Iterable[Ballot], rule: aggregation.Composition, memory: Any
) -> None:
    """Raise `Wrong` if the scalars of a round are not what the rule makes of the votes that count."""
    identity, values = context.identity, [ballot.values or b"" for ballot in counted]
    if any(len(value) != len(decision.scalars) for value in values):
        raise Wrong("a vote of the wrong length is counted")
    votes = np.stack([from_wire(value, identity.plan.rows) for value in values], axis=1)
    if not admissible(votes).all():
        raise Wrong("a vote that is not finite is counted")
    try:
        decided = decide(rule, votes, context.roster.byzantine, memory)
    except Cyber0Error as error:
        raise Wrong(f"its votes cannot be aggregated: {error}") from None
    if to_wire(decided) != decision.scalars:
        raise Wrong(f"its scalars are not what {identity.agreement.rule} makes of the counted votes")


def _check_invited(context: Context, round: int, counted: list[Ballot]) -> None:  # noqa: A002
    names, invited = context.roster.names, context.invited
    if invited == len(names):
        return
    chosen = participants(context.identity.agreement.seed, round, len(names), invited, 0.0)
    allowed = {names[place] for place in map(int, chosen)}
    for ballot in counted:
        if ballot.client not in allowed:
            raise Wrong(f"{ballot.client} is counted, and was not invited")


def _check_equivocations(ballots: tuple[Ballot, ...]) -> None:
    said: dict[str, set[bytes]] = {}
    for ballot in ballots:
        if ballot.verdict == "equivocation":
            said.setdefault(ballot.client, set()).add(ballot.digest)
    for client, digests in said.items():
        if len(digests) < 2:
            raise Wrong(f"{client} is said to have cast two different votes, and only one is here")
