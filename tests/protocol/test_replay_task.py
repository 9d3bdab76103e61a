"""A base that its task builds, wherever data and model lie now: the digest proves that it is the run's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cyber0.cli import app
from cyber0.config import Agreement, RunConfig
from cyber0.errors import InvalidConfig, InvalidData, InvalidModel, InvalidParameters
from cyber0.protocol import export
from cyber0.protocol.identity import Identity
from cyber0.protocol.ledger import Memory
from cyber0.protocol.roster import Roster
from cyber0.replay import base
from cyber0.replay.rebuild import present

SMALL = {"clients": 4, "byzantine": 1, "partition": "iid", "family": "gaussian", "directions": 2, "batch": 8}
SMALL |= {"rounds": 3, "lr": 0.01, "device": "cpu"}


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def exported(folder, out, *options):
    done = invoke("ledger", "export", folder, "--out", out, *options)
    assert done.exit_code == 0, done.exception
    return done.stderr


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder of rows and tiny models; one stands elsewhere."""
    pytest.importorskip("transformers")
    from cyber0.tasks.text import tiny

    folder = tiny.data(tmp_path / "texts")
    for kind in ("roberta", "encoder"):
        tiny.model(folder / kind, kind)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return folder


def played(texts, kind, prompt="prompt.toml", options=""):
    """Play a run in a folder beside the texts; gives that, and the fingerprint of its model."""
    from cyber0.simulation.run import run

    task = f"text-classification(prompt={str(prompt)!r}{options})"
    config = RunConfig(task=task, data=str(texts), model=str(texts / kind), **SMALL)
    folder = texts.parent / "run"
    return folder, run(config, folder).fingerprint


@pytest.mark.parametrize(
    ("kind", "options"),
    [("roberta", ", adapter='lora(rank=2)'"), ("encoder", ", adapter='lora(rank=2)'"), ("encoder", "")],
)
def test_the_model_is_rebuilt_where_data_and_model_have_moved(tmp_path, texts, kind, options):
    folder, fingerprint = played(texts, kind, options=options)
    assert exported(folder, tmp_path / "run.cyber0") == ""
    (texts / kind).rename(tmp_path / "model")
    texts.rename(tmp_path / "moved")
    where = ["--base", "task", "--data", tmp_path / "moved", "--model", tmp_path / "model"]
    done = invoke("replay", tmp_path / "run.cyber0", *where, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.exception
    assert fingerprint in done.output
    done = invoke("verify", tmp_path / "run.cyber0", *where)
    assert done.exit_code == 0, done.exception
    assert f"has the fingerprint recorded, {fingerprint}" in done.output


def test_what_is_not_there_is_said(tmp_path, texts):
    from cyber0.tasks.text import tiny

    folder, _ = played(texts, "roberta")
    exported(folder, tmp_path / "run.cyber0")
    start = ["replay", tmp_path / "run.cyber0", "--base", "task", "--out", tmp_path / "out"]
    other = tiny.model(tmp_path / "other", "roberta", seed=1)
    for options, error, message in (
        ([], InvalidConfig, "there is no prompt file prompt.toml"),
        (["--data", "gone"], InvalidData, "there is no folder gone"),
        (["--data", texts, "--model", "./gone"], InvalidModel, "there is no folder ./gone"),
        (["--data", texts, "--model", other], InvalidParameters, "not the base of the run"),
    ):
        done = invoke(*start, *options)
        assert isinstance(done.exception, error)
        assert message in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_base_that_is_not_the_runs_is_named_with_one_that_is(tmp_path, texts):
    folder, _ = played(texts, "roberta", options=", adapter='lora(rank=2)'")
    exported(folder, tmp_path / "run.cyber0")
    done = invoke("verify", tmp_path / "run.cyber0", "--base", texts / "roberta")
    assert isinstance(done.exception, InvalidParameters)
    assert str(done.exception).startswith(f"--base {texts / 'roberta'}: the weights have no tensor")
    assert str(done.exception).endswith("; give the weights of roberta, which --base task builds")


@pytest.mark.parametrize("command", [["verify"], ["ledger", "show"], ["replay", "--base", "task", "--out", "out"]])
def test_the_folder_of_a_run_is_sent_to_be_exported(tmp_path, command):
    (tmp_path / "config.toml").touch()
    done = invoke(*command, tmp_path)
    assert f"make a file of it by cyber0 ledger export {tmp_path} --out run.cyber0" in str(done.exception)


@pytest.mark.parametrize("option", [("--data", "texts"), ("--model", "roberta-large")])
def test_where_a_task_lies_is_asked_only_of_a_task(tmp_path, option):
    said = f"{option[0]} {option[1]} is for --base task, "
    for command, message in (
        (["replay", "no.ledger", "--base", "w.safetensors", "--out", tmp_path / "out"], "and --base is w.safetensors"),
        (["verify", "no.ledger", "--base", "w.safetensors"], "and --base is w.safetensors: leave it out"),
        (["verify", "no.ledger"], "which is not given: give it too"),
    ):
        done = invoke(*command, *option)
        assert isinstance(done.exception, InvalidConfig)
        assert str(done.exception).startswith(said + message)


def test_a_task_without_a_language_model_takes_none(tmp_path):
    ledger = Memory()
    roster = Roster.of(Agreement(), [f"c{n}" for n in range(40)])
    ledger.found(Identity(Agreement(), roster, "0" * 64, "0" * 64))
    with pytest.raises(InvalidConfig, match="takes no language model: leave it out"):
        base(ledger.identity, None, model="roberta-large")
    with pytest.raises(InvalidData, match="holds no MNIST"):
        base(ledger.identity, None, tmp_path)


def test_a_file_goes_by_its_name_and_is_found_beside_the_data(tmp_path, texts):
    prompt = (texts / "prompt.toml").rename(tmp_path / "my.toml")
    folder, fingerprint = played(texts, "encoder", prompt)
    assert exported(folder, tmp_path / "run.cyber0") == ""
    identity = export.read(tmp_path / "run.cyber0").identity
    assert identity.agreement.task == "text-classification(prompt='my.toml')"
    assert str(tmp_path) not in identity.to_bytes().decode()
    prompt.rename(texts / "my.toml")  # as on another machine: not where it was
    where = ["--base", "task", "--data", texts, "--model", texts / "encoder"]
    done = invoke("verify", tmp_path / "run.cyber0", *where)
    assert done.exit_code == 0, done.exception
    assert f"has the fingerprint recorded, {fingerprint}" in done.output


words = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="'\"\\/"), min_size=1)


