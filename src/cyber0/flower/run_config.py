"""What the run config of `flwr run` says: the settings of a federation, and where the federator serves it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig, UnknownName
from cyber0.network.certificates import LOOPBACK
from cyber0.network.keys import check_host, check_name
from cyber0.protocol.settings import Settings

__all__ = ["TIMING", "Serving", "read", "typed"]

TIMING: dict[str, Any] = {
    item.name: item.default
    for item in fields(Settings)
    if item.name in ("deadline", "fingerprint_every", "evaluate_every")
}


@dataclass(frozen=True)
class Serving:
    """Where and how a ServerApp serves a federation.

    Args:
        ledger: A file on the ServerApp's machine.
        address: The name or address by which nodes reach that machine.
        port: Of the federator there; 0 is any free one.
        roster: The nodes that may take part, as they are registered with Flower, separated by commas; without it,
            whoever is online takes part.
        linger: Seconds to wait after the last round for nodes that are still missing.
        key: A PEM file with the key that signs the ledger.
        callbacks: Callbacks of yours, as package.module:object, separated by commas.

    """

    ledger: str = "cyber0-ledger.sqlite"
    address: str = "127.0.0.1"
    port: int = 0
    roster: str = ""
    linger: float = 120.0
    key: str = ""
    callbacks: str = ""
    names: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise InvalidConfig(f"port = {self.port}: it must be from 0 (any free port) to 65535")
        if not 0 < self.linger < 10**9:
            raise InvalidConfig(f"linger = {self.linger}: it must be a number of seconds above 0")
        check_host(self.host)
        names = tuple(check_name(name.strip()) for name in self.roster.split(",") if name.strip())
        object.__setattr__(self, "names", names)

    @property
    def host(self) -> str:
        """The address, without the brackets of IPv6."""
        return self.address.strip("[]")

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return Path(self.ledger).expanduser()

    @property
    def key_path(self) -> Path | None:
        """The file of the key that signs, if one does."""
        return Path(self.key).expanduser() if self.key else None

    def address_at(self, port: int) -> str:
        """Return where the nodes find the federator that listens at a port."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def listen(self) -> str:
        """Where the federator listens: on this machine alone, if that is where the nodes are."""
        return self.address_at(self.port) if self.host in LOOPBACK else f"[::]:{self.port}"


def read(run_config: Mapping[str, Any]) -> tuple[Settings, Serving]:
    """Return the settings and where they are served, of the keys of Flower's run config.

    >>> settings, serving = read({"rounds": 5, "clients": 3, "byzantine": 1, "roster": "ann, bob, cy"})
    >>> settings.agreement.rounds, settings.roster
    (5, ('ann', 'bob', 'cy'))
    >>> read({"leger": "run.sqlite"})
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown key 'leger': use one of ... (did you mean 'ledger'?)
    """
    own: dict[str, Any] = {item.name: item.default for item in fields(Serving) if item.init} | TIMING
    kinds: dict[str, Any] = {key: type(default) for key, default in own.items()}
    for key in run_config:
        if key in own or key in Agreement.model_fields:
            continue
        if key in RunConfig.model_fields:
            raise InvalidConfig(f"{key} = {run_config[key]!r} is for simulations or for one machine: leave it out here")
        raise UnknownName("key", key, [*own, *Agreement.model_fields])
    options = {key: typed(key, run_config[key], kind) for key, kind in kinds.items() if key in run_config}
    serving = Serving(**{key: value for key, value in options.items() if key not in TIMING})
    config = RunConfig(**{key: value for key, value in run_config.items() if key not in own})
    timing = {key: value for key, value in options.items() if key in TIMING}
    return Settings.of(config, serving.names or None, **timing), serving


def typed(key: str, value: Any, kind: type) -> Any:
    """Return a value of Flower's, which are typed but not checked; a whole number serves as a float.

    >>> typed("deadline", 5, float)
    5.0
    >>> typed("port", "many", int)
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: port = 'many': it must be of type int
    """
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InvalidConfig(f"{key} = {value!r}: it must be of type {kind.__name__}")
    return value
