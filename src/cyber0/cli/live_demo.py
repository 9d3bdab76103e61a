"""`cyber0 demo --live`: a real federation with liars at work, to be watched in the browser."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import Console

from cyber0.config import RunConfig
from cyber0.network.audits import Audits
from cyber0.network.http import Http
from cyber0.network.liars import Liar
from cyber0.network.member import Member
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.network.watch import Watch, median_quality
from cyber0.printable import many
from cyber0.protocol.ledger import Memory
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import new_key

__all__ = ["names_of_demo", "play_live"]

LIARS = {"mallory-negates": "sf", "mallory-noise": "random", "mallory-nan": "nan", "mallory-twice": "equivocate"}
HONEST = ("ann", "bob", "carol", "dan", "emma", "frank", "grace", "henry", "iris", "jack", "kim", "lena")
LEAVES, RETURNS = 0.3, 0.45  # of the rounds: when the last honest client leaves, and when it comes back
AUDIT = 0.05  # of the rounds are decided again by each client
LINGER = 5.0  # seconds for which the end is shown

Join = Callable[[str], "asyncio.Task[Any]"]


def names_of_demo(clients: int) -> tuple[str, ...]:
    """Return who takes part: at most a quarter of them lie, each in another way.

    >>> names_of_demo(8)
    ('ann', 'bob', 'carol', 'dan', 'emma', 'frank', 'mallory-negates', 'mallory-noise')
    """
    liars = list(LIARS)[: clients // 4]
    honest = clients - len(liars)
    names = HONEST if honest <= len(HONEST) else tuple(f"client-{number}" for number in range(honest))
    return (*names[:honest], *liars)


async def play_live(rounds: int, clients: int, port: int, console: Console) -> None:
    """Play a federation whose live page is at a port of this machine, to its end or until Ctrl-C."""
    names = names_of_demo(clients)
    liars = [name for name in names if name in LIARS]
    options: dict[str, Any] = {"source": "embedded", "rule": "nnm+cwtm", "directions": 16, "batch": 64}
    config = RunConfig(clients=len(names), byzantine=len(liars), rounds=rounds, **options)
    settings = Settings.of(config, names, deadline=10.0)
    federator = Federator(settings, Memory(), watch=Watch(measures=True), linger=LINGER)
    http = Http(federator)
    join = _joining(f"127.0.0.1:{await federator.start('127.0.0.1:0')}", names)
    tasks: dict[str, asyncio.Task[Any]] = {}
    try:
        page = f"http://127.0.0.1:{await http.start('127.0.0.1', port)}/"
        with suppress(NotImplementedError):  # not on every system
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, federator.stop, "it was stopped by Ctrl-C")
        who = f"{many(len(names) - len(liars), 'honest client')} and {many(len(liars), 'liar')} ({', '.join(liars)})"
        console.print(f"{who} train on embedded digits, for {many(rounds, 'round')}.", highlight=False, soft_wrap=True)
        console.print(f"Look at {page} (Ctrl-C stops it).", highlight=False, soft_wrap=True)
        tasks |= {name: join(name) for name in names}
        tasks[""] = asyncio.ensure_future(_leave_and_return(federator, tasks, names[-len(liars) - 1], join))
        await federator.over.wait()
    finally:
        await federator.close()
        await http.close()
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    found = median_quality(seen.evaluation for seen in federator.tally.clients.values())
    shown = "" if found is None else f" The honest clients report an accuracy of {found:.1%}."
    rounds_played = many(federator.state.round, "round")
    console.print(f"{rounds_played}: {federator.reason}.{shown}", highlight=False, soft_wrap=True)


def _joining(address: str, names: tuple[str, ...]) -> Join:
    """Return a function by which a client joins, honest or not; it has the same key each time."""
    from cyber0.network.local_model import LocalModel
    from cyber0.tasks.task import get_task

    task: Any = get_task("mnist")(source="embedded")
    keys = {name: new_key() for name in names}

    def make(settings: Settings, name: str) -> Member | Liar:
        model = LocalModel(settings.agreement, names.index(name), task, "cpu", "dirichlet(alpha=3.0)")
        honest = name not in LIARS
        member = Member(settings, name, model, evaluates=honest, key=keys[name], audits=Audits(AUDIT))
        return member if honest else Liar(member, LIARS[name])

    return lambda name: asyncio.ensure_future(attend(address, lambda settings: make(settings, name)))


async def _leave_and_return(federator: Federator, tasks: dict[str, Any], name: str, join: Join) -> None:
    """Let one client leave in the middle of the run, and come back."""
    rounds = federator.settings.agreement.rounds
    while federator.state.round < LEAVES * rounds:
        await asyncio.sleep(0.1)
    tasks[name].cancel()
    while federator.state.round < RETURNS * rounds:
        await asyncio.sleep(0.1)
    tasks[name] = join(name)
