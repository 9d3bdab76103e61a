"""Downloads over real sockets, from a server on this machine."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from cyber0.errors import InvalidData
from cyber0.tasks import download, mnist
from cyber0.tasks.files import cache_directory

NOBODY = "http://127.0.0.1:9"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Silent(Quiet):
    """Takes the request and never answers, until the test is over."""

    over = threading.Event()

    def do_GET(self):
        self.over.wait()


class Endless(Quiet):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(bytes(2**16))
        except OSError:
            pass  # the client has had enough


@pytest.fixture
def serve():
    servers = []

    def start(handler):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    Silent.over.set()
    for server in servers:
        server.shutdown()
        server.server_close()
    Silent.over.clear()


pytestmark = pytest.mark.usefixtures("published")  # no test here may reach for the real MNIST


@pytest.fixture
def mirror(published, serve):
    return serve(partial(Quiet, directory=str(published)))


def use(monkeypatch, *mirrors):
    monkeypatch.setattr(mnist, "MIRRORS", mirrors)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_mnist_is_downloaded_into_the_cache_and_found_there(mirror, published, monkeypatch):
    use(monkeypatch, NOBODY, mirror)  # the first mirror is down
    digits = mnist.load(source="mnist")
    assert np.array_equal(digits.train_inputs, mnist.load(published).train_inputs)
    assert names(cache_directory("mnist")) == names(published)
    use(monkeypatch)
    assert mnist.load(source="mnist").source == mnist.load().source == digits.source


def test_auto_never_downloads(mirror, monkeypatch):
    use(monkeypatch, mirror)
    assert "embedded" in mnist.load().source
    assert not cache_directory("mnist").exists()


def test_an_interrupted_download_goes_on_and_does_not_count_before(mirror, published, monkeypatch):
    cache = cache_directory("mnist")
    cache.mkdir(parents=True)
    first = mnist.FILES[0].name
    (cache / first).write_bytes((published / first).read_bytes())
    assert "embedded" in mnist.load().source
    use(monkeypatch, mirror)
    assert "30 + 10" in mnist.load(source="mnist").source


def test_altered_bytes_never_get_the_name(mirror, published, monkeypatch):
    path = published / mnist.FILES[2].name
    path.write_bytes(path.read_bytes()[:-1])
    use(monkeypatch, mirror)
    with pytest.raises(InvalidData, match=f"SHA-256 .* it must be {mnist.FILES[2].sha256}"):
        mnist.load(source="mnist")
    assert names(cache_directory("mnist")) == sorted(file.name for file in mnist.FILES[:2])


def test_a_missing_file_and_a_missing_network_are_sentences(mirror, published, monkeypatch):
    (published / mnist.FILES[0].name).unlink()
    use(monkeypatch, mirror, NOBODY, "ftp://127.0.0.1")
    with pytest.raises(InvalidData) as refusal:
        mnist.load(source="mnist")
    message = str(refusal.value)
    assert all(part in message for part in ("File not found", "Connection refused", "http://", "--data", "'embedded'"))


def test_a_silent_mirror_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    use(monkeypatch, serve(Silent))
    with pytest.raises(InvalidData, match="timed out"):
        mnist.load(source="mnist")


def test_an_endless_answer_is_cut(serve, monkeypatch):
    use(monkeypatch, serve(Endless))
    with pytest.raises(InvalidData, match="what it serves has the SHA-256"):
        mnist.load(source="mnist")
    assert names(cache_directory("mnist")) == []


def test_a_cache_that_cannot_be_made_is_a_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InvalidData, match="cannot be made"):
        mnist.load(source="mnist")
