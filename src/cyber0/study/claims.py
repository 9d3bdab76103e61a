"""Claims that a paper makes in words, tested on the numbers of a study and on the paper's own.

Each claim is a function of the cells' means. It tests the means alone: a margin smaller than the standard deviation
over seeds may change its sign with other seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cyber0.errors import UnknownName
from cyber0.study.recipe import Recipe
from cyber0.study.statistics import Measured

__all__ = ["CLAIMS", "Claim", "Evidence", "Outcome", "Verdict", "check_claims", "judge"]

ALGORITHMS = ("cyber0", "FedAvg")
PLAIN = ("CWTM", "Krum")  # each also behind NNM
RULES = ("CWTM", "NNM+CWTM", "Krum", "NNM+Krum")
ATTACKS = ("ALIE", "FOE", "SF", "LF")
NNM_ATTACKS = ("ALIE-NNM", "FOE-NNM")  # for rules with NNM only: without it these are ALIE and FOE
PAPER_BYTES = {"cyber0": 2 * 400 * 64 * 4.0, "FedAvg": 2 * 400 * 7850 * 4.0}  # 400 rounds, K = 1, nu = 64, d = 7850

Point = tuple[str, str, str]  # algorithm, rule, attack
Comparison = tuple[str, float | None, float | None]  # its name, what should be higher, what should be lower


@dataclass(frozen=True, slots=True)
class Evidence:
    """The numbers a claim is judged by.

    `means` has the mean of each cell in percent, `bytes` what a client sends and receives, by algorithm.
    """

    means: Mapping[Point, float]
    bytes: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a claim holds (None: runs are missing), and a sentence with the numbers."""

    holds: bool | None
    sentence: str

    @property
    def word(self) -> str:
        """Return whether it holds, in a word or two."""
        return {True: "holds", False: "does not hold", None: "cannot say"}[self.holds]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim in words, and the function that tests it."""

    text: str
    test: Callable[[Evidence], Outcome]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim's outcome on our numbers, and on the paper's own."""

    text: str
    ours: Outcome
    paper: Outcome


def judge(recipe: Recipe, cells: Sequence[Measured]) -> list[Verdict]:
    """Return the verdict on every claim of the set that the recipe names.

    >>> from cyber0.study.recipe import get_recipe
    >>> recipe = get_recipe("table1")
    >>> cells = [Measured(cell.labels, False) for cell in recipe.cells()]  # nothing measured yet
    >>> [(each.ours.word, each.paper.word) for each in judge(recipe, cells)]
    [('cannot say', 'holds'), ('cannot say', 'holds'), ('cannot say', 'does not hold'), ('cannot say', 'holds')]
    """
    check_claims(recipe.claims)
    if recipe.claims is None:
        return []
    ours, paper = _measured(cells), _published(recipe)
    return [Verdict(claim.text, claim.test(ours), claim.test(paper)) for claim in CLAIMS[recipe.claims]]


def check_claims(name: str | None) -> None:
    """Raise UnknownName if there is no set of claims of this name.

    >>> check_claims("tabel1")
    Traceback (most recent call last):
    cyber0.errors.UnknownName: unknown set of claims 'tabel1': use one of table1 (did you mean 'table1'?)
    """
    if name is not None and name not in CLAIMS:
        raise UnknownName("set of claims", name, CLAIMS)


def _measured(cells: Sequence[Measured]) -> Evidence:
    under_attack = [cell for cell in cells if not cell.beside and cell.best is not None]
    means = {_point(cell.labels): cell.best.mean for cell in under_attack if cell.best is not None}
    sent: dict[str, list[float]] = {}
    for cell in under_attack:
        if cell.bytes_up is not None and cell.bytes_down is not None:
            sent.setdefault(_point(cell.labels)[0], []).append(cell.bytes_up + cell.bytes_down)
    return Evidence(means, {algorithm: sum(each) / len(each) for algorithm, each in sent.items()})


def _published(recipe: Recipe) -> Evidence:
    found = {_point(cell.labels): recipe.published(cell.labels) for cell in recipe.cells()}
    return Evidence({point: pair[0] for point, pair in found.items() if pair is not None}, PAPER_BYTES)


def _point(labels: Mapping[str, str]) -> Point:
    return labels.get("algorithm", ""), labels.get("rule", ""), labels.get("attack", "")


