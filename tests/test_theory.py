"""The theorems, as numbers: known values, the laws they obey, and what the command says of them."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cyber0.cli.theory import _measurable, theory
from cyber0.errors import InputError, InvalidAggregation, InvalidConfig, UnknownName
from cyber0.theory import (
    Bound,
    Constants,
    amplification,
    distortion,
    largest_lr,
    least_directions,
    odd_variance,
    proven_kappa,
    theorem_2,
)
from cyber0.theory_as_printed import first_constants, largest_lr_1, theorem_1
from cyber0.theory_as_printed import largest_lr as printed_lr
from cyber0.theory_as_printed import theorem_2 as printed

MNIST = {"honest": 30, "rounds": 400, "local_epochs": 1, "delta": 0.05}
LANGUAGE = {"honest": 9, "rounds": 20_000, "local_epochs": 1, "delta": 0.05}
RUN = {**MNIST, "directions": 3344, "dimension": 7850, "lr": 0.01, "mu": 0.001, "kappa": 4.5}

counts = st.integers(2, 10**6)
steps = st.fixed_dictionaries(
    {"honest": counts, "rounds": counts, "local_epochs": counts, "delta": st.floats(1e-9, 0.99)}
)
positive = st.floats(0.01, 100.0)
assumptions = st.builds(
    Constants,
    loss_gap=positive,
    gradient_lipschitz=positive,
    divergence=positive,
    average_lipschitz=positive,
    objective_lipschitz=positive,
    gradient_variance=positive,
    numerical=positive,
)
OURS = {name: value for name, value in RUN.items() if name != "delta"}


def stated(c, honest, rounds, local_epochs, directions, dimension, lr, mu, kappa, delta):
    """Theorem 2, letter for letter as in the paper."""
    H, T, K, nu, d, eta = honest, rounds, local_epochs, directions, dimension, lr  # noqa: N806
    L, G, D = c.gradient_lipschitz, c.objective_lipschitz, c.average_lipschitz  # noqa: N806
    zeta, phi = math.sqrt(c.divergence), c.numerical
    epsilon = math.sqrt(64 / nu * math.log(2 * (H - 1) / (delta / (T * K))))
    e = (1 + epsilon) / (1 - epsilon)
    upper = phi**2 * G**2 * d
    return (
        4 * c.loss_gap / (eta * T * K)
        + 2 * eta * K * D**2 * (upper / (L**2 * nu) + 3 / L) * (13 * K + 24 * e * kappa * (1 + zeta**2 / D**2) + 4)
        + 2 * eta * upper / nu * (1 / (5 * H) + 8 / H**2 + 2 * K * e * kappa)
        + 12 * K * L * eta * (kappa * e + mu)
    )


@pytest.mark.parametrize(("study", "threshold", "least"), [(MNIST, 835, 836), (LANGUAGE, 1003, 1003)])
def test_the_papers_studies_need_many_more_directions_than_they_use(study, threshold, least):
    """To the nearest integer 835 and 1,003; 835 is just short of 835.05."""
    assert round(distortion(1, **study) ** 2) == threshold
    assert least_directions(**study) == least


@given(steps)
def test_condition_b_is_where_distances_are_kept(run):
    least = least_directions(**run)
    assert distortion(least, **run) < 1 < distortion(least - 1, **run)


@given(steps, st.sampled_from(["honest", "rounds", "local_epochs"]), st.integers(2, 10**6))
def test_more_clients_rounds_and_epochs_and_more_certainty_need_more_directions(run, name, more):
    least = least_directions(**run)
    assert least_directions(**{**run, name: run[name] + more}) >= least
    assert least_directions(**{**run, name: 2 * run[name]}) > least
    assert least_directions(**{**run, "delta": run["delta"] / 2}) > least


@given(assumptions, steps, positive, st.floats(0.01, 1.0), st.integers(1, 1000))
def test_what_is_printed_is_the_one_in_the_paper(constants, run, kappa, slowness, factor):
    run |= {"directions": 4 * factor * least_directions(**run), "dimension": 7850, "mu": 0.1, "kappa": kappa}
    run["lr"] = slowness * printed_lr(constants, run["local_epochs"])
    assert printed(constants, **run).total == pytest.approx(stated(constants, **run), rel=1e-6)


@given(assumptions, st.floats(1.1, 100.0), st.integers(1, 5))
def test_the_bound_grows_with_every_assumption(constants, factor, epochs):
    run = {**OURS, "lr": largest_lr(Constants(gradient_lipschitz=1e4), epochs), "local_epochs": epochs}
    least = theorem_2(constants, **run).total
    for name in ("loss_gap", "gradient_lipschitz", "divergence", "objective_lipschitz", "gradient_variance"):
        assert theorem_2(replace(constants, **{name: factor * getattr(constants, name)}), **run).total > least


@given(assumptions, st.floats(0.01, 1.0), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 5))
def test_the_bound_has_the_units_of_a_squared_gradient(constants, slowness, loss, length, epochs):
    """Other units of loss and of length change all constants, and the bound by (loss / length)^2, no more, no less."""
    run = {**OURS, "local_epochs": epochs, "lr": slowness * largest_lr(constants, epochs)}
    slope = loss / length
    scaled = Constants(
        loss_gap=constants.loss_gap * loss,
        gradient_lipschitz=constants.gradient_lipschitz * slope / length,
        objective_lipschitz=constants.objective_lipschitz * slope,
        divergence=constants.divergence * slope**2,
        gradient_variance=constants.gradient_variance * slope**2,
    )
    other = {**run, "lr": run["lr"] * length / slope * (1 - 1e-12), "mu": run["mu"] * length}
    expected = [term * slope**2 for term in theorem_2(constants, **run)]
    assert list(theorem_2(scaled, **other)) == pytest.approx(expected, rel=1e-9)


def test_the_bound_grows_with_liars_and_shrinks_with_directions():
    total = theorem_2(Constants(), **OURS).total
    for name, value in {"kappa": 4.6, "mu": 0.01, "dimension": 7851}.items():
        assert theorem_2(Constants(), **{**OURS, name: value}).total > total, name
    for name, value in {"directions": 3345, "honest": 31, "rounds": 401}.items():
        assert theorem_2(Constants(), **{**OURS, name: value}).total < total, name


def test_with_nothing_to_err_on_only_the_start_remains():
    nothing = Constants(divergence=0.0, objective_lipschitz=0.0, gradient_variance=0.0)
    bound = theorem_2(nothing, **{**OURS, "kappa": 0.0, "mu": 0.0})
    assert bound == pytest.approx(Bound(start=1.0, drift=0.0, variance=0.0, bias=0.0, byzantine=0.0))


@given(assumptions, counts)
def test_the_learning_rate_is_the_smaller_of_the_two(constants, epochs):
    spread = math.sqrt(constants.average_lipschitz**2 + constants.divergence)
    both = 1 / (26 * epochs * constants.gradient_lipschitz), 1 / (4 * epochs * spread)
    assert printed_lr(constants, epochs) == pytest.approx(min(both))
    assert largest_lr(constants, epochs) == pytest.approx(1 / (12 * epochs * constants.gradient_lipschitz))


@pytest.mark.parametrize("dimension", [1, 2, 3, 20, 200])
@pytest.mark.parametrize("directions", [1, 2, 7, 50])
def test_what_the_proof_says_of_directions_on_the_sphere(dimension, directions):
    """The largest eigenvalue of Z Z^T, and the variance of a Lipschitz odd function: by 400 draws, five errors wide."""
    rng = np.random.default_rng([dimension, directions])
    z = rng.normal(size=(400, dimension, directions))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    largest = np.linalg.norm(z[..., 1:], ord=2, axis=(1, 2)) ** 2 if directions > 1 else np.zeros(400)
    bounded = amplification(directions, dimension) * directions / dimension - 1
    assert largest.mean() <= bounded * (1 + 1e-12) + 5 * largest.std() / 20
    odd = np.clip(3 * z[:, 0, 0], -1, 1) / 3  # 1-Lipschitz
    assert dimension * (odd**2).mean() <= odd_variance(dimension) + 5 * dimension * (odd**2).std() / 20


def test_theorem_1_asks_for_as_many_directions_as_parameters():
    run = {**RUN, "kappa": 0.5, "lr": 1e-3}
    needed = []
    for dimension in (100, 1000, 10_000):
        options = {**run, "dimension": dimension}
        enough = next(
            nu
            for nu in 2.0 ** np.arange(10, 40)
            if first_constants(Constants(), **{**options, "directions": int(nu)}).condition_c <= 0.5
        )
        needed.append(enough / dimension)
        theorem_1(Constants(), **{**options, "directions": int(enough)})
        with pytest.raises(
            InvalidConfig, match=r"^directions = \d+: condition \(c\) of Theorem 1 asks for 0.5 or less"
        ):
            theorem_1(Constants(), **{**options, "directions": int(enough) // 2})
    assert max(needed) <= 4 * min(needed)


def test_condition_a_of_theorem_1():
    run = {**RUN, "kappa": 0.0, "directions": 10**9}
    shape = {name: run[name] for name in ("honest", "local_epochs", "directions", "dimension")}
    largest = largest_lr_1(Constants(), **shape)
    assert largest == pytest.approx(math.sqrt(1 / 72))
    with pytest.raises(InvalidConfig, match=r"^lr = .*: condition \(a\) of Theorem 1 asks for at most 0.117851"):
        theorem_1(Constants(), **{**run, "lr": largest * 1.001})


@given(st.sampled_from(["cwtm", "krum", "median", "geometric_median"]), st.integers(3, 100), st.data())
def test_proven_kappas_are_above_what_any_rule_can_have_and_grow_with_liars(rule, n, data):
    b = data.draw(st.integers(1, (n - 1) // 2))
    for name in (rule, f"nnm+{rule}"):
        kappa = proven_kappa(name, n, b)
        assert kappa >= b / (n - 2 * b)
        assert kappa > proven_kappa(name, n, b - 1)
        assert kappa == pytest.approx(proven_kappa(name, 3 * n, 3 * b))  # the ratio is all that counts


def test_known_kappas():
    assert [proven_kappa(rule, 9, 4) for rule in ("cwtm", "krum", "median")] == [120.0, 30.0, 100.0]
    assert proven_kappa("nnm+cwtm", 9, 4) == 8 * 4 / 5 * 121
    assert proven_kappa("mean", 9, 0) == 0.0
    assert proven_kappa("nnm+mean", 9, 1) == math.inf


@pytest.mark.parametrize(
    "rule", ["meamed", "bulyan", "clip+cwtm", "krum(power=1)", "krum(power=1, neighbours='n-b-2')"]
)
def test_what_is_not_proven_is_none(rule):
    assert proven_kappa(rule, 9, 1) is None


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("honest", 1, "an integer from 2"),
        ("rounds", 0, "an integer from 1"),
        ("rounds", 2**63, r"to 2\*\*63 - 1"),
        ("local_epochs", 1.0, "an integer from 1"),
        ("directions", True, "an integer from 1"),
        ("directions", 835, "at least 836"),
        ("dimension", "7850", "an integer from 1"),
        ("delta", 0.0, "a probability"),
        ("delta", math.nan, "a probability"),
        ("lr", 0.0, "a finite number above 0"),
        ("lr", 0.0385, r"at most 0\.0384615"),
        ("mu", 0.0, "a finite number above 0"),
        ("kappa", math.inf, "a finite number from 0"),
        ("kappa", None, "a finite number from 0"),
        ("kappa", 10**400, "a finite number from 0"),
    ],
)
def test_bad_input_is_named(name, value, right):
    with pytest.raises(InvalidConfig, match=f"^{name} = .*: .*{right}"):
        printed(Constants(), **{**RUN, name: value})


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("honest", 0, "an integer from 1"),
        ("rounds", 0, "an integer from 1"),
        ("directions", 0, "an integer from 1"),
        ("dimension", 0.5, "an integer from 1"),
        ("lr", 0.0834, r"our Theorem 2 asks for at most 0\.0833333"),
        ("mu", -1.0, "a finite number from 0"),
        ("kappa", math.inf, "a finite number from 0"),
    ],
)
def test_bad_input_of_ours_is_named(name, value, right):
    with pytest.raises(InvalidConfig, match=f"^{name} = .*: .*{right}"):
        theorem_2(Constants(), **{**OURS, name: value})


@pytest.mark.parametrize("name", Constants.__dataclass_fields__)
def test_bad_constants_are_named(name):
    for value in (-1.0, math.nan, math.inf, "1"):
        with pytest.raises(InvalidConfig, match=f"^{name} = "):
            Constants(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("krm", 9, 1), UnknownName), (("cwtm", 8, 4), InvalidAggregation), (("cwtm", 8, -1), InvalidConfig)],
)
def test_bad_rules_are_named(arguments, error):
    with pytest.raises(error):
        proven_kappa(*arguments)


def test_theory_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import cyber0.theory, cyber0.theory_as_printed, cyber0.cli.theory"
    subprocess.run([sys.executable, "-c", code], check=True)


def invoke(*arguments):
    app = typer.Typer()
    app.command()(theory)
    return CliRunner().invoke(app, arguments)


def test_the_command_says_that_the_papers_study_is_outside_its_theorems():
    result = invoke()
    assert result.exit_code == 0, result.output
    assert "836 directions or more" in result.output
    assert "64 directions do not satisfy it" in result.output
    assert "76.3" in result.output  # at four times the least directions, where epsilon is 1/2
    assert "2 of 8, the same ratio" in result.output
    rows = [line.replace("│", " ").split() for line in result.output.splitlines()]
    assert ["cwtm", "4.50", "0.50"] in rows
    assert ["mean", "inf", "inf"] in rows
    assert ["bulyan", "-", "-"] in rows


def test_the_command_for_a_run_within_the_theorems():
    result = invoke("--clients", "5", "--byzantine", "1", "--directions", "4000", "--lr", "0.1")
    assert result.exit_code == 0, result.output
    assert "4,000 directions satisfy it" in result.output
    assert "0.1 does not satisfy it: the bound is for 0.0833" in result.output
    assert "ratio" not in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--byzantine", "20"), "byzantine = 20: it must be from 0 to 19, since fewer than half of the n = 40"),
        (("--byzantine", "20", "--kappa", "1"), "fewer than half of the n = 40"),
        (("--rule", "mean"), "rule = 'mean': no kappa is proven for it; give --kappa"),
        (("--lr", "nan"), "lr = nan: it must be a finite number above 0"),
        (("--kappa", "-1"), "kappa = -1.0: it must be a finite number from 0"),
        (("--delta", "2"), "delta = 2.0: it must be a probability above 0 and below 1"),
    ],
)
def test_a_wrong_option_is_a_sentence_and_nothing_else(arguments, sentence):
    result = invoke(*arguments)
    assert isinstance(result.exception, InputError)
    assert sentence in str(result.exception)
    assert not result.output


@given(st.integers(12, 10**6), st.data())
def test_the_smaller_pair_is_one_that_can_be_measured(n, data):
    b = data.draw(st.integers(0, (n - 1) // 2))
    few, liars = _measurable(n, b)
    assert few <= 11
    assert 2 * liars < few
    assert (liars > 0) == (b > 0)


def test_the_smaller_pair_keeps_the_ratio_where_it_can():
    assert _measurable(40, 10) == (8, 2)
    assert _measurable(12, 3) == (8, 2)
    assert _measurable(1000, 100) == (10, 1)
    assert _measurable(11, 5) == (11, 5)
