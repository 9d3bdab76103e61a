"""Downloads over real sockets, from a server on this machine."""

import hashlib
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from cyber0.errors import InvalidData
from cyber0.files import lock_file
from cyber0.tasks import download, mnist
from cyber0.tasks.files import DataFile, cache_directory

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


class Ranges(Quiet):
    """Serves `content`, from where it is asked to; the first answer breaks off after `first` bytes."""

    content, first, asked = b"", 0, []

    def do_GET(self):
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.asked.append(start)
        if start > len(self.content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        rest = self.content[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        return self.wfile.write(rest[: self.first] if len(self.asked) == 1 else rest)


def ranges(serve, **options):
    handler = type("Handler", (Ranges,), {"content": bytes(range(256)) * 999, "asked": [], **options})
    digest = hashlib.sha256(handler.content).hexdigest()
    return handler, serve(handler), DataFile("photographs.tar.gz", len(handler.content), digest)


@pytest.mark.parametrize("size", ["known", "not known"])
def test_a_download_that_broke_off_goes_on_where_it_was(serve, tmp_path, size):
    handler, mirror, file = ranges(serve, first=100_000)
    file = file if size == "known" else replace(file, size=None)
    cache = tmp_path / "mine"
    with pytest.raises(InvalidData, match="the connection broke after 100,000 of 255,744 bytes"):
        download.download([file], [mirror], cache)
    assert not (cache / file.name).exists()
    download.download([file], [mirror], cache)
    assert handler.asked == [0, 100_000]
    assert names(cache) == [file.name]
    assert (cache / file.name).read_bytes() == handler.content


@pytest.mark.parametrize("left", [b"of another file", bytes(300_000)])
def test_what_is_left_of_another_file_is_not_built_upon(serve, tmp_path, left):
    handler, mirror, file = ranges(serve, first=10**9)
    (tmp_path / f".{file.name}.part").write_bytes(left)
    download.download([file], [mirror], tmp_path)
    assert handler.asked == [len(left), 0]
    assert (tmp_path / file.name).read_bytes() == handler.content


def test_a_mirror_that_knows_no_ranges_sends_all_of_it(mirror, published, monkeypatch):
    cache, first = cache_directory("mnist"), mnist.FILES[0].name
    cache.mkdir(parents=True)
    (cache / f".{first}.part").write_bytes((published / first).read_bytes()[:50])
    use(monkeypatch, mirror)
    assert "30 + 10" in mnist.load(source="mnist").source
    assert names(cache) == names(published)


def test_two_processes_do_not_write_to_one_file(serve, tmp_path):
    handler, mirror, file = ranges(serve, first=10**9)
    part = tmp_path / f".{file.name}.part"
    with lock_file(part, RuntimeError, "a+b") as other:
        other.write(b"the other one's")
        other.flush()
        download.download([file], [mirror], tmp_path)
        assert part.read_bytes() == b"the other one's"
    assert (tmp_path / file.name).read_bytes() == handler.content
