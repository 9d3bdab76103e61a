"""Runs what the images of deploy/ would run, without a container engine: deploy/compose.yaml, command by command.

Each service is a process of user 10001 without capabilities, in a mount namespace of its own in which everything is
read-only but its volume and /tmp. The federator has an environment of its own, made by the Dockerfile's commands and
without torch; the clients have this interpreter's. Needs root, `unshare` and `setpriv`, and PyYAML:

    sudo .venv/bin/python scripts/try_images.py

"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CLIENTS = ("alice", "bob", "carol", "dave")
USER = "10001"
INSIDE = """
set -eu
mount --make-rprivate /
mount --bind "$VOLUME" "$VOLUME"
cut -d' ' -f5 /proc/self/mountinfo | while read -r where; do
    [ "$where" = "$VOLUME" ] || mount -o remount,bind,ro "$where" 2>/dev/null || true
done
mount -t tmpfs tmpfs /tmp
mount --bind "$HOSTS" /etc/hosts
cd "$VOLUME"
if touch /etc/written 2>/dev/null; then echo "/ is not read-only" >&2; exit 1; fi
exec setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups --no-new-privs --bounding-set=-all \
    --inh-caps=-all "$@"
"""


class Engine:
    """The services' volumes, and how to start one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts = folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost federator\n")
        folder.chmod(0o755)

    def volume(self, name: str) -> Path:
        """Return the only folder that a service writes to."""
        made = self.folder / name
        made.mkdir(exist_ok=True)
        return made

    def start(self, name: str, program: str, arguments: list[str], **environment: str) -> "subprocess.Popen[str]":
        """Start a service."""
        volume = str(self.volume(name))
        own = {"VOLUME": volume, "HOSTS": str(self.hosts), "USER_ID": USER, "HOME": volume}
        log = (self.folder / f"{name}.log").open("w")
        command = ["unshare", "--mount", "sh", "-c", INSIDE, "sh", program, *arguments]
        env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **own, **environment}
        return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, text=True)

    def log(self, name: str) -> str:
        """Return what a service has said."""
        return (self.folder / f"{name}.log").read_text()


def main() -> None:
    """Make keys, start all services, wait for their end."""
    services: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        engine = Engine(Path(scratch))
        federator = environment_of_the_federator(engine.folder / "environment")
        make_keys(engine, federator)
        began = time.monotonic()
        processes = {"federator": engine.start("federator", federator, services["federator"]["command"])}
        try:
            wait_until_healthy(processes["federator"], engine)
            for name in CLIENTS:
                program = str(Path(sys.executable).with_name("cyber0"))
                processes[name] = engine.start(name, program, services[name]["command"], OMP_NUM_THREADS="1")
            statuses = {name: process.wait(900) for name, process in processes.items()}
        finally:
            for process in processes.values():
                process.kill()
        seconds = time.monotonic() - began
        marks = {name: re.findall(r"fingerprint\s+([0-9a-f]{16})", engine.log(name)) for name in processes}
        last = {name: found[-1] if found else None for name, found in marks.items()}
        print(json.dumps({"seconds": round(seconds), "exit statuses": statuses, "fingerprints": last}, indent=2))
        if any(statuses.values()) or None in last.values() or len(set(last.values())) != 1:
            for name in processes:
                print(f"--- {name}\n{engine.log(name)[-2000:]}", file=sys.stderr)
            sys.exit(1)


def environment_of_the_federator(folder: Path) -> str:
    """Install cyber0 as the Dockerfile does for the federator, and return its command."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "-c", "constraints.txt"]
    for packages in (["pip", "setuptools"], ["--no-build-isolation", "."]):
        subprocess.run([*pip, *packages], cwd=ROOT, check=True)
    if subprocess.run([folder / "bin" / "python", "-c", "import torch"], capture_output=True).returncode == 0:
        sys.exit("the federator's environment has torch, which its image has not")
    return str(folder / "bin" / "cyber0")


def make_keys(engine: Engine, program: str) -> None:
    """Do what the service `keys` does, and give each volume to the user of its service."""
    keys = engine.volume("federator") / "keys"
    commands = [["init", str(keys), "--host", "federator"]]
    commands += [["issue", name, "--keys", str(keys), "--out", str(engine.volume(name) / "keys")] for name in CLIENTS]
    for command in commands:
        subprocess.run([program, "keys", *command], check=True, capture_output=True)
    for name in ("federator", *CLIENTS):
        subprocess.run(["chown", "-R", f"{USER}:{USER}", engine.volume(name)], check=True)


def wait_until_healthy(federator: "subprocess.Popen[str]", engine: Engine) -> None:
    """Ask as the image's health check does."""
    for _ in range(600):
        try:
            with urllib.request.urlopen("http://127.0.0.1:9100/health", timeout=4):
                return
        except OSError:
            if federator.poll() is not None:
                break
            time.sleep(0.1)
    sys.exit(f"the federator is not healthy:\n{engine.log('federator')}")


if __name__ == "__main__":
    main()
