"""Pictures of runs: in one style, of the right numbers, in every format; and `cyber0 plot`."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from typer.testing import CliRunner

import cyber0
from cyber0.cli import app
from cyber0.errors import InvalidConfig
from cyber0.simulation.plots import COLOURS, save

OPTIONS = {"source": "embedded", "clients": 8, "byzantine": 2, "directions": 6, "batch": 16, "rounds": 4, "alpha": 1.0}
OPTIONS |= {"evaluate_every": 2, "attack": "foe"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plots")


@pytest.fixture(scope="module")
def results(folder):
    rules = {"a": "mean", "b": "cwtm"}
    return {
        name: cyber0.run(cyber0.RunConfig(rule=rule, validation=0.1, **OPTIONS), folder / name, keep="votes")
        for name, rule in rules.items()
    }


def plot(*arguments):
    return CliRunner().invoke(app, ["plot", *map(str, arguments)], catch_exceptions=False)


def test_a_line_has_the_evaluations_over_rounds_or_bytes(results):
    result = results["a"]
    frame = result.history.frame()
    for over, column in (("round", "round"), ("bytes", "bytes_up_per_client")):
        test, validation = result.plot(over=over, label="mine").lines
        assert test.get_xdata().tolist() == frame[column].tolist()
        assert test.get_ydata().tolist() == frame["accuracy"].tolist()
        assert validation.get_ydata().tolist() == frame["validation_accuracy"].tolist()
        assert test.get_label() == "mine"


def test_several_results_share_axes_in_different_colours(results):
    axes = None
    for result in results.values():
        axes = result.plot(axes, metric="loss")
    colours = [to_hex(line.get_color()) for line in axes.lines if line.get_linestyle() == "-"]
    assert colours == list(COLOURS[:2])


def test_the_votes_of_a_round_are_there_with_their_liars(results):
    shown = results["b"].history.rounds[1]
    axes = results["b"].plot_votes(round=1)
    honest, lies = (np.asarray(group.get_offsets())[:, 1].reshape(-1, 6) for group in axes.collections[:2])
    assert np.array_equal(honest, np.asarray(shown.sent)[0, :6])
    low, high = lies.min(), lies.max()
    assert np.array_equal(lies, np.clip(np.asarray(shown.sent)[0, 6:], low, high))
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["honest", "liars", "aggregate"]
    assert axes.get_title(loc="left").startswith("round 1: 8 votes, 2 by liars")


def test_omega_is_drawn_for_each_round(results):
    drawn = results["b"].plot_report().lines[0].get_ydata()
    assert drawn.tolist() == [np.mean(each.reports["omega"]) for each in results["b"].history.rounds]


def test_what_was_not_kept_cannot_be_drawn(results):
    bare = cyber0.run(cyber0.RunConfig(**OPTIONS | {"rounds": 1}))
    for draw in (bare.plot_votes, bare.plot_report):
        with pytest.raises(InvalidConfig, match="keep='votes', or --keep votes"):
            draw()
    with pytest.raises(InvalidConfig, match="round = 9: votes were kept of rounds 0 to 3"):
        results["a"].plot_votes(round=9)
    with pytest.raises(InvalidConfig, match="over = 'time': use one of round, bytes"):
        bare.plot(over="time")
    with pytest.raises(InvalidConfig, match="metric = 'f1': this run has round, accuracy"):
        bare.plot(metric="f1")


def test_a_style_of_the_users_own_changes_nothing(results, tmp_path):
    save(results["a"].plot(), tmp_path / "a.svg")
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30}):
        save(results["a"].plot(), tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


HEADS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


@pytest.mark.parametrize(("kind", "ending"), [
    ("accuracy", "svg"), ("loss", "pdf"), ("votes", "png"), ("omega", "svg"), ("holdings", "png"),
])  # fmt: skip
def test_one_command_draws(results, folder, tmp_path, kind, ending):
    runs = [folder / name for name in results][: 1 if kind in ("votes", "holdings") else 2]
    out = tmp_path / f"picture.{ending}"
    assert plot(*runs, "--kind", kind, "--out", out).output == f"written to {out}\n"
    assert out.read_bytes().startswith(HEADS[ending])
    if kind == "accuracy":
        assert "matplotlib" in out.read_text()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--kind", "vote"], "unknown kind of picture 'vote': use one of .* \\(did you mean 'votes'\\?\\)"),
    (["--kind", "votes"], "--kind votes shows one run, and 2 are given"),
    (["--kind", "omega", "--over", "bytes"], "--over bytes is for accuracy, loss .* not for --kind omega"),
    (["--round", "2"], "--round 2 is for --kind votes, not for accuracy"),
    (["--label", "x"], "--label is given 1 times for 2 runs"),
    (["--kind", "attack-success"], "/a: metric = 'attack_success': this run has round"),
    (["--out", "a.gif"], "a.gif: a picture is written to a file ending in .svg, .pdf, .png"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_said(results, folder, arguments, message):
    with pytest.raises(cyber0.Cyber0Error, match=message):
        plot(*(folder / name for name in results), *arguments)


def test_who_holds_data_given_in_python_is_not_known_to_the_command(tmp_path):
    x, y = np.zeros((20, 2), np.float32), np.arange(20) % 2
    options = {"clients": 2, "byzantine": 0, "rounds": 1, "directions": 1, "partition": "iid"}
    cyber0.simulate(torch.nn.Linear(2, 2), (x, y), (x, y), out=tmp_path / "run", **options)
    with pytest.raises(cyber0.Cyber0Error, match="run: the data of this run were given in Python"):
        plot(tmp_path / "run", "--kind", "holdings", "--out", tmp_path / "a.svg")


def test_a_notebook_shows_a_figure_as_a_picture(results):
    assert results["a"].plot().figure._repr_png_().startswith(b"\x89PNG")
