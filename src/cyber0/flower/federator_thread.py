"""A federator in a thread of its own, beside a ServerApp that waits for Flower."""

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from cyber0.errors import InvalidConfig
from cyber0.flower.settings import Settings
from cyber0.network.server import Federator
from cyber0.network.setup import Setup
from cyber0.network.tally import Tally
from cyber0.network.tokens import Tokens, passing
from cyber0.protocol.ledger import Ledger
from cyber0.protocol.signing import private_key
from cyber0.protocol.sqlite import File

__all__ = ["FederatorThread"]


class FederatorThread:
    """The federator of an order, from `with` on: at `address`, known by `authority`, open to whom `tokens` name.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> order = Settings.of({"clients": 3, "byzantine": 1, "ledger": str(Path(mkdtemp()) / "run.sqlite")})
    >>> with FederatorThread(order) as host:
    ...     print(host.roster, host.is_over)
    ('client-0', 'client-1', 'client-2') False
    """

    def __init__(self, order: Settings, notice: Callable[[str], None] = lambda _: None) -> None:
        self.order, self.notice = order, notice
        self.tokens = Tokens()
        self.roster: tuple[str, ...] = ()
        self.address, self.head = "", ""
        self.tally = Tally(())
        server = passing([order.host])
        self.authority, self._credentials = server.authority, server.credentials
        self._federator: Federator | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started, self._failure = threading.Event(), None
        self._thread = threading.Thread(target=self._work, name="cyber0-federator", daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether the federator has ended by itself: all is done, or something is wrong."""
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._loop is not None and self._federator is not None and self._thread.is_alive():
            reason = "every client has reported" if kind is None else "the ServerApp has stopped"
            self._loop.call_soon_threadsafe(self._federator.stop, reason)
        self._thread.join()
        if self._failure is not None and kind is None:
            raise self._failure

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        self._started.set()

    async def _serve(self) -> None:
        order = self.order
        with File(order.path) as ledger:
            setup = _setup(order, ledger)
            key = private_key(order.key_path) if order.key_path else None
            federator = Federator(
                setup, ledger, peer_name=self.tokens.peer_name, key=key, linger=order.linger, notice=self.notice
            )
            port = await federator.start(order.listen, self._credentials)
            self._loop, self._federator, self.tally = asyncio.get_running_loop(), federator, federator.tally
            self.roster, self.address = setup.roster, order.place(port)
            self._started.set()
            await federator.over.wait()
            await federator.close()
            self.head = ledger.head.commit.hex() if ledger.founded else ""


def _setup(order: Settings, ledger: Ledger) -> Setup:
    """The run that is ordered, from where the ledger has it."""
    how = {"deadline": order.deadline, "fingerprint_every": order.fingerprint_every}
    ordered = Setup.of(order.config, order.names, **how)
    if not ledger.founded:
        return ordered
    kept = Setup.resumed(ledger, **how)
    if (kept.config, kept.roster) != (ordered.config, ordered.roster):
        raise InvalidConfig(f"ledger = {order.ledger!r} holds another run: name a new file, or order the same run")
    return kept
