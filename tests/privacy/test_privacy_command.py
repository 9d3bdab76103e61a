"""`cyber0 privacy`: the noise for a budget, and the budget of a noise."""

import re

import pytest
from typer.testing import CliRunner

from cyber0.cli import app


def output(*arguments):
    done = CliRunner().invoke(app, ["privacy", *arguments])
    return done.exit_code, done.output if done.exception is None else f"{done.output} {done.exception}"


def test_one_way_and_the_other_way_round(tmp_path):
    plot = tmp_path / "epsilon.svg"
    given = ("--samples", "1500", "--batch", "64", "--rounds", "40")
    status, text = output("--epsilon", "4", *given, "--plot", str(plot))
    assert status == 0
    noise = re.search(r"noise multiplier +([\d.]+)", text)[1]
    assert "<svg" in plot.read_text()
    status, text = output("--noise", noise, *given)
    spent = float(re.search(r"40 +│ +([\d.]+)", text)[1])
    assert 3.8 < spent <= 4
    assert "one sample more than the other" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--epsilon", "4", "--noise", "1"), "one of the two"),
        ((), "one of the two"),
        (("--epsilon", "4", "--delta", "0.1"), "delta = 0.1: it must be above 0 and below 1 / samples = 0.01"),
        (("--epsilon", "0"), "epsilon = 0.0: it must be a number above 0"),
        (("--noise", "0"), "without noise nothing is private"),
        (("--noise", "inf"), "noise = inf: it must be a number above 0"),
        (("--epsilon", "0.00001"), "epsilon = 1e-05 at delta = 1e-05: 400 steps cost more"),
    ],
)
def test_bad_input_is_a_sentence(options, text):
    status, found = output("--samples", "100", *options)
    assert status != 0
    assert text in found
