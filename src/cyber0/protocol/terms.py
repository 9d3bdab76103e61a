"""The terms of a federation: what was settled before it began."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache

from cyber0 import aggregation
from cyber0.errors import InvalidConfig
from cyber0.plan import Plan
from cyber0.protocol.decide import quorum

__all__ = ["Terms"]

Identity = Callable[[bytes, bytes, bytes], bytes]


def _pair(manifest: bytes, base: bytes, layout: bytes) -> bytes:  # noqa: ARG001
    return manifest + base


@dataclass(frozen=True)
class Terms:
    """Who votes, on what, for how many rounds, and how long a round waits.

    `identity` makes the run's identity, in canonical bytes, of the manifest's and the base model's digest and of the
    layout (empty where nobody sent it); `invited` names the clients of a round (None: all of them). A deadline that
    brings too few votes is doubled, up to `longest` seconds. Votes of every `fingerprint_every`th round carry a
    fingerprint.

    >>> plan = Plan(seed=0, directions=2, local_epochs=1, scheme="unbiased", mu=1e-3, lr=0.01)
    >>> terms = Terms(("alice", "bob", "carol", "dave"), byzantine=1, plan=plan, rule="cwtm", rounds=400)
    >>> terms.quorum, terms.vote_bytes, terms.seconds(extension=2)
    (3, 8, 240.0)
    """

    roster: tuple[str, ...]
    byzantine: int
    plan: Plan
    rule: str | aggregation.Rule
    rounds: int
    identity: Identity = _pair
    deadline: float = 60.0
    longest: float = 3600.0
    invited: Callable[[int], Collection[str]] | None = None
    fingerprint_every: int = 100
    aggregate: aggregation.Rule = field(init=False, compare=False)
    quorum: int = field(init=False)

    def __post_init__(self) -> None:
        if len(set(self.roster)) != len(self.roster):
            raise InvalidConfig(f"roster = {self.roster} names a client twice: names must differ")
        if self.invited is not None:
            object.__setattr__(self, "invited", lru_cache(maxsize=4)(self.invited))  # asked by every vote
        aggregate = aggregation.get_rule(self.rule)
        object.__setattr__(self, "aggregate", aggregate)
        object.__setattr__(self, "quorum", quorum(aggregate, self.byzantine, len(self.voters(0))))

    @property
    def majority(self) -> int:
        """How many of the roster must bring the same model to found the run.

        Fewer than half lie, so that liars alone are never enough and the honest, when all are there, always are.
        """
        return len(self.roster) // 2 + 1

    @property
    def vote_bytes(self) -> int:
        """How long the scalars of a vote are."""
        return 4 * self.plan.scalars

    def voters(self, round: int) -> Collection[str]:  # noqa: A002
        """Who is invited to a round."""
        return self.roster if self.invited is None else self.invited(round)

    def seconds(self, extension: int) -> float:
        """How long a round waits for votes, the first time and after so many extensions."""
        return min(self.deadline * 2.0 ** min(extension, 60), max(self.longest, self.deadline))
