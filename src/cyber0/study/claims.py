"""Claims that a paper makes in words, tested on the numbers of a study and on the paper's own.

Each claim is a function of the cells' samples. Whether it holds is judged by the means; beside every margin stands its
95% interval, by Welch's formula, which says whether other seeds could turn it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cyber0.errors import UnknownName
from cyber0.study.recipe import Recipe
from cyber0.study.statistics import PAPER_SEEDS, Measured, Sample, difference

__all__ = ["CLAIMS", "Claim", "Evidence", "Outcome", "Verdict", "check_claims", "judge"]

ALGORITHMS = ("cyber0", "FedAvg")
PLAIN = ("CWTM", "Krum")  # each also behind NNM
RULES = ("CWTM", "NNM+CWTM", "Krum", "NNM+Krum")
ATTACKS = ("ALIE", "FOE", "SF", "LF")
NNM_ATTACKS = ("ALIE-NNM", "FOE-NNM")  # for rules with NNM only: without it these are ALIE and FOE
SETTING = {"task": "mnist", "clients": 40, "byzantine": 10, "directions": 64, "rounds": 400, "alpha": 0.1}  # of Table 1
PAPER_BYTES = {"cyber0": 2 * 400 * 64 * 4.0, "FedAvg": 2 * 400 * 7850 * 4.0}  # 400 rounds, K = 1, nu = 64, d = 7850

MINUS = "\N{MINUS SIGN}"

Point = tuple[str, str, str]  # algorithm, rule, attack
Samples = Mapping[Point, Sample]
Comparison = tuple[str, Sample | None, Sample | None]  # its name, what should be higher, what should be lower


@dataclass(frozen=True, slots=True)
class Evidence:
    """The numbers a claim is judged by.

    `cells` has the accuracy of each cell in percent, `bytes` what a client sends and receives, by algorithm.
    """

    cells: Samples
    bytes: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a claim holds by the means (None: runs are missing), and a sentence with the numbers.

    `margin` is how much the claim is about, and `interval` its 95% interval, where the claim is about one margin;
    `doubtful` counts the comparisons that it rests on and whose interval holds 0 or the least margin claimed.
    """

    holds: bool | None
    sentence: str
    margin: float | None = None
    interval: tuple[float, float] | None = None
    doubtful: int | None = None

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
    """Return the verdict on every claim of the set that the recipe names; none where another setting was run.

    >>> from cyber0.study.recipe import get_recipe
    >>> recipe = get_recipe("table1")
    >>> cells = [Measured(cell.labels, False) for cell in recipe.cells()]  # nothing measured yet
    >>> [(each.ours.word, each.paper.word) for each in judge(recipe, cells)]
    [('cannot say', 'holds'), ('cannot say', 'holds'), ('cannot say', 'does not hold'), ('cannot say', 'holds'), ...]
    """
    check_claims(recipe.claims)
    if recipe.claims is None or not _is_setting(recipe):
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


def _is_setting(recipe: Recipe) -> bool:
    """Return whether the runs of the grid are as those that the claims are about, and on all of MNIST."""
    configs = [cell.config(seed=0) for cell in recipe.cells() if cell.attacked]
    as_there = all(getattr(config, key) == value for config in configs for key, value in SETTING.items())
    return as_there and all(config.source != "embedded" for config in configs)


def _measured(cells: Sequence[Measured]) -> Evidence:
    under_attack = [cell for cell in cells if not cell.beside and cell.best is not None]
    samples = {_point(cell.labels): cell.best for cell in under_attack if cell.best is not None}
    sent: dict[str, list[float]] = {}
    for cell in under_attack:
        if cell.bytes_up is not None and cell.bytes_down is not None:
            sent.setdefault(_point(cell.labels)[0], []).append(cell.bytes_up + cell.bytes_down)
    return Evidence(samples, {algorithm: sum(each) / len(each) for algorithm, each in sent.items()})


