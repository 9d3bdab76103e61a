"""Clients that audit nothing have an outline of the roster: what becomes of it when that changes, and after starts."""

import asyncio

import pytest
from tests.network.test_membership import Federation, play

from cyber0.network.audits import Audits
from cyber0.network.member import Member
from cyber0.network.session import attend
from cyber0.network.store import Store
from cyber0.network.stub_model import StubModel
from cyber0.protocol.outline import Outline
from cyber0.protocol.signing import encoded, new_key


class Outlined(Federation):
    """A federation whose clients come again with another share of rounds to audit."""

    def come(self, name, key=None, audit=0.0):
        store = Store(self.folder / "state" / f"run-{name}")
        self.members = {**getattr(self, "members", {}), name: None}

        def make(told):
            member = Member(told, name, StubModel(4), store, key=key, audits=Audits(audit))
            self.members[name], self.began = member, member.commits
            return member

        async def attended():
            try:
                return await attend(self.address, make, threaded=False)
            finally:
                store.close()

        self.clients[name] = asyncio.ensure_future(attended())

    async def gone(self, name):
        """Stop a client, and return how many commits it held."""
        client = self.clients.pop(name)
        client.cancel()
        await asyncio.wait([client])
        return self.members[name].commits

    async def changed(self):
        """Let somebody be admitted, and wait until a client holds commits after that."""
        await self.ask(kind="admit", name="eve", key=encoded(new_key().public_key()).hex())
        await self.until(lambda: self.ledger.roster.size == 5)
        await self.follows("client-3", self.ledger.head.rounds)

    async def follows(self, name, rounds):
        await self.until(lambda: self.members[name] is not None and self.members[name].commits > rounds)


def test_a_client_starts_again_with_all_commits_it_had_though_the_roster_has_changed(tmp_path):
    """As a federator that lost them needs it, too: all its clients may have an outline."""

    async def script(federation):
        await federation.changed()
        held = await federation.gone("client-3")
        federation.come("client-3")
        await federation.until(lambda: federation.members["client-3"])
        assert isinstance(federation.members["client-3"].position.roster, Outline)
        assert federation.began == held
        await federation.counted("client-3")

    play(Outlined(tmp_path), script)


@pytest.mark.parametrize("changes", [False, True], ids=["same roster", "changed roster"])
@pytest.mark.parametrize("kept", [False, True], ids=["no log", "log"])
def test_a_client_that_audits_later_learns_the_whole_roster(tmp_path, kept, changes):
    async def script(federation):
        if changes:
            await federation.changed()
        await federation.follows("client-3", 10)
        held = await federation.gone("client-3")
        if not kept:
            (tmp_path / "state/run-client-3/commits").unlink()
        for audit in (0.2, 0.0, 0.2):
            federation.come("client-3", audit=audit)
            await federation.follows("client-3", held)
            await federation.counted("client-3")
            held, member = await federation.gone("client-3"), federation.members["client-3"]
            assert member.position.roster.names[:4] == federation.ledger.identity.roster.names

    play(Outlined(tmp_path), script)


def test_who_audits_every_round_applies_them_though_it_is_always_behind(tmp_path):
    async def script(federation):
        await federation.follows("client-0", 20)
        await federation.gone("client-3")
        federation.come("client-3", audit=1.0)
        await federation.follows("client-3", federation.ledger.head.rounds + 20)

    play(Outlined(tmp_path), script)
