import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cyber0.errors import InvalidRoster
from cyber0.protocol.roster import Change, Roster
from cyber0.protocol.signing import SMALL, is_by

POINTS = [point[:31] + bytes([point[31] | sign]) for point in sorted(SMALL) for sign in (0, 0x80)]


def forged(key, statement):
    """A signature that somebody makes without a private key; None if none of those tried is valid."""
    for signature in (point + bytes(32) for point in POINTS):
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, statement)
        except InvalidSignature:
            continue
        return signature
    return None


@pytest.mark.parametrize("key", POINTS, ids=lambda key: f"{key.hex()[:4]}..{key.hex()[-4:]}")
def test_a_key_by_which_anybody_can_sign_is_none(key):
    statements = [b"%d" % number for number in range(40)]
    signed = [(statement, made) for statement in statements if (made := forged(key, statement))]
    assert signed
    assert not any(is_by(key, made, statement) for statement, made in signed)
    roster = Roster(("ann",), (b"",), byzantine=0, quorum=1, rounds=9)
    with pytest.raises(InvalidRoster, match="is no public key"):
        roster.check([Change("admit", "bob", key)])
