"""What `flwr run` orders: the keys of a run, and a few more that say where and how it is served."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cyber0.config import RunConfig, merged
from cyber0.errors import InvalidConfig, UnknownName
from cyber0.network.certificates import LOOPBACK
from cyber0.network.keys import check_host, check_name

__all__ = ["Settings", "typed"]

OF_A_NODE = {"data", "device"}


@dataclass(frozen=True)
class Settings:
    """A run, and how it is served.

    `ledger` is a file of the ServerApp's machine, and `address` the name or address by which the nodes reach that
    machine, at `port` (0: any that is free). `roster` names the nodes that may take part, as they are registered with
    Flower, with commas between them; without it, whoever is online does. `deadline` is for a round, and `linger` for
    nodes that are still missing when the last round is over, in seconds. `key` is a PEM file that signs the ledger.

    >>> order = Settings.of({"rounds": 5, "clients": 3, "byzantine": 1, "roster": "ann, bob, cy"})
    >>> order.config.rounds, order.names
    (5, ('ann', 'bob', 'cy'))
    >>> Settings.of({"leger": "run.sqlite"})
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown key 'leger': use one of ... (did you mean 'ledger'?)
    """

    config: RunConfig
    ledger: str = "cyber0-ledger.sqlite"
    address: str = "127.0.0.1"
    port: int = 0
    roster: str = ""
    deadline: float = 60.0
    linger: float = 120.0
    fingerprint_every: int = 100
    key: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise InvalidConfig(f"port = {self.port}: from 0, for any, to 65535")
        for field in ("deadline", "linger"):
            if not 0 < getattr(self, field) < 10**9:
                raise InvalidConfig(f"{field} = {getattr(self, field)}: give seconds, more than 0")
        check_host(self.host)

    @classmethod
    def of(cls, run_config: Mapping[str, Any]) -> "Settings":
        """The order in the keys of Flower's run config."""
        own: dict[str, type] = {field.name: type(field.default) for field in fields(cls) if field.name != "config"}
        for key in run_config:
            if key not in own and key not in RunConfig.model_fields:
                raise UnknownName("key", key, [*own, *RunConfig.model_fields])
        for key in OF_A_NODE.intersection(run_config):
            raise InvalidConfig(f"{key} = {run_config[key]!r} is of one machine: say it in the node's own config")
        options = {key: typed(key, run_config[key], kind) for key, kind in own.items() if key in run_config}
        return cls(merged({key: value for key, value in run_config.items() if key not in own}, {}), **options)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The roster, where it is given."""
        names = tuple(check_name(name.strip()) for name in self.roster.split(",") if name.strip())
        return names or None

    @property
    def host(self) -> str:
        """The address, without the brackets of IPv6."""
        return self.address.strip("[]")

    def place(self, port: int) -> str:
        """Where the nodes find the federator."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return Path(self.ledger).expanduser()

    @property
    def key_path(self) -> Path | None:
        """The file of the key that signs, if one does."""
        return Path(self.key).expanduser() if self.key else None

    @property
    def listen(self) -> str:
        """Where the federator listens: on this machine alone, if that is where the nodes are."""
        return self.place(self.port) if self.host in LOOPBACK else f"[::]:{self.port}"


def typed(key: str, value: Any, kind: type) -> Any:
    """A value of Flower's, which are typed but not checked; a whole number serves as a float.

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
