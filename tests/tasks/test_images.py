"""CIFAR-10 and FEMNIST: files of the published formats, made here, and what is refused."""

import hashlib
import io
import json
import tarfile

import numpy as np
import pytest
import torch

import cyber0
from cyber0.errors import InvalidData, UnknownName
from cyber0.tasks import cifar10, femnist, partition
from cyber0.tasks.files import DataFile, cache_directory
from cyber0.tasks.task import make

RECORDS = 12
SMALL = {"clients": 5, "byzantine": 1, "directions": 3, "rounds": 2, "batch": 4, "attack": "foe"}


def archive(path, contents, kind):
    """Write a tar archive of contents by name."""
    with tarfile.open(path, f"w:{kind}") as packed:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))


def published_as(monkeypatch, module, path):
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(module, "ARCHIVE", DataFile(path.name, len(content), digest))


@pytest.fixture
def photographs(monkeypatch, tmp_path):
    """A folder with an archive in the binary format of CIFAR-10, and what is in it, by file: labels and pixels."""
    monkeypatch.setattr(cifar10, "RECORDS", RECORDS)
    generator = np.random.default_rng(0)
    batches = {name: generator.integers(0, 256, (RECORDS, 3073), np.uint8) for name in (*cifar10.TRAIN, cifar10.TEST)}
    for batch in batches.values():
        batch[:, 0] %= 10
    folder = tmp_path / "photographs"
    folder.mkdir()
    inside = {f"cifar-10-batches-bin/{name}": batch.tobytes() for name, batch in batches.items()}
    archive(folder / cifar10.ARCHIVE.name, {**inside, "cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}, "gz")
    published_as(monkeypatch, cifar10, folder / cifar10.ARCHIVE.name)
    return folder, batches


def unpack(folder):
    with tarfile.open(folder / cifar10.ARCHIVE.name) as packed:
        packed.extractall(folder, filter="data")
    (folder / cifar10.ARCHIVE.name).unlink()
    return folder / "cifar-10-batches-bin"


def test_photographs_are_read_from_the_archive_and_from_files_alike(photographs):
    folder, batches = photographs
    data = cifar10.load(folder)
    assert data.train_inputs.shape == (5 * RECORDS, 3, 32, 32)
    train = np.concatenate([batches[name] for name in cifar10.TRAIN])
    assert np.array_equal(data.train_labels, train[:, 0])
    expected = train[:, 1:].reshape(-1, 3, 32, 32) / 255.0
    expected = (expected - np.reshape(cifar10.MEAN, (3, 1, 1))) / np.reshape(cifar10.DEVIATION, (3, 1, 1))
    assert np.allclose(data.train_inputs, expected, atol=1e-6)
    assert np.array_equal(data.test_labels, batches["test_batch.bin"][:, 0])
    unpacked = unpack(folder)
    for place in (folder, unpacked):
        again = cifar10.load(place)
        assert np.array_equal(again.test_inputs, data.test_inputs)
        assert again.source == f"CIFAR-10, 60 + 12 images from {unpacked}"


def test_an_altered_archive_is_refused_by_its_checksum(photographs):
    path = photographs[0] / cifar10.ARCHIVE.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidData, match=r"truncated or altered: its SHA-256 is .* it must be .*fetch it again"):
        cifar10.load(photographs[0])


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated or altered"),
        (lambda path: path.write_bytes(b"\x0a" + path.read_bytes()[1:]), r"has a label 10: those .* 0 to 9"),
        (lambda path: path.unlink(), r"is not complete: it lacks data_batch_3\.bin"),
    ],
)
def test_altered_files_are_refused(photographs, harm, reason):
    harm(unpack(photographs[0]) / "data_batch_3.bin")
    with pytest.raises(InvalidData, match=reason):
        cifar10.load(photographs[0])


