"""The key store: a key is there before it is used, gone when it is deleted, and of no use to who has only the folder
of the ledger."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from clawrl.actors.journal_keys import JournalKeys
from clawrl.privacy import keys as module
from clawrl.privacy.config import PrivacyConfig
from clawrl.privacy.keys import EVERYBODY, KeyDamaged, KeyGone, KeyStore, KeyStoreError, LentKeys, StoredKeys
from clawrl.privacy.vault import LedgerVault, SealingVault


def test_a_key_is_the_same_after_a_restart_and_another_for_everybody_else(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    ann, bob = store.key("ann"), store.key("bob")
    assert ann != bob and KeyStore(tmp_path).key("ann") == ann
    assert KeyStore(tmp_path).owners() == ["ann", "bob"]


def test_nobody_else_can_read_the_folder_and_names_are_not_in_it(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys")
    store.key("ann.archer")
    for path in [tmp_path / "keys", *(tmp_path / "keys").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert "ann" not in path.name
        if path.is_file():
            assert b"ann.archer" not in path.read_bytes()
            assert store.key("ann.archer").secret not in path.read_bytes()


def test_a_key_is_synced_before_it_is_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = KeyStore(tmp_path)
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("sync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("named"), replace(a, b)))
    store.key("ann")
    assert events.pop(0) == events.pop(0) == "sync", "that there is a change, in a file that is new"
    assert events == ["sync", "named", "sync"], "the content, its name, and the folder that holds the name"
    store.key("ann")
    assert len(events) == 3


def test_a_crash_while_a_key_is_written_leaves_none_and_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise OSError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", crash)
        with pytest.raises(OSError, match="power"):
            KeyStore(tmp_path / "new")
    store = KeyStore(tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", crash)
        with pytest.raises(OSError, match="power"):
            store.key("ann")
    assert store.existing("ann") is None and KeyStore(tmp_path / "new").owners() == []
    assert KeyStore(tmp_path / "new").key("ann") == KeyStore(tmp_path / "new").key("ann")


def test_a_deleted_key_is_overwritten_and_gone_in_memory_as_well(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    vault = LedgerVault(store)
    sealed, digest = vault.seal("ann", b"hello"), vault.digest("ann", "hash")
    (path,) = (tmp_path / "owners").iterdir()
    before = path.read_bytes()
    beside = tmp_path / "second name"
    os.link(path, beside)
    assert store.shred("ann") and not store.shred("ann")
    assert not path.exists()
    assert len(beside.read_bytes()) == len(before) and beside.read_bytes() != before
    with pytest.raises(KeyGone):
        vault.unseal("ann", sealed)
    assert vault.digest("ann", "hash") != digest, "who comes back has another key"
    with pytest.raises(KeyGone):
        vault.unseal("ann", sealed)


@pytest.mark.parametrize("where", ["before it is overwritten", "before its name goes"])
def test_a_key_that_a_crash_left_half_deleted_is_gone_after_the_restart_and_in_nobodys_way(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, beside = KeyStore(tmp_path / "keys"), tmp_path / "second name"
    store.key("ann")
    (path,) = (tmp_path / "keys" / "owners").iterdir()
    os.link(path, beside)
    before, bob = beside.read_bytes(), store.key("bob")

    def crash(*_: object) -> None:
        raise OSError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr("os.fstat" if where == "before it is overwritten" else "pathlib.Path.unlink", crash)
        with pytest.raises(OSError, match="power"):
            store.shred("ann")
    again = KeyStore(tmp_path / "keys")
    assert again.owners() == ["bob"] and again.existing("ann") is None
    assert len(list((tmp_path / "keys" / "owners").iterdir())) == 1
    assert again.of_all(["bob"])[1] == {"bob": bob} and again.knows(store.newest_mark())
    assert len(beside.read_bytes()) == len(before) and beside.read_bytes() != before
    again.key("ann")
    assert KeyStore(tmp_path / "keys").owners() == ["ann", "bob"]


def test_what_is_sealed_is_opened_by_its_owner_alone_and_only_unchanged(tmp_path: Path) -> None:
    vault = LedgerVault(KeyStore(tmp_path))
    sealed = vault.seal("ann", b"hello")
    vault.seal("bob", b"")
    assert vault.unseal("ann", sealed) == b"hello" and b"hello" not in sealed
    assert vault.seal("ann", b"hello") != sealed, "equal texts look different"
    with pytest.raises(KeyGone):
        vault.unseal("bob", sealed)
    with pytest.raises(KeyGone):
        vault.unseal("ann", sealed[:-1] + bytes([sealed[-1] ^ 1]))
    assert vault.unseal("ann", b'["plain"]') == b'["plain"]', "what was stored before there were keys"


def test_the_master_key_can_come_from_elsewhere(tmp_path: Path) -> None:
    environ = {"MASTER": "ab" * 32}
    (tmp_path / "file").write_text("cd" * 32 + "\n")
    from_env = PrivacyConfig(master_key="env:MASTER").master(environ)
    from_file = PrivacyConfig(master_key=f"file:{tmp_path / 'file'}").master({})
    assert (from_env, from_file) == (b"\xab" * 32, b"\xcd" * 32)
    store = KeyStore(tmp_path / "keys", from_env)
    ann = store.key("ann")
    assert not (tmp_path / "keys" / "master.key").exists()
    assert KeyStore(tmp_path / "keys", from_env).key("ann") == ann
    with pytest.raises(KeyStoreError, match="another master key"):
        KeyStore(tmp_path / "keys", from_file)
    with pytest.raises(KeyStoreError, match=r"privacy\.master_key"):
        KeyStore(tmp_path / "keys")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("ab" * 32, "must be env:NAME or file:PATH"),
        ("env:NOWHERE", "does not hold 64 hex digits"),
        ("env:SHORT", "does not hold 64 hex digits"),
        ("file:/no/such/file", "cannot be read"),
    ],
)
def test_a_master_key_that_cannot_be_had_is_a_problem_of_the_deployment(given: str, problem: str) -> None:
    found = PrivacyConfig(master_key=given).problems(Path("/state/x"), {"SHORT": "abcd"})
    assert len(found) == 1 and found[0].startswith("privacy.master_key: ") and problem in found[0]


def test_keys_lie_beside_the_state_folder_or_elsewhere_and_never_in_it() -> None:
    state = Path("/data/laptop")
    assert PrivacyConfig().keys_path(state) == Path("/data/laptop.keys")
    assert PrivacyConfig(keys_dir="/vault").keys_path(state) == Path("/vault/laptop")
    assert PrivacyConfig().problems(state, {}) == []
    (problem,) = PrivacyConfig(keys_dir="/data/laptop/keys").problems(state, {})
    assert problem.startswith("privacy.keys_dir: ") and "inside the state folder" in problem


@pytest.mark.parametrize("missing", ["master.key", "keyring.json"])
def test_a_key_store_that_lost_a_part_is_refused_rather_than_begun_anew(tmp_path: Path, missing: str) -> None:
    KeyStore(tmp_path).key("ann")
    (tmp_path / missing).unlink()
    with pytest.raises(KeyStoreError, match=f"{missing} is missing.*put it back"):
        KeyStore(tmp_path)


def test_a_file_that_is_somebody_elses_key_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    store.key("ann")
    (path,) = (tmp_path / "owners").iterdir()
    path.rename(store._path("bob"))
    with pytest.raises(KeyStoreError, match="of somebody else"):
        KeyStore(tmp_path).key("bob")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(bytes(100))


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [cut, empty, garbage, folder_instead])
def test_a_key_that_a_disk_spoiled_stops_its_user_alone_until_it_is_back(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = KeyStore(tmp_path)
    ann, bob = store.key("ann"), store.key("bob")
    path = store._path("ann")
    whole = path.read_bytes()
    harm(path)
    store = KeyStore(tmp_path)
    assert store.owners() == ["bob"]
    assert store.of_all(["ann", "cora"])[1] == {"bob": bob, "cora": store.key("cora")}
    for ask in (store.key, store.existing):
        with pytest.raises(KeyDamaged, match=f"{path} cannot be opened: .*; put a copy of this file back"):
            ask("ann")
    (line,) = [record.getMessage() for record in caplog.records]
    assert str(path) in line
    assert LedgerVault(store).has_key("ann"), "it is not gone"
    if path.is_dir():
        path.rmdir()
    path.write_bytes(whole)
    assert store.key("ann") == ann and store.owners() == ["ann", "bob", "cora"]


def test_lent_keys_seal_a_journal_that_their_owner_opens_and_open_nothing_else(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    own = StoredKeys.of(store, "journal")
    lent = LentKeys()
    lent.lend({owner: own.obtain(owner) for owner in ("ann", EVERYBODY)})
    replica, coordinator, ledger = SealingVault(lent), SealingVault(own), LedgerVault(store)
    for owner in ("ann", "somebody new"):
        sealed = replica.seal(owner, b"hello")
        assert coordinator.unseal(owner, sealed) == replica.unseal(owner, sealed) == b"hello"
    with pytest.raises(KeyGone):
        replica.unseal("ann", ledger.seal("ann", b"hello"))
    store.shred("ann")
    old = replica.seal("ann", b"before it heard of it")
    lent.lend({owner: own.obtain(owner) for owner in ("ann", EVERYBODY)})
    assert replica.unseal("ann", old) == b"before it heard of it", "what still waits can be handed in"
    with pytest.raises(KeyGone):
        coordinator.unseal("ann", old)
    assert coordinator.unseal("ann", replica.seal("ann", b"after")) == b"after"


def test_the_key_of_a_forgotten_user_leaves_a_replica_when_its_journal_needs_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = KeyStore(tmp_path)
    own = StoredKeys.of(store, "journal")
    now = [100.0]
    monkeypatch.setattr("clawrl.privacy.keys.time", SimpleNamespace(monotonic=lambda: now[0]))
    keys, journal = JournalKeys(coordinator=None), [b"a turn that waits"]  # type: ignore[arg-type]
    keys.used_by(journal)

    def lend() -> None:
        keys.lent.lend({owner: own.obtain(owner) for owner in ("ann", "bob", EVERYBODY)})

    lend()
    secret = own.obtain("ann")[1]
    old, bobs = keys.vault.seal("ann", b"hello"), keys.vault.seal("bob", b"hello")
    store.shred("ann")
    lend()
    for passed in (1.0, 1_000.0):
        now[0] += passed
        lend()
        keys.drop_unneeded()
        assert keys.vault.unseal("ann", old) == b"hello", "it waits to be handed in"
    journal.clear()
    keys.drop_unneeded()
    with pytest.raises(KeyGone):
        keys.vault.unseal("ann", old)
    assert secret not in keys.lent._all.values() and secret not in keys.vault._ciphers
    assert keys.vault.unseal("bob", bobs) == b"hello", "those that are lent stay"


def test_a_key_that_was_changed_a_moment_ago_may_still_seal_what_is_on_its_way(tmp_path: Path) -> None:
    own = StoredKeys.of(KeyStore(tmp_path), "journal")
    keys = JournalKeys(coordinator=None)  # type: ignore[arg-type]
    keys.used_by([])
    keys.lent.lend({"ann": own.obtain("ann"), EVERYBODY: own.obtain(EVERYBODY)})
    sealed = keys.vault.seal("ann", b"hello")
    keys.lent.lend({EVERYBODY: own.obtain(EVERYBODY)})
    keys.drop_unneeded()
    assert keys.vault.unseal("ann", sealed) == b"hello"


def test_the_keyring_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = {KeyStore(tmp_path / name).keyring for name in "ab"}
    assert len(names) == 2 and json.loads((tmp_path / "a" / "keyring.json").read_text())["keyring"] in names
