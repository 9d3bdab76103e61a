"""What is in deploy/: units that systemd knows, images and a compose file whose commands cyber0 understands."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import typer
from tests import processes

from cyber0.cli import app
from cyber0.cli.errors import REFUSED

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
NAMES = ["alice", "bob", "carol", "dave"]


def accept(words):
    """Let the real command line parse a command; nothing is run."""
    name, *rest = words
    typer.main.get_command(app).commands[name].make_context(name, rest)


def unit(path):
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser


# systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_is_understood(path):
    service = unit(path)["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/cyber0/bin/cyber0"
    options = {"$OPTIONS": ["--metrics", "9100"] if words[0] == "serve" else ["--device", "cpu"]}
    words = [each for word in words for each in options.get(word, [word.replace("${FEDERATOR}", "localhost:7360")])]
    accept(words)
    assert str(REFUSED) in service["RestartPreventExitStatus"].split()
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"  # all else is read-only
    assert (service["ProtectSystem"], service["User"]) == ("strict", "cyber0")


def test_a_client_of_systemd_can_write_its_privacy_budget():
    service = unit(DEPLOY / "systemd" / "cyber0-client@.service")["Service"]
    assert f"XDG_STATE_HOME=/var/lib/{service['StateDirectory']}" in service["Environment"].split()


def test_systemd_verifies_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS:
        text = path.read_text().replace("/opt/cyber0/bin/cyber0", sys.executable)
        (tmp_path / path.name.replace("@.", "@alice.")).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *sorted(tmp_path.glob("*.service"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if "Failed to" in said and "cyber0" not in said:
        pytest.skip(said)  # it needs more of a system than there is here
    assert (done.returncode, said) == (0, "")


# Images


def steps(stage):
    """The instructions of a stage, with those of the stages it is made from."""
    text = re.split(rf"^FROM (\S+) AS {stage}$", DOCKERFILE, flags=re.MULTILINE)
    base, rest = text[1], text[2].partition("\nFROM ")[0]
    own = re.findall(r"^([A-Z]+) +(.*)$", rest, flags=re.MULTILINE)
    return own if base.startswith("python:") else steps(base) + own


def test_the_image_of_a_federator_has_no_torch():
    installs = [what for step, what in steps("build") if "pip install" in what]
    assert installs
    assert not any("torch" in what or "[" in what for what in installs)
    assert [what for step, what in steps("build-client") if 'torch"' in what or "torch " in what]


@pytest.mark.parametrize("stage", ["federator", "client"])
def test_an_image_runs_as_an_ordinary_user_what_is_understood(stage):
    made = dict(steps(stage))
    assert made["USER"] == "10001:10001"
    assert made["WORKDIR"] == made["VOLUME"] == "/state"
    assert json.loads(made["ENTRYPOINT"]) == ["cyber0"]
    words = json.loads(made["CMD"])
    if "--help" not in words:
        accept(words)
    copied = [word for step, what in steps("build") if step == "COPY" for word in what.split()[:-1]]
    assert all((ROOT / word).exists() for word in copied)
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{word}" for word in copied} == {word for word in kept if word.startswith("!")}


def test_a_client_of_an_image_can_join_with_epsilon():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = dict(what.split("=", 1) for step, what in steps("build-client") if step == "ARG" and "=" in what)
    assert {"train", "privacy"} <= set(installed["EXTRAS"].split(",")) <= set(extras)


def test_the_compose_file_is_a_federation():
    yaml = pytest.importorskip("yaml")
    made = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = made["services"]
    assert sorted(services) == sorted(["federator", "keys", *NAMES])
    for name in ["federator", *NAMES]:
        service = services[name]
        accept(service["command"])
        assert (service["read_only"], service["tmpfs"], service["volumes"]) == (True, ["/tmp"], [f"{name}:/state"])  # noqa: S108
        assert service["build"]["target"] == ("federator" if name == "federator" else "client")
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert sorted(made["volumes"]) == sorted(["federator", *NAMES])
    assert f"--roster={','.join(NAMES)}" in services["federator"]["command"]
    assert f"for name in {' '.join(NAMES)};" in services["keys"]["command"][0]
    _, check = dict(steps("federator"))["HEALTHCHECK"].split("CMD ", 1)
    assert services["federator"]["healthcheck"]["test"] == ["CMD", *json.loads(check)]


# For real


def test_a_federator_is_an_ordinary_user_in_a_folder_that_is_read_only(tmp_path):
    """It writes to the folder of its ledger, and there alone; the check of its image finds it healthy."""
    here, state = tmp_path / "here", tmp_path / "state"
    here.mkdir()
    state.mkdir()
    nobody = 65534 if os.geteuid() == 0 else os.geteuid()
    os.chown(state, nobody, -1)
    for folder in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o755)  # for others than root to reach it
    here.chmod(0o555)
    words = ["serve", "--ledger", state / "run.ledger", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    words += ["--clients", "3", "--byzantine", "1"]
    # What is imported late comes first: root's own Python may be in a folder that others cannot read.
    become = f"import encodings.idna, importlib.readers\nos.setgroups([])\nos.setuid({nobody})"
    command = processes.command(*words, before=become if os.geteuid() == 0 else "")
    env = {**os.environ, "HOME": str(here)}
    with processes.Popen(command, cwd=here, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as federator:
        lines = iter(federator.stdout.readline, "")
        said = ""
        while "the live page is at" not in said:
            said += (line := next(lines, ""))
            assert line, said
        _, check = dict(steps("federator"))["HEALTHCHECK"].split("CMD ", 1)
        code = json.loads(check)[-1].replace("http://127.0.0.1:9100/", re.search(r"http://\S+/", line)[0])
        healthy = processes.run(["-c", code]).returncode == 0
        federator.send_signal(signal.SIGTERM)
        said += "".join(lines)
    assert healthy
    assert federator.returncode == 0, said
    assert list(here.iterdir()) == []
    assert {path.stat().st_uid for path in state.iterdir()} == {nobody}