def test_pickles_are_never_read(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(InvalidData, match=r"holds the Python version of CIFAR-10, whose files may run code"):
        cifar10.load(tmp_path)


@pytest.mark.parametrize(("module", "name"), [(cifar10, "CIFAR-10"), (femnist, "FEMNIST")])
def test_what_is_not_there_is_a_sentence(module, name, monkeypatch, tmp_path):
    with pytest.raises(InvalidData, match=rf"{name} is not on this machine: source = '.*--data or CYBER0_DATA"):
        module.load()
    with pytest.raises(InvalidData, match=f"holds no {name}: put "):
        module.load(tmp_path)
    with pytest.raises(UnknownName, match="unknown source 'embedded'"):
        module.load(source="embedded")
    monkeypatch.setattr(module, "MIRRORS", ("http://127.0.0.1:9",))
    source = module.SOURCES[1]
    with pytest.raises(InvalidData, match=rf"{name} is not on this machine: .*Connection refused.*Put .*--data"):
        module.load(source=source)


def test_a_small_network_learns_from_photographs_in_all_engines(photographs):
    config = cyber0.RunConfig(task="cifar10", data=str(photographs[0]), partition="iid", mu=0.0, **SMALL)
    assert sum(p.numel() for p in make("cifar10", photographs[0]).build(0).parameters()) == 19466
    votes = [
        cyber0.run(config.updated(engine=engine), keep="votes").history.rounds[0].honest
        for engine in ("batched", "sequential")
    ]
    assert np.allclose(*votes, rtol=1e-4, atol=1e-3)


def characters(users, seed=0):
    """Return what each writer wrote: pixels from 0 to 1, and the classes."""
    generator = np.random.default_rng(seed)
    return {
        user: (generator.random((count, 784)).round(3), generator.integers(0, 62, count))
        for user, count in users.items()
    }


TRAIN = characters({"f0000_14": 5, "f0001_41": 3, "f0002_01": 7, "f0003_17": 4, "f0004_22": 6})
TEST = characters(dict.fromkeys(TRAIN, 2), seed=1)


def leaf(folder, train=TRAIN, test=TEST):
    """Write the folders of LEAF, two writers in a file."""
    for part, written in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True)
        users = list(written)
        for first in range(0, len(users), 2):
            own = users[first : first + 2]
            content = {
                "users": own,
                "num_samples": [len(written[user][1]) for user in own],
                "user_data": {user: {"x": written[user][0].tolist(), "y": written[user][1].tolist()} for user in own},
            }
            (folder / part / f"all_data_{first // 2}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))
    return folder


def test_characters_are_read_writer_by_writer(tmp_path):
    data = femnist.load(leaf(tmp_path))
    assert data.source == f"FEMNIST, 25 + 10 images of 5 writers from {tmp_path}"
    assert np.array_equal(data.owners, np.repeat(range(5), [5, 3, 7, 4, 6]))
    pixels = np.concatenate([pixels for pixels, _ in TRAIN.values()])
    assert np.allclose(data.train_inputs, (0.9637 - pixels) / 0.1591, atol=1e-5)
    assert np.array_equal(data.train_labels, np.concatenate([labels for _, labels in TRAIN.values()]))
    few = femnist.load(tmp_path, writers=2)
    assert len(few.train_labels) == 8
    assert np.array_equal(few.test_labels, np.concatenate([TEST[user][1] for user in ("f0000_14", "f0001_41")]))


def test_writers_kept_for_the_test_alone_are_tested_on(tmp_path):
    data = femnist.load(leaf(tmp_path, test=characters({"f9000_00": 4, "f9001_00": 4})), writers=1)
    assert (len(data.train_labels), len(data.test_labels)) == (5, 4)


def hdf5(folder):
    h5py = pytest.importorskip("h5py")
    folder.mkdir(exist_ok=True)
    for part, written in (("train", TRAIN), ("test", TEST)):
        with h5py.File(folder / femnist.HDF5[part], "w") as file:
            for user, (pixels, labels) in written.items():
                file[f"examples/{user}/pixels"] = pixels.reshape(-1, 28, 28).astype(np.float32)
                file[f"examples/{user}/label"] = labels.astype(np.int32)
    return folder


def test_both_published_forms_give_the_same_data(tmp_path):
    ours = femnist.load(hdf5(tmp_path / "hdf5"), writers=3)
    theirs = femnist.load(leaf(tmp_path / "leaf"), writers=3)
    for part in ("train_inputs", "train_labels", "test_inputs", "test_labels", "owners"):
        assert np.array_equal(getattr(ours, part), getattr(theirs, part))


def test_the_archive_is_verified_and_unpacked_into_the_cache(tmp_path, monkeypatch):
    made = hdf5(tmp_path / "made")
    path = tmp_path / "packed" / femnist.ARCHIVE.name
    path.parent.mkdir()
    archive(path, {name: (made / name).read_bytes() for name in femnist.HDF5.values()}, "bz2")
    with pytest.raises(InvalidData, match=f"it must be {femnist.ARCHIVE.sha256}"):
        femnist.load(path.parent)
    assert not (cache_directory("femnist") / femnist.HDF5["train"]).exists()
    published_as(monkeypatch, femnist, path)
    data = femnist.load(path.parent)
    assert data.source.endswith(str(cache_directory("femnist")))
    assert np.array_equal(data.train_inputs, femnist.load(made).train_inputs)
    assert femnist.load().source == data.source  # from the cache


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.pop("user_data"), r"none of LEAF's files, or is damaged: KeyError: 'user_data'"),
        (lambda content: content["user_data"]["f0000_14"]["y"].append(3), r"writer f0000_14: .* and 6 classes"),
        (lambda content: content["user_data"]["f0000_14"]["y"].__setitem__(0, 62), "from 0 to 61"),
        (lambda content: content["user_data"]["f0000_14"]["x"][0].__setitem__(0, 255), r"from 0 \(ink\) to 1"),
        (lambda content: content["user_data"]["f0000_14"]["x"][0].pop(), "writer f0000_14: no pixels and classes"),
    ],
)
def test_damaged_characters_are_refused_by_file_and_writer(tmp_path, change, reason):
    path = sorted((leaf(tmp_path) / "train").iterdir())[0]
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidData, match=reason) as refusal:
        femnist.load(tmp_path)
    assert str(path) in str(refusal.value)