def _worst(means: Mapping[Point, float], algorithm: str, rule: str) -> float | None:
    """Return the least mean over the attacks; None until every attack has been run."""
    attacks = (*ATTACKS, *NNM_ATTACKS) if rule.startswith("NNM+") else ATTACKS
    found = [means[algorithm, rule, attack] for attack in attacks if (algorithm, rule, attack) in means]
    return min(found) if len(found) == len(attacks) else None


def _best_worst_case(evidence: Evidence) -> Outcome:
    """Test claim 1: the worst case of cyber0 with CWTM, against all other rows."""
    rows = {(algorithm, rule): _worst(evidence.means, algorithm, rule) for algorithm in ALGORITHMS for rule in RULES}
    known = {row: worst for row, worst in rows.items() if worst is not None}
    if len(known) < len(rows):
        return Outcome(None, f"{len(known)} of {len(rows)} rows are complete.")
    best, fedavg = (max(rows, key=known.__getitem__) for rows in (known, [row for row in known if row[0] == "FedAvg"]))
    margin = known["cyber0", "CWTM"] - known[fedavg]
    of_best = (
        ""
        if best == ("cyber0", "CWTM")
        else f"the best of the eight rows is {' with '.join(best)}, {known[best]:.1f}; "
    )
    sentence = (
        f"The worst case of cyber0 with CWTM is {known['cyber0', 'CWTM']:.1f}; {of_best}"
        f"the best FedAvg row is {fedavg[1]}, {known[fedavg]:.1f}, {_points(margin)}."
    )
    return Outcome(best == ("cyber0", "CWTM") and margin > 10, sentence)


def _above_for_each_rule(evidence: Evidence) -> Outcome:
    """Test claim 2: cyber0's worst case against FedAvg's, with each rule."""
    means = evidence.means
    return _every([(rule, _worst(means, "cyber0", rule), _worst(means, "FedAvg", rule)) for rule in RULES], "against")


def _nnm_improves(evidence: Evidence) -> Outcome:
    """Test claim 3: NNM under each attack that is not made for it."""
    compared: list[Comparison] = []
    for algorithm in ALGORITHMS:
        for rule in PLAIN:
            for attack in ATTACKS:
                without, behind = ((algorithm, name, attack) for name in (rule, f"NNM+{rule}"))
                name = f"{algorithm} with {rule} under {attack}"
                compared.append((name, evidence.means.get(behind), evidence.means.get(without)))
    return _every(compared, "from")


def _hundred_times_less(evidence: Evidence) -> Outcome:
    """Test claim 4: the communication of both algorithms."""
    if not set(ALGORITHMS) <= set(evidence.bytes):
        return Outcome(None, "One of the two algorithms has no runs.")
    ours, theirs = (evidence.bytes[algorithm] for algorithm in ALGORITHMS)
    sentence = f"A client sends and receives {ours:,.0f} bytes with cyber0 and {theirs:,.0f} with FedAvg, in float32: "
    return Outcome(theirs >= 100 * ours, sentence + f"{theirs / ours:,.0f} times as many.")


def _every(compared: Sequence[Comparison], word: str) -> Outcome:
    """Return whether the first number is above the second in every comparison."""
    known = [(name, high, low) for name, high, low in compared if high is not None and low is not None]
    against = [f"{name} ({high:.1f} {word} {low:.1f})" for name, high, low in known if high <= low]
    held = f"It is so in {len(known) - len(against)} of {len(compared)} comparisons"
    missing = f"; runs are missing for {len(compared) - len(known)}" if len(known) < len(compared) else ""
    if against:
        return Outcome(False, f"{held}, not for {', '.join(against)}{missing}.")
    if missing:
        return Outcome(None, f"{held}{missing}.")
    name, high, low = min(known, key=lambda each: each[1] - each[2])
    return Outcome(True, f"{held}; the closest is {name} ({high:.1f} {word} {low:.1f}).")


def _points(margin: float) -> str:
    return f"{abs(margin):.1f} points {'below' if margin >= 0 else 'above'}"


CLAIMS: dict[str, list[Claim]] = {
    "table1": [
        Claim(
            "cyber0 with CWTM, without NNM, has the best worst case of all eight rows, more than 10 points above the "
            "best FedAvg row.",
            _best_worst_case,
        ),
        Claim("With each of the four rules, cyber0's worst case is above FedAvg's.", _above_for_each_rule),
        Claim(
            "NNM improves the accuracy under every attack but those made for it, ALIE-NNM and FOE-NNM.", _nnm_improves
        ),
        Claim("cyber0 needs two orders of magnitude less communication than FedAvg.", _hundred_times_less),
    ],
}
