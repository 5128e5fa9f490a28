"""Checkpoints of a stranger: nothing that they hold is run, nothing outside their folder is read."""

import json
import pickle
import shutil
import struct
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from diagnose.kernels.fast_load import fast_load


class Gadget:
    """Writes a marker file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "what the checkpoint holds was run"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    import torch.distributed.checkpoint as dcp

    folder = tmp_path_factory.mktemp("original") / "dcp"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(build_seeded().state_dict() | {"step": 3}, checkpoint_id=folder)
    return folder


@pytest.fixture
def saved(original, tmp_path):
    return shutil.copytree(original, tmp_path / "dcp")


def build():
    return nn.Linear(3, 2)


def build_seeded():
    torch.manual_seed(0)
    return build()


def described(folder, change):
    """Change the checkpoint's own description as its author could."""
    file = folder / ".metadata"
    content = pickle.loads(file.read_bytes())
    change(content)
    file.write_bytes(pickle.dumps(content))


def places(**fields):
    def change(content):
        for info in content.storage_data.values():
            info.__dict__.update(fields)

    return change


def test_what_torch_saves_is_read_in_every_protocol(saved):
    expected = build_seeded()
    content = pickle.loads((saved / ".metadata").read_bytes())
    for protocol in (2, 3, 4, 5):
        (saved / ".metadata").write_bytes(pickle.dumps(content, protocol))
        assert torch.equal(fast_load(build, saved)[0].weight, expected.weight)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_call_in_the_description_is_refused_and_named(saved, marker, protocol):
    (saved / ".metadata").write_bytes(pickle.dumps(Gadget(marker), protocol))
    with pytest.raises(ValueError, match=r"trusted=True|no description of a distributed checkpoint"):
        fast_load(build, saved)
    described_by = pickle.dumps(Gadget(marker), 4)
    (saved / ".metadata").write_bytes(described_by)
    with pytest.raises(ValueError, match=r"holds (builtins.getattr|pathlib\S*Path\.touch|\S+), which .* trusted=True"):
        fast_load(build, saved)


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # text instructions
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x04\x8c\x05torch\x8c\x04Size\x93N}\x86b.",  # state for a class itself
        b"\x80\x04\x8c\x05torch\x8c\x04Size.compile\x93.",  # an attribute of an allowed name
        b"\x80\x04K\x01K\x01\x85R.",  # a call of a number
        b"\x80\x02]r\xff\xff\xff\xff.",  # a memo of 4 G entries
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0f.",  # a bytearray of an exabyte
        b"\x80\x04" + b"(" * 1000 + b"t.",
        b"\x80\x04}))u.",
        b"",
        b"\x80\x04N.",
    ],
)
def test_pickles_that_are_no_description(saved, data):
    (saved / ".metadata").write_bytes(data)
    with pytest.raises(ValueError, match=r"dcp/\.metadata (is not a description|holds)"):
        fast_load(build, saved)


def test_a_tensor_given_as_a_pickle_is_refused(saved, marker):
    """Torch reads such entries with pickle, whatever the description was read with."""
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    torch.save(Gadget(marker), saved / "evil")
    size = (saved / "evil").stat().st_size

    def change(content):
        content.state_dict_metadata["weight"] = BytesStorageMetadata()
        for index, info in list(content.storage_data.items()):
            if index.fqn == "weight":
                del content.storage_data[index]
                info.__dict__.update(relative_path="evil", offset=0, length=size)
                content.storage_data[type(index)("weight")] = info

    described(saved, change)
    with pytest.raises(ValueError, match="holds weight as a pickled object, which could run code"):
        fast_load(build, saved)


def test_a_pickle_in_the_place_of_a_tensor_is_refused(saved, marker):
    torch.save(Gadget(marker), saved / "evil")
    described(saved, places(relative_path="evil", offset=0, length=(saved / "evil").stat().st_size))
    with pytest.raises(ValueError, match="does not fit the model"):
        fast_load(build, saved)


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "link", "sub/../../outside"])
def test_places_outside_the_folder_are_refused(saved, path):
    (saved.parent / "outside").write_bytes((saved / "__0_0.distcp").read_bytes())
    (saved / "link").symlink_to(saved.parent / "outside")
    described(saved, places(relative_path=path))
    with pytest.raises(ValueError, match=r"names '.*', which is outside of .*dcp; .*trusted=True"):
        fast_load(build, saved)