def test_each_client_holds_whole_writers(tmp_path):
    data = femnist.load(leaf(tmp_path))
    for clients in (5, 2):
        shares = partition.shares_of(data, "natural", clients, seed=3)
        held = [set(data.owners[share].tolist()) for share in shares]
        assert sum(map(len, held)) == len(set.union(*held)) == 5  # no writer is split
        assert max(map(len, held)) - min(map(len, held)) <= 1
    with pytest.raises(InvalidData, match="clients = 6, and the samples have 5 owners"):
        partition.shares_of(data, "natural", 6, seed=3)
    with pytest.raises(InvalidData, match=r"partition = 'natural' deals samples by their owners, and these have none"):
        partition.split("natural", [0, 1], 2, seed=0)
    with pytest.raises(UnknownName, match="unknown option 'owners'"):
        partition.get_partition("natural(owners=[0])")


def test_validation_leaves_each_writer_something_to_train_on(tmp_path):
    rest, (_, held) = femnist.load(leaf(tmp_path)).split_validation(0.4, seed=0)
    assert np.unique(rest.owners).tolist() == [0, 1, 2, 3, 4]
    assert len(rest.owners) == len(rest.train_labels) == 25 - len(held)


def test_a_federation_of_writers(tmp_path):
    config = cyber0.RunConfig(task="femnist(writers=5)", data=str(leaf(tmp_path)), partition="natural", **SMALL)
    result = cyber0.run(config, tmp_path / "run")
    assert sum(p.numel() for p in result.model.parameters()) == 52094
    assert isinstance(result.model(torch.zeros(1, 784)), torch.Tensor)
    assert cyber0.run(config).fingerprint == result.fingerprint
