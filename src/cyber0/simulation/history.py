"""The history of a run: every evaluation and, if they are kept, every round's votes; as tables of pandas."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from cyber0.aggregation import to_numpy
from cyber0.attacks.run import COLUMNS
from cyber0.callbacks import Round
from cyber0.errors import InvalidConfig
from cyber0.extras import require
from cyber0.printable import many

__all__ = ["History", "numbers", "pack_rounds", "unpack_rounds"]

Line = dict[str, Any]
ORIGIN = ("data", "data_sha256", "loss_function", "model", "dropped")  # of an evaluation: not measured


class History:
    """What happened in a run.

    Attributes:
        evaluations: A dictionary for each evaluation: its round, accuracy, loss and what it has cost so far.
        rounds: With keep="votes", every `Round`; otherwise empty.

    >>> import cyber0
    >>> config = cyber0.RunConfig(source="embedded", clients=5, byzantine=1, attack="foe", directions=4, rounds=2)
    >>> history = cyber0.run(config, keep="votes").history
    >>> history.frame()["round"].tolist()
    [0, 2]
    >>> history.votes().columns.tolist()
    ['round', 'client', 'byzantine', 'admitted', 'scalar', 'honest', 'sent', 'aggregate', 'omega']

    """

    def __init__(self, evaluations: Sequence[Line], rounds: Sequence[Round] = ()) -> None:
        self.evaluations, self.rounds = list(evaluations), list(rounds)

    def __repr__(self) -> str:
        kept = f", the votes of {many(len(self.rounds), 'round')}" if self.rounds else ""
        return f"History({many(len(self.evaluations), 'evaluation')}{kept})"

    def frame(self) -> Any:
        """Return the evaluations as a pandas table, a row for each; the user's metrics have columns of their own."""
        rows = [
            {
                **{key: value for key, value in line.items() if key not in (*ORIGIN, "metrics")},
                **line.get("metrics", {}),
            }
            for line in self.evaluations
        ]
        return require("pandas", extra="study").DataFrame(rows)

    def votes(self) -> Any:
        """Return all votes as a pandas table: a row for each round, participant and scalar.

        `honest` is what the client measured, `sent` what it sent; `byzantine` says whether it may have lied,
        `admitted` whether its vote counted; `aggregate` is what the rule made of all votes. A number that an attack
        reports of a round, such as `omega`, has a column of its own.
        """
        if not self.rounds:
            raise InvalidConfig("the votes of this run were not kept: simulate or run it with keep='votes'")
        pandas = require("pandas", extra="study")
        frames = [_table(each) for each in self.rounds if each.honest is not None]
        if not frames:  # too few clients took part in every round
            return pandas.DataFrame(columns=list(COLUMNS))
        return pandas.concat([pandas.DataFrame(frame) for frame in frames], ignore_index=True)


def _table(round_: Round) -> dict[str, Any]:
    """Return the columns of one round, client by client."""
    honest, sent = (_by_client(array) for array in (round_.honest, round_.sent))
    clients, scalars = honest.shape
    rows = to_numpy(round_.honest).shape[0]
    none = np.full(scalars, np.nan, dtype=np.float32)
    aggregate = none if round_.aggregate is None else np.asarray(round_.aggregate).reshape(-1)
    people = np.asarray(round_.participants)
    columns: dict[str, Any] = {
        "round": np.full(clients * scalars, round_.number),
        "client": np.repeat(people, scalars),
        "byzantine": np.repeat(np.isin(people, round_.liars), scalars),
        "admitted": np.repeat(np.isin(people, round_.admitted), scalars),
        "scalar": np.tile(np.arange(scalars, dtype=np.int64), clients),
        "honest": honest.reshape(-1),
        "sent": sent.reshape(-1),
        "aggregate": np.tile(aggregate, clients),
    }
    for name, value in round_.reports.items():
        reported = numbers(value).astype(np.float64).reshape(-1)
        if len(reported) in (1, rows):  # a longer one is in the round's reports alone
            columns[name] = np.tile(np.repeat(np.broadcast_to(reported, (rows,)), scalars // rows), clients)
    return columns


def numbers(value: Any) -> NDArray[Any]:
    """Return what an attack reports, a number or an array or a tensor, as an array."""
    return to_numpy(value) if is_torch_array(value) else np.asarray(value)


def _by_client(votes: Any) -> NDArray[np.float32]:
    """Return votes [rows, clients, width] as [clients, rows x width]."""
    array = np.asarray(to_numpy(votes))
    return array.swapaxes(0, 1).reshape(array.shape[1], -1)


def pack_rounds(rounds: Sequence[Round], clients: int) -> dict[str, Any]:
    """Return rounds of a simulation as arrays that can be stored; absent clients have NaN."""
    shape = next((to_numpy(each.honest).shape for each in rounds if each.honest is not None), (1, 0, 1))
    full = np.full((len(rounds), shape[0], clients, shape[2]), np.nan, dtype=np.float32)
    arrays: dict[str, Any] = {
        "number": np.array([each.number for each in rounds]),
        "honest": full,
        "sent": full.copy(),
        "aggregate": np.full((len(rounds), shape[0], shape[2]), np.nan, dtype=np.float32),
        "voted": np.array([each.honest is not None for each in rounds]),
        "reports": np.array([json.dumps({k: numbers(v).tolist() for k, v in each.reports.items()}) for each in rounds]),
    }
    for name in ("participants", "admitted", "liars"):
        arrays[name] = np.zeros((len(rounds), clients), dtype=np.bool_)
    for place, each in enumerate(rounds):
        for name in ("participants", "admitted", "liars"):
            arrays[name][place, np.asarray(getattr(each, name), dtype=np.int64)] = True
        if each.honest is not None:
            arrays["honest"][place][:, np.asarray(each.participants)] = to_numpy(each.honest)
            arrays["sent"][place][:, np.asarray(each.participants)] = to_numpy(each.sent)
        if each.aggregate is not None:
            arrays["aggregate"][place] = each.aggregate
    return arrays


def unpack_rounds(arrays: Mapping[str, Any]) -> list[Round]:
    """Return the rounds that `pack_rounds` made arrays of."""
    kept = {name: arrays[name] for name in ("number", "honest", "sent", "aggregate", "voted", "reports")}
    people = {name: arrays[name] for name in ("participants", "admitted", "liars")}
    found: list[Round] = []
    for place, number in enumerate(kept["number"].tolist()):
        who = {name: np.flatnonzero(masks[place]) for name, masks in people.items()}
        votes: dict[str, Any] = {}
        if kept["voted"][place]:
            votes = {name: kept[name][place][:, who["participants"]] for name in ("honest", "sent")}
        aggregate = kept["aggregate"][place]
        committed = aggregate if np.isfinite(aggregate).all() else None
        found.append(
            Round(number, **who, aggregate=committed, **votes, reports=json.loads(str(kept["reports"][place])))
        )
    return found
