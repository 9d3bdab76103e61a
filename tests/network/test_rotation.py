"""Where a transport authenticates clients, one that comes with a new key goes on with it, two rounds later."""

import asyncio
from dataclasses import replace

import pytest
from tests.network.parties import recipe

from cyber0.errors import Refused
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.store import Store
from cyber0.network.stub_model import StubModel
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings
from cyber0.protocol.verify import verify

ROUNDS = 40


def replaced(ledger, *, rotates):
    """A federation in which client-3 is lost at half time, and comes again with nothing of what it had."""
    settings = replace(Settings.of(recipe(rounds=ROUNDS), deadline=2.0, patience=1e6), rotates=rotates)

    async def run():
        federator = Federator(settings, ledger)
        address = f"127.0.0.1:{await federator.start('127.0.0.1:0')}"
        half = asyncio.Event()

        def watch(member):
            if member.commits >= ROUNDS // 2:
                half.set()

        def come(name):
            make = lambda told: Member(told, name, StubModel(4), Store())  # noqa: E731
            return asyncio.ensure_future(attend(address, make, watch=watch))

        *others, lost = [come(name) for name in settings.roster]
        await half.wait()
        lost.cancel()
        newcomer = come("client-3")
        try:
            return await asyncio.gather(*others, newcomer)
        finally:
            federator.stop("enough")
            await federator.close()

    return asyncio.run(run())


def test_a_client_with_a_new_key_goes_on_with_it():
    ledger = Memory()
    *_, newcomer = replaced(ledger, rotates=True)
    changes = [(d.round, change) for d in ledger.decisions() for change in d.changes]
    ((number, change),) = [each for each in changes if each[1].kind == "rotate"]
    assert (change.name, change.key) == ("client-3", newcomer.hello().key)
    assert ledger.roster.key("client-3") == change.key
    voted = [d.round for d in ledger.decisions() if "client-3" in {b.client for b in d.ballots}]
    assert not {number + 1} & set(voted)
    assert {number + 2, ROUNDS - 1} <= set(voted)
    assert newcomer.commits == ROUNDS
    assert verify(ledger).findings == []


def test_elsewhere_a_new_key_needs_the_operator():
    with pytest.raises(Refused, match=r"its key is .* and the roster has .*: join with the key it began with"):
        replaced(Memory(), rotates=False)


def test_no_invitation_tells_a_client_whether_keys_rotate():
    settings = replace(Settings.of(recipe()), rotates=True)
    assert not Settings.from_invitation(settings.invitation()).rotates
    told = settings.invitation().settings.replace(b"{", b'{"rotates": true, ', 1)
    with pytest.raises(Refused, match="the federator's invitation cannot be used"):
        Settings.from_invitation(replace(settings.invitation(), settings=told))