def _published(recipe: Recipe) -> Evidence:
    found = {_point(cell.labels): recipe.published(cell.labels) for cell in recipe.cells()}
    samples = {point: Sample(*pair, n=PAPER_SEEDS) for point, pair in found.items() if pair is not None}
    return Evidence(samples, PAPER_BYTES)


def _point(labels: Mapping[str, str]) -> Point:
    return labels.get("algorithm", ""), labels.get("rule", ""), labels.get("attack", "")


def _worst(cells: Samples, algorithm: str, rule: str) -> Sample | None:
    """Return the sample of the least mean over the attacks; None until every attack has been run."""
    attacks = (*ATTACKS, *NNM_ATTACKS) if rule.startswith("NNM+") else ATTACKS
    found = [cells[algorithm, rule, attack] for attack in attacks if (algorithm, rule, attack) in cells]
    return min(found, key=lambda each: each.mean) if len(found) == len(attacks) else None


def _best_worst_case(evidence: Evidence) -> Outcome:
    """Test claim 1: the worst case of cyber0 with CWTM, against all other rows."""
    rows = {(algorithm, rule): _worst(evidence.cells, algorithm, rule) for algorithm in ALGORITHMS for rule in RULES}
    known = {row: worst for row, worst in rows.items() if worst is not None}
    if len(known) < len(rows):
        return Outcome(None, f"{len(known)} of {len(rows)} rows are complete.")
    best, fedavg = (
        max(rows, key=lambda row: known[row].mean) for rows in (known, [row for row in known if row[0] == "FedAvg"])
    )
    ours, theirs = known["cyber0", "CWTM"], known[fedavg]
    of_best = (
        ""
        if best == ("cyber0", "CWTM")
        else f"the best of the eight rows is {' with '.join(best)}, {known[best].mean:.1f}; "
    )
    sentence = (
        f"The worst case of cyber0 with CWTM is {ours.mean:.1f}; {of_best}"
        f"the best FedAvg row is {fedavg[1]}, {theirs.mean:.1f}"
    )
    return _by_more_than(10, ours, theirs, sentence, also=best == ("cyber0", "CWTM"))


def _above_for_each_rule(evidence: Evidence) -> Outcome:
    """Test claim 2: cyber0's worst case against FedAvg's, with each rule."""
    cells = evidence.cells
    return _every([(rule, _worst(cells, "cyber0", rule), _worst(cells, "FedAvg", rule)) for rule in RULES], "against")


def _nnm_improves(evidence: Evidence) -> Outcome:
    """Test claim 3: NNM under each attack that is not made for it."""
    compared: list[Comparison] = []
    for algorithm in ALGORITHMS:
        for rule in PLAIN:
            for attack in ATTACKS:
                without, behind = ((algorithm, name, attack) for name in (rule, f"NNM+{rule}"))
                name = f"{algorithm} with {rule} under {attack}"
                compared.append((name, evidence.cells.get(behind), evidence.cells.get(without)))
    return _every(compared, "from")


def _hundred_times_less(evidence: Evidence) -> Outcome:
    """Test claim 4: the communication of both algorithms."""
    if not set(ALGORITHMS) <= set(evidence.bytes):
        return Outcome(None, "One of the two algorithms has no runs.")
    ours, theirs = (evidence.bytes[algorithm] for algorithm in ALGORITHMS)
    sentence = f"A client sends and receives {ours:,.0f} bytes with cyber0 and {theirs:,.0f} with FedAvg, in float32: "
    return Outcome(theirs >= 100 * ours, sentence + f"{theirs / ours:,.0f} times as many.", theirs / ours)


def _gain(rule: str, least: float, evidence: Evidence) -> Outcome:
    """Test claims 5 and 6: how far cyber0's worst case with a rule is above FedAvg's with the same."""
    ours, theirs = (_worst(evidence.cells, algorithm, rule) for algorithm in ALGORITHMS)
    if ours is None or theirs is None:
        return Outcome(None, "Runs are missing.")
    sentence = f"With {rule} the worst case of cyber0 is {ours.mean:.1f}, that of FedAvg {theirs.mean:.1f}"
    return _by_more_than(least, ours, theirs, sentence)


