"""A federator in a thread of its own, beside a ServerApp that waits for Flower."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from cyber0.flower.run_config import TIMING, Serving
from cyber0.network.server import Federator
from cyber0.network.tally import Tally
from cyber0.network.tokens import Tokens, temporary_credentials
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import private_key
from cyber0.protocol.sqlite import File

__all__ = ["FederatorThread"]


class FederatorThread:
    """A federator that runs in a thread as long as its `with` block.

    It listens at `address`, has a certificate of `authority` (PEM), and admits clients with one of its `tokens`.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from cyber0.flower.run_config import read
    >>> run_config = {"clients": 3, "byzantine": 1, "ledger": str(Path(mkdtemp()) / "run.sqlite")}
    >>> with FederatorThread(*read(run_config)) as federator:
    ...     print(federator.settings.roster, federator.is_over)
    ('client-0', 'client-1', 'client-2') False
    """

    def __init__(self, settings: Settings, serving: Serving, notice: Callable[[str], None] = lambda _: None) -> None:
        self.settings, self.serving, self.notice = settings, serving, notice
        self.tokens = Tokens()
        self.address, self.head = "", ""
        self.tally = Tally(())
        server = temporary_credentials([serving.host])
        self.authority, self._credentials = server.authority, server.credentials
        self._federator: Federator | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started, self._failure = threading.Event(), None
        self._thread = threading.Thread(target=self._work, name="cyber0-federator", daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether the federator has ended by itself, after the last round or by an error."""
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
        serving = self.serving
        with File(serving.path) as ledger:
            timing = {name: getattr(self.settings, name) for name in TIMING}
            settings = Settings.of_ledger(ledger, self.settings, **timing)
            settings = replace(settings, rotates=True)  # Flower says which node is a client: its token authenticates it
            key = private_key(serving.key_path) if serving.key_path else None
            federator = Federator(
                settings,
                ledger,
                peer_name=self.tokens.peer_name,
                key=key,
                linger=serving.linger,
                notice=self.notice,
                callbacks=[name.strip() for name in serving.callbacks.split(",") if name.strip()],
            )
            port = await federator.start(serving.listen, self._credentials)
            self._loop, self._federator, self.tally = asyncio.get_running_loop(), federator, federator.tally
            self.settings, self.address = settings, serving.address_at(port)
            self._started.set()
            await federator.over.wait()
            await federator.close()
            self.head = (ledger.head.link or b"").hex() if ledger.founded else ""
