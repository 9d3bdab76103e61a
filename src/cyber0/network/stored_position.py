"""Where a client stood when it stored its weights: a position in the chain, as text beside them."""

from cyber0.protocol.catching_up import Position
from cyber0.protocol.chain import Anchor, Head
from cyber0.protocol.identity import Identity
from cyber0.protocol.outline import roster_from

__all__ = ["position_facts", "position_from"]


def position_facts(position: Position) -> dict[str, str]:
    """Return a position as text, to be stored with the weights."""
    head = position.head
    return {
        "run": position.identity.digest.hex(),
        "commits": str(head.rounds),
        "commit": head.commit.hex(),
        "link": (head.link or b"").hex(),
        "signature": position.signature.hex(),
        "anchor": "" if position.anchor is None else position.anchor.to_bytes().hex(),
        "roster": position.roster.to_bytes().decode(),
    }


def position_from(identity: Identity, facts: dict[str, str]) -> Position | None:
    """Return the position that was stored; None if it is of another run, or damaged."""
    try:
        if facts["run"] != identity.digest.hex():
            return None
        head = Head(int(facts["commits"]), bytes.fromhex(facts["commit"]), bytes.fromhex(facts["link"]))
        roster, anchor = roster_from(facts["roster"].encode()), bytes.fromhex(facts["anchor"])
        return Position(
            identity, head, roster, bytes.fromhex(facts["signature"]), Anchor.from_bytes(anchor) if anchor else None
        )
    except (KeyError, ValueError):
        return None