def _foe_is_worst(evidence: Evidence) -> Outcome:
    """Test claim 7: of all attacks on cyber0 with CWTM, FOE is the worst."""
    found = {attack: evidence.cells.get(("cyber0", "CWTM", attack)) for attack in ATTACKS}
    return _every([(attack, found[attack], found["FOE"]) for attack in ATTACKS if attack != "FOE"], "against")


def _sf_hurts_nnm(evidence: Evidence) -> Outcome:
    """Test claim 8: under SF, CWTM alone is better than behind NNM, in cyber0."""
    alone, behind = (evidence.cells.get(("cyber0", rule, "SF")) for rule in ("CWTM", "NNM+CWTM"))
    if alone is None or behind is None:
        return Outcome(None, "Runs are missing.")
    sentence = f"Under SF cyber0 reaches {alone.mean:.1f} with CWTM, {behind.mean:.1f} with NNM+CWTM"
    return _by_more_than(0, alone, behind, sentence)


def _by_more_than(least: float, high: Sample, low: Sample, sentence: str, *, also: bool = True) -> Outcome:
    """Return whether one mean is above another by more than `least` points, and how sure that is."""
    margin, interval = high.mean - low.mean, _interval(high, low)
    text = f"{sentence}, {abs(margin):.1f} points {'below' if margin >= 0 else 'above'}{_spanned(interval)}."
    doubtful = None if interval is None else int(interval[0] <= least <= interval[1])
    return Outcome(also and margin > least, text, margin, interval, doubtful)


def _every(compared: Sequence[Comparison], word: str) -> Outcome:
    """Return whether the first mean is above the second in every comparison."""
    known = [(name, high, low) for name, high, low in compared if high is not None and low is not None]

    def shown(name: str, high: Sample, low: Sample) -> str:
        return f"{name} ({high.mean:.1f} {word} {low.mean:.1f}{_spanned(_interval(high, low), ', ')})"

    against = [shown(*each) for each in known if each[1].mean <= each[2].mean]
    held = f"It is so in {len(known) - len(against)} of {len(compared)} comparisons"
    missing = f"; runs are missing for {len(compared) - len(known)}" if len(known) < len(compared) else ""
    intervals = [found for _, high, low in known if (found := _interval(high, low)) is not None]
    doubtful = sum(low <= 0 <= high for low, high in intervals) if intervals else None
    doubt = "" if doubtful is None else f"; {doubtful or 'no'} interval{' holds' if doubtful < 2 else 's hold'} 0"
    if against:
        return Outcome(False, f"{held}, not for {', '.join(against)}{missing}{doubt}.", doubtful=doubtful)
    if missing:
        return Outcome(None, f"{held}{missing}{doubt}.", doubtful=doubtful)
    closest = min(known, key=lambda each: each[1].mean - each[2].mean)
    return Outcome(True, f"{held}; the closest is {shown(*closest)}{doubt}.", doubtful=doubtful)


def _interval(high: Sample, low: Sample) -> tuple[float, float] | None:
    """Return the 95% interval of how far a mean is above another; None with a single seed."""
    far = difference(high, low) if high.n > 1 else None
    return None if far is None or far.low is None or far.high is None else (far.low, far.high)


def _spanned(interval: tuple[float, float] | None, before: str = " (") -> str:
    """Return an interval of a margin as text, with what stands before it."""
    if interval is None:
        return ""
    ends = " to ".join(f"{end:+.1f}".replace("-", MINUS) for end in interval)
    return f"{before}{ends}{')' if before.endswith('(') else ''}"


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
        Claim("With CWTM, cyber0's worst case is more than 25 points above FedAvg's.", partial(_gain, "CWTM", 25)),
        Claim("With Krum, cyber0's worst case is more than 10 points above FedAvg's.", partial(_gain, "Krum", 10)),
        Claim("Of the attacks on cyber0 with CWTM, FOE is the worst.", _foe_is_worst),
        Claim("SF hurts NNM: under it, cyber0 is better with CWTM alone than with NNM+CWTM.", _sf_hurts_nnm),
    ],
}
