"""Flower's own processes on loopback, with TLS and authenticated nodes, as docs/flower.md starts them."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from cyber0.network.keys import init

BIN = Path(sys.executable).parent
LIMIT = 240.0  # seconds until a run that hangs has failed


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Flower:
    """A SuperLink with its SuperExec, and nodes by name; all of them end with it."""

    def __init__(self, folder):
        self.folder, self.port, self.started, self.nodes = folder, free_port(), {}, {}
        self.keys = init(folder / "keys")
        self.home = folder / "flwr"
        self.home.mkdir()
        self.secret = folder / "superexec.secret"
        self.secret.write_bytes(os.urandom(32))
        self.env = os.environ | {
            "PYTHONUNBUFFERED": "1",  # else a command whose output is read as it comes holds it back
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        connection = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.keys}/ca.pem"\n'
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{connection}')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.started.values()):
            process.terminate()
        for process in self.started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started may take longer
            process.wait()

    def start(self, name, *command):
        with (self.folder / f"{name}.log").open("a") as log:
            self.started[name] = subprocess.Popen(
                [str(word) for word in command],
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )
        return self.started[name]

    def link(self):
        tls = [f"--ssl-{word}={self.keys}/{file}" for word, file in FILES.items()]
        self.start(
            "superlink",
            "flower-superlink",
            *tls,
            *("--host", "127.0.0.1", "--port", self.port, "--isolation", "process", "--enable-supernode-auth"),
            *("--disable-runtime-dependency-installation", "--database", self.folder / "flower.sqlite"),
            *("--superexec-auth-secret-file", self.secret),
        )

    def executor(self):
        self.start(
            "superexec",
            "flower-superexec",
            *("--runtime-api-address", f"127.0.0.1:{self.port}", "--root-certificates", self.keys / "ca.pem"),
            *("--superexec-auth-secret-file", self.secret),
        )

    def key(self, name):
        """A node's key as `ssh-keygen -t ecdsa` makes it."""
        made = ec.generate_private_key(ec.SECP384R1())
        private = self.folder / name
        private.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = private.with_suffix(".pub")
        public.write_bytes(made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        return public

    def register(self, name):
        """Tell the SuperLink of a node's key."""
        said = self.flwr("supernode", "register", self.key(name), "here", "--name", name)
        assert said.returncode == 0, said.stdout + said.stderr

    def ready(self):
        """Wait for the SuperLink to answer."""
        for _ in range(1200):
            if self._listens():
                break
            self.pause(0.05)
        for _ in range(60):
            said = self.flwr("supernode", "ls", "here")
            if said.returncode == 0:
                return
        raise AssertionError(said.stdout + said.stderr + self.log("superlink"))

    def _listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0 or self.started["superlink"].poll() is not None

    def node(self, name, port, **config):
        self.nodes[name] = port, config
        own = " ".join(f'{key}="{value}"' for key, value in config.items())
        return self.start(
            name,
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{self.port}", "--root-certificates", self.keys / "ca.pem"),
            *("--auth-supernode-private-key", self.folder / name, "--host", "127.0.0.1", "--port", port),
            *("--node-config", own),
        )

    def kill(self, name):
        """As when the power fails: the node, and the app that it runs."""
        os.killpg(self.started[name].pid, signal.SIGKILL)
        self.started[name].wait()

    def pause(self, seconds):
        """Let all go on for a while: until a time has passed, or the SuperLink ended, which it does not."""
        with suppress(subprocess.TimeoutExpired):
            self.started["superlink"].wait(seconds)

    def again(self, name):
        port, config = self.nodes[name]
        return self.node(name, port, **config)

    def flwr(self, *command):
        words = ["flwr", *map(str, command)]
        return subprocess.run(words, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=60)

    def lines(self, run):
        """The lines that a run says, as they come, to its end."""
        command = ("flwr", "log", run, "here")
        with subprocess.Popen(
            command, env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            limit = threading.Timer(LIMIT, process.kill)
            limit.start()
            yield from process.stdout
            limit.cancel()

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()


FILES = {"certfile": "cert.pem", "keyfile": "key.pem", "ca-certfile": "ca.pem"}
