"""The ballots of a decided round on their way to a client that audits it, in pages."""

from google.protobuf.message import DecodeError

from cyber0.errors import InvalidIdentity, RejectedMessage
from cyber0.protocol import wire_pb2 as wire
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.messages import Page
from cyber0.protocol.records import Ballot, Decision
from cyber0.protocol.roster import changes_from, changes_to_bytes

__all__ = ["BallotPages", "from_pages", "page_of", "to_bytes"]

SIZE = 2**16  # bytes of a page


def to_bytes(decision: Decision) -> bytes:
    """Return a decided round, with its ballots, as it is sent."""
    ballots = [
        wire.Ballot(
            client=ballot.client,
            verdict=ballot.verdict,
            reason=ballot.reason,
            scalars=ballot.values,
            digest=ballot.digest if ballot.values is None else b"",
            signature=ballot.signature,
        )
        for ballot in decision.ballots
    ]
    changes = changes_to_bytes(decision.changes)
    return wire.Ballots(ballots=ballots, scalars=decision.scalars, changes=changes).SerializeToString()


def page_of(round: int, data: bytes, page: int) -> Page:  # noqa: A002
    r"""Return a page of what `to_bytes` returned for a round.

    >>> page_of(7, bytes(SIZE + 1), 1)
    Page(round=7, page=1, data=b'\x00', last=True)
    """
    start = page * SIZE
    return Page(round, page, data[start : start + SIZE], last=start + SIZE >= len(data))


def from_pages(round: int, data: bytes) -> Decision:  # noqa: A002
    """Return the round in the data of all its pages.

    >>> from_pages(7, b"what?")
    Traceback (most recent call last):
    cyber0.errors.RejectedMessage: the pages of round 7 hold no ballots
    """
    found = wire.Ballots()
    try:
        found.ParseFromString(data)
    except DecodeError:
        raise RejectedMessage(f"the pages of round {round} hold no ballots") from None
    ballots: list[Ballot] = []
    for part in found.ballots:
        verdict = part.verdict
        if part.HasField("scalars"):
            ballots.append(Ballot.of(part.client, verdict, part.scalars, part.reason, part.signature))  # pyright: ignore
        elif len(part.digest) == 32:
            ballots.append(Ballot(part.client, verdict, None, part.digest, part.reason, part.signature))  # pyright: ignore
        else:
            raise RejectedMessage(f"the pages of round {round} hold a vote without scalars or their digest")
    try:
        changes = changes_from(found.changes)
    except InvalidIdentity as error:
        raise RejectedMessage(f"the pages of round {round} cannot be read: {error}") from None
    return Decision(round, found.scalars, tuple(ballots), changes)


class BallotPages:
    """The ballots of a ledger's rounds, in pages; those of the last round that was asked for are kept at hand."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._last: tuple[int, bytes] = -1, b""

    def page(self, round: int, page: int) -> Page:  # noqa: A002
        """Return a page of a round; an empty one if its ballots are not here."""
        if not self.ledger.founded or not self.ledger.imported <= round < self.ledger.head.rounds:
            return page_of(round, b"", page)
        if self._last[0] != round:  # many clients ask for the same one
            (decision,) = self.ledger.decisions(round, round + 1)
            self._last = round, b"" if decision.lost else to_bytes(decision)
        return page_of(round, self._last[1], page)
