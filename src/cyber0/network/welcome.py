"""What a client checks before it takes part in the run that a federator welcomes it to."""

from cyber0.errors import InvalidIdentity, Refused
from cyber0.network.model import Model
from cyber0.protocol.identity import Identity, meaning_from, unlike
from cyber0.protocol.messages import VERSION, Welcome
from cyber0.protocol.settings import Settings

__all__ = ["check_invited", "check_version", "identity_of"]


def check_version(version: int) -> None:
    """Refuse a federator of another version.

    >>> check_version(1)
    Traceback (most recent call last):
    cyber0.errors.Refused: the federator speaks version 1 of the protocol, and this client 3: both need the same cyber0
    """
    if version != VERSION:
        raise Refused(
            f"the federator speaks version {version} of the protocol, and this client {VERSION}: both need the same "
            "cyber0"
        )


def identity_of(welcome: Welcome) -> Identity:
    """Return the run of a Welcome, whose roster may be an outline."""
    try:
        return Identity.from_bytes(welcome.identity, welcome.roster, outlined=True)
    except InvalidIdentity as error:
        raise Refused(f"the federator welcomes to a run that cannot be used: {error}") from None


def check_invited(identity: Identity, invited: Settings, model: Model) -> None:
    """Refuse a run that is not what the invitation said, or not with this client's model.

    Args:
        identity: The run that the federator welcomes to.
        invited: The settings that its invitation told.
        model: The client's.

    """
    agreed, roster = invited.agreement, identity.roster
    is_code = ":" in agreed.rule or identity.semantics != invited.semantics  # that alone knows how many votes it needs
    checks = {
        "agreement": identity.agreement == agreed and identity.protocol > 1,
        "roster": not roster.pending,
        "byzantine": roster.byzantine == agreed.byzantine,
        "rounds": roster.rounds == agreed.rounds,
        "quorum": is_code or roster.quorum == invited.quorum,
        "keep_votes": identity.keep_votes == invited.keep_votes,
        "parent": identity.parent == invited.parent,
        "model": (identity.manifest, identity.base) == (model.manifest.hex(), model.base.hex()),
        "meaning of labels": not unlike(meaning_from(model.meaning), identity.meaning),
        "key of the federator": identity.federator == (invited.federator or identity.federator) != b"",
    }
    for what, fits in checks.items():
        if not fits:
            raise Refused(f"the federator welcomes to another run than the one it invited to: its {what} differs")