@given(st.lists(words, min_size=1, max_size=4), st.sampled_from(["/", "~/", "C:/", "C:\\"]), words.map("of {}".format))
def test_no_whole_path_is_agreed_on_and_a_name_alone_stays(parts, start, other):
    path = start + "/".join(parts)
    agreement = RunConfig(task=f"t(a={path!r}, b=[{other!r}, {path!r}], c={other!r})", model=path, data=path).agreement
    assert agreement.task == f"t(a={parts[-1]!r}, b=[{other!r}, {parts[-1]!r}], c={other!r})"
    assert agreement.model == parts[-1]
    task = f"t(a={'of ' + '/'.join(parts)!r}, b='/')"
    assert RunConfig(task=task, model="org/model").agreement.task == task


def test_an_old_file_goes_by_its_name_only_where_it_is_not_at_its_path(tmp_path):
    here, gone = tmp_path / "here.toml", "/no/such/gone.toml"
    (tmp_path / "folder").mkdir()
    for path in (here, tmp_path / "folder" / "here.toml", tmp_path / "folder" / "gone.toml"):
        path.touch()
    assert present(str(here), tmp_path / "folder") == str(here)
    assert present(gone, tmp_path / "folder") == "gone.toml"
    assert present("D:\\texts\\gone.toml", tmp_path / "folder") == "gone.toml"
    assert present(gone, tmp_path) == gone
    assert present("lora(rank=8)", tmp_path / "folder") == "lora(rank=8)"


def test_code_of_others_is_not_run_whatever_is_in_the_folder(tmp_path):
    (tmp_path / "my.toml").touch()
    agreement = Agreement(task="sst2(prompt='/no/my.toml', adapter='os:system')", clients=1, byzantine=0)
    with pytest.raises(InvalidConfig, match="would run code from outside the library"):
        base(Identity(agreement, Roster.of(agreement, ["ann"]), "0" * 64, "0" * 64), None, tmp_path)
