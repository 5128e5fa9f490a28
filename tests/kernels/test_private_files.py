"""What code could be loaded from belongs to this user alone, from the folder down to the file that was opened."""

import os
import stat

import pytest

from diagnose.kernels._cache_files import MARK, load, pack, store
from diagnose.kernels._private_files import make_private, open_private
from diagnose.kernels.shared_cache import SharedCache

OTHER = 12345


@pytest.fixture
def folder(tmp_path):
    make_private(tmp_path / "cache")
    return tmp_path / "cache"


def mode(path):
    return oct(path.stat().st_mode & 0o777)


def give_away(path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def test_everything_is_made_for_one_user_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        cache = SharedCache(1 << 20, path=tmp_path / "made" / "cache")
        cache.stage(len)("abc")
    finally:
        os.umask(before)
    assert {mode(path) for path in cache.folder.iterdir()} == {"0o600"}
    assert (mode(cache.folder), mode(cache.folder.parent)) == ("0o700", "0o700")


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.raises(PermissionError, match="belongs to another user"):
        SharedCache(1, path=folder)


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_is_refused(folder, bits):
    folder.chmod(bits)
    with pytest.raises(PermissionError, match=r"Other users can write .*cache \(mode"):
        SharedCache(1, path=folder)


def test_a_folder_above_that_others_can_write_needs_the_sticky_bit(tmp_path):
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(PermissionError, match=r"above the cache folder .* could replace the cache"):
        SharedCache(1, path=above / "cache")
    above.chmod(0o1777)
    SharedCache(1, path=above / "cache")


def test_a_link_to_a_folder_is_refused_and_a_link_above_is_followed(tmp_path, folder):
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match="is a link"):
        SharedCache(1, path=tmp_path / "link")
    (tmp_path / "above").symlink_to(tmp_path)
    SharedCache(1, path=tmp_path / "above" / "cache")


def test_squatted_names_are_refused(tmp_path, folder):
    (folder / "ledger").symlink_to(tmp_path / "victim")
    with pytest.raises(PermissionError, match="is a link"):
        SharedCache(1, path=folder).counts()
    assert not (tmp_path / "victim").exists()
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="in the place of a cache"):
        SharedCache(1, path=tmp_path / "file")


def test_what_another_user_owns_is_refused_at_every_level(tmp_path, folder):
    store(folder / "value", pack(3))
    assert load(folder / "value") == (3,)
    give_away(folder / "value")
    with pytest.raises(PermissionError, match=f"belongs to another user \\(uid {OTHER}\\)"):
        load(folder / "value")
    (tmp_path / "link").symlink_to(tmp_path)
    give_away(tmp_path / "link")
    with pytest.raises(PermissionError, match="above the cache folder"):
        make_private(tmp_path / "link" / "cache")
    give_away(folder)
    with pytest.raises(PermissionError, match="belongs to another user"):
        SharedCache(1, path=folder)


def test_files_that_others_can_write_links_and_pipes_are_refused(folder):
    store(folder / "value", pack(3))
    (folder / "value").chmod(0o620)
    with pytest.raises(PermissionError, match="Other users can write"):
        load(folder / "value")
    (folder / "value").chmod(0o600)
    (folder / "link").symlink_to(folder / "value")
    with pytest.raises(PermissionError, match="is a link"):
        load(folder / "link")
    os.mkfifo(folder / "pipe", 0o600)
    with pytest.raises(PermissionError, match="not a regular file"):
        load(folder / "pipe")


def test_the_file_that_is_checked_is_the_one_that_is_open(folder, monkeypatch):
    """Another file that takes the name after the opening changes nothing: its descriptor is looked at."""
    store(folder / "value", pack(3))
    true = os.fstat

    def as_others(descriptor):
        found = list(true(descriptor))
        found[stat.ST_UID] = OTHER
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", as_others)
    with pytest.raises(PermissionError, match="belongs to another user"):
        open_private(folder / "value")


def test_files_that_are_not_whole_are_dropped_and_made_again(folder):
    whole = b"".join(pack({"a": bytes(100), "b": 2}))
    flipped = bytearray(whole)
    flipped[60] ^= 1
    for data in (b"", whole[:20], whole[:-1], whole + b"x", b"x" * 200, bytes(flipped), MARK + b"\xff" * 60):
        (folder / "value").write_bytes(data)
        (folder / "value").chmod(0o600)
        assert load(folder / "value") is None
        assert not (folder / "value").exists()
    store(folder / "value", [whole])
    assert load(folder / "value") == ({"a": bytes(100), "b": 2},)


def test_a_ledger_that_was_cut_off_begins_anew(folder):
    (folder / "ledger").write_bytes(b"cut")
    (folder / "ledger").chmod(0o600)
    assert SharedCache(1, path=folder).counts().hits == 0


def test_a_worker_takes_no_other_folder_for_the_cache(folder):
    import pickle

    sent = pickle.dumps(SharedCache(1, path=folder))
    assert pickle.loads(sent).folder == folder
    folder.rename(folder.with_name("moved"))
    folder.mkdir(0o700)
    with pytest.raises(PermissionError, match="has been replaced since"):
        pickle.loads(sent)