def test_files_of_a_hubs_download_are_links_and_are_read(saved):
    blobs = saved.parent / "hub" / "blobs"
    folder = saved.parent / "hub" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    for number, file in enumerate(sorted(saved.iterdir())):
        (folder / file.name).symlink_to(file.rename(blobs / str(number)))
    assert torch.equal(fast_load(build, folder)[0].weight, build_seeded().weight)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 1 << 62}, "places a tensor at bytes"),
        ({"offset": 1 << 40}, "places a tensor at bytes"),
        ({"offset": -1}, "is not a description"),
        ({"length": 1 << 70}, "is not a description"),
        ({"length": "8"}, "is not a description"),
        ({"relative_path": "none"}, "there is no such file"),
        ({"relative_path": "."}, "there is no such file"),
        ({"relative_path": "a\0b"}, "is not a description"),
        ({"transform_descriptors": ["zstd"]}, "holds compressed tensors"),
    ],
)
def test_places_that_a_file_does_not_have(saved, fields, message):
    described(saved, places(**fields))
    with pytest.raises(ValueError, match=message):
        fast_load(build, saved)


def test_a_name_that_is_no_text_is_refused(saved):
    """A tuple of tuples that share their elements takes exponential time to hash."""

    def change(content):
        index, info = next(iter(content.storage_data.items()))
        content.storage_data[type(index)(("weight",))] = info

    described(saved, change)
    with pytest.raises(ValueError, match="is not a description"):
        fast_load(build, saved)


def test_trust_is_given_by_name(saved):
    described(saved, lambda content: content.state_dict_metadata.update(step=Trusted()))
    with pytest.raises(ValueError, match=r"holds \S*Trusted, which describes no checkpoint and could run code"):
        fast_load(build, saved)
    assert torch.equal(fast_load(build, saved, trusted=True)[0].weight, build_seeded().weight)


class Trusted:
    pass


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_in_a_torch_file_is_not_run(tmp_path, marker, zipped, mapped):
    state = {"weight": torch.ones(2, 3), "bias": Gadget(marker)}
    torch.save(state, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"holds pickled objects|not a checkpoint that torch can read"):
        fast_load(build, tmp_path / "m.pt", mapped=mapped)


def test_a_bare_pickle_and_a_script_archive_are_not_run(tmp_path, marker):
    (tmp_path / "m.pt").write_bytes(pickle.dumps(Gadget(marker)))
    with pytest.raises(ValueError, match="not a checkpoint that torch can read"):
        fast_load(build, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/constants.pkl", pickle.dumps(Gadget(marker)))
        archive.writestr("m/data.pkl", pickle.dumps(Gadget(marker)))
        archive.writestr("m/version", "3")
    with pytest.raises(ValueError, match="not a checkpoint that torch can read"):
        fast_load(build, tmp_path / "m.pt")


def safetensors(header, length=None):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        safetensors({}, length=1 << 62),
        safetensors({"weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}),
        safetensors({"weight": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 0]}}),
        safetensors({"weight": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}) + bytes(4),
        safetensors({"weight": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}) + bytes(4),
    ],
)
def test_bombs_in_a_safetensors_header(tmp_path, data):
    pytest.importorskip("safetensors", reason="the safetensors package is not installed")
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        fast_load(build, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {"a": 3}}', '{"weight_map": []}'])
def test_an_index_that_is_none(tmp_path, text):
    (tmp_path / "pytorch_model.bin.index.json").write_text(text)
    with pytest.raises(ValueError, match="is not an index of a checkpoint"):
        fast_load(build, tmp_path)


@pytest.mark.parametrize("name", ["../m.pt", "/m.pt"])
def test_an_index_names_files_beside_it(tmp_path, name):
    torch.save(build().state_dict(), tmp_path / "m.pt")
    (tmp_path / "folder").mkdir()
    named = name if name.startswith("..") else str(tmp_path / "m.pt")
    (tmp_path / "folder" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"weight": named}}))
    with pytest.raises(ValueError, match=r"names '.*m.pt', which is outside of .*folder"):
        fast_load(build, tmp_path / "folder")
