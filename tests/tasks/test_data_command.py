"""`cyber0 data`."""

import csv
import re
import sys

import pytest
import typer
from tests.tasks.test_images import leaf
from typer.testing import CliRunner

from cyber0.cli.data import data
from cyber0.errors import InvalidData, MissingExtra, UnknownName

app = typer.Typer()
app.command()(data)


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, Exception):
        raise result.exception
    return result.output


def test_the_table_adds_up():
    output = invoke("--clients", 40, "--source", "embedded")
    assert output.startswith("5,000 embedded images (4,000 + 1,000)\n")
    assert "\x1b" not in output
    assert max(map(len, output.splitlines()[:-2])) <= 80
    rows = [[int(word) for word in line.replace("·", "0").split()] for line in re.findall(r"(?m)^ +\d.*\d *$", output)]
    rows = [row for row in rows if len(row) == 12]
    assert [row[0] for row in rows] == list(range(40))
    assert all(sum(row[1:11]) == row[11] for row in rows)
    assert sum(row[11] for row in rows) == 4000


def test_the_same_seed_gives_the_same_table():
    arguments = ("--source", "embedded", "--clients", 5, "--alpha", 0.5)
    assert invoke(*arguments) == invoke(*arguments)
    assert invoke(*arguments) != invoke(*arguments, "--seed", 1)


def test_many_clients_are_cut_in_the_table_and_whole_in_the_file(tmp_path):
    out = tmp_path / "new" / "holdings.csv"
    output = invoke("--source", "embedded", "--clients", 100, "--partition", "iid", "--out", out)
    assert "40 clients not shown" in output
    assert f"written to {out}\n" in output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 100
    assert all(row["total"] == "40" for row in rows)


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_is_written(tmp_path, suffix, magic):
    out = tmp_path / f"holdings.{suffix}"
    invoke("--source", "embedded", "--clients", 7, "--partition", "shards(per_client=3)", "--out", out)
    assert out.read_bytes().startswith(magic)


def test_the_same_picture_has_the_same_bytes(tmp_path):
    outs = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for out in outs:
        invoke("--source", "embedded", "--clients", 3, "--out", out)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert "alpha = 0.1, per = label" in outs[0].read_text()


def test_bad_input_is_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(InvalidData, match="ending in"):
        invoke("--out", tmp_path / "holdings.bmp")
    with pytest.raises(UnknownName, match="option 'alpha' of the partition"):
        invoke("--source", "embedded", "--partition", "iid", "--alpha", 1)
    with pytest.raises(InvalidData, match="too few for 5000 clients"):
        invoke("--source", "embedded", "--clients", 5000)
    with pytest.raises(InvalidData, match="there is no folder"):
        invoke("--data", tmp_path / "gone")
    (tmp_path / "taken").write_text("")
    with pytest.raises(InvalidData, match="cannot be written"):
        invoke("--source", "embedded", "--out", tmp_path / "taken" / "holdings.csv")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"cyber0\[study\]"):
        invoke("--source", "embedded", "--out", tmp_path / "holdings.png")


def test_every_option_is_explained():
    output = invoke("--help")
    for option in ("task", "clients", "partition", "alpha", "seed", "data", "source", "out"):
        assert re.search(rf"--{option} +[A-Z]", output), output


def test_many_labels_are_counted_rather_than_listed(tmp_path):
    data = leaf(tmp_path / "leaf")
    output = invoke("--task", "femnist", "--data", data, "--partition", "natural", "--clients", 5)
    assert output.startswith("FEMNIST, 25 + 10 images of 5 writers")
    assert re.search(r"client +labels +total", output)
    assert sorted(int(row.split()[2]) for row in re.findall(r"(?m)^ +\d+ +\d+ +\d+ *$", output)) == [3, 4, 5, 6, 7]
