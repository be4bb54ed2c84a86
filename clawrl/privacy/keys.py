"""The keys of a deployment's users, in a folder of their own.

    keyring.json        which key store this is
    master.key          64 hex digits, mode 0600; not there where the master key comes from elsewhere
    owners/<name>.key   one user's data key, sealed with the master key; the name says nothing without it
    history             a mark for each key that was made or deleted, oldest first; a ledger remembers the last it saw

A key is on disk, synced, before it is handed out, so that no row can be sealed with a key that a crash takes away. To
forget a user the file is overwritten, synced and removed: what was sealed with it cannot be read any more, wherever
copies of that are. What a copy of *this folder* still holds is another matter, which is why it lies apart.

One process owns the folder: the one that holds the state folder. Threads may share a `KeyStore`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from clawrl.durable import sync_path
from clawrl.ledger.codec import DAMAGED_KEY
from clawrl.ledger.codec import Altered as Altered
from clawrl.ledger.codec import KeyGone as KeyGone

log = logging.getLogger(__name__)
_ID_BYTES, _KEY_BYTES, _NONCE_BYTES, _MARK_BYTES = 8, 32, 12, 8


class KeyStoreError(RuntimeError):
    """The folder of the keys cannot be used; the text names the remedy."""


class KeyDamaged(Altered, KeyStoreError):
    """One user's key cannot be opened: nothing of theirs is read or recorded until its file is back."""

    said = DAMAGED_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKey:
    """``id`` tells a user's key from an earlier one of theirs."""

    id: bytes
    secret: bytes

    def derived(self, purpose: str) -> bytes:
        """A key for one purpose; from it neither this key nor that of another purpose can be had."""
        return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=self.id, info=f"clawrl {purpose}".encode()).derive(
            self.secret
        )


class Keys(Protocol):
    """Where a vault gets the key of an owner for its purpose: the id and 32 bytes."""

    def obtain(self, owner: str) -> tuple[bytes, bytes]:
        """Made if there is none."""

    def find(self, owner: str, key_id: bytes) -> bytes | None: ...


class KeyStore:
    """``master`` is the wrapping key if it is not to be a file in the folder."""

    def __init__(self, folder: Path, master: bytes | None = None) -> None:
        self.folder = folder
        self._owners = folder / "owners"
        self._lock = threading.RLock()
        self._keys: dict[str, DataKey] = {}
        self._newest: str | None = None
        self._told_of: set[Path] = set()
        self.generation = 0
        for path in (folder, self._owners):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for half_gone in self._owners.glob("*.gone"):
            self._overwrite(half_gone)
        self.keyring = self._keyring(given=master is not None)
        self._master = master or self._master_file()
        self._check_master()
        self._names = DataKey(id=b"names", secret=self._master).derived("names of owners")
        self._wrapping = AESGCM(DataKey(id=b"wrap", secret=self._master).derived("wrapping"))

    def key(self, owner: str) -> DataKey:
        """The owner's key, made and on disk if there was none."""
        with self._lock:
            if (known := self._keys.get(owner) or self._read(owner)) is None:
                known = DataKey(id=secrets.token_bytes(_ID_BYTES), secret=secrets.token_bytes(_KEY_BYTES))
                self._changes()
                self._write(owner, known)
            self._keys[owner] = known
            return known

    def existing(self, owner: str) -> DataKey | None:
        with self._lock:
            return self._keys.get(owner) or self._read(owner)

    def owners(self) -> list[str]:
        """Everybody who has a key that can be opened."""
        with self._lock:
            found = []
            for path in self._owners.glob("*.key"):
                with contextlib.suppress(FileNotFoundError, KeyDamaged):
                    found.append(self._unwrapped(path)[0])
            return sorted(found)

    def of_all(self, owners: Iterable[str]) -> tuple[int, dict[str, DataKey]]:
        """The keys of these, made where there are none, and of everybody else who has one, at one moment.

        With the ``generation`` of that moment. Whose key is damaged is left out.
        """
        with self._lock:
            keys = {}
            for owner in {*owners, *self.owners()}:
                with contextlib.suppress(KeyDamaged):
                    keys[owner] = self.key(owner)
            return self.generation, keys

    def shred(self, owner: str) -> bool:
        """The owner's key is gone for good when this returns; false if there was none."""
        with self._lock:
            self._keys.pop(owner, None)
            path = self._path(owner)
            if not path.exists():
                return False
            self._changes()
            # Aside first: half overwritten under its name it would be a key that nobody can open.
            aside = path.with_suffix(".gone")
            os.replace(path, aside)
            sync_path(self._owners)
            self._overwrite(aside)
            return True

    def _overwrite(self, path: Path) -> None:
        # Whoever opens the keys meanwhile, to read, does the same.
        with contextlib.suppress(FileNotFoundError):
            with path.open("r+b") as file:
                file.write(secrets.token_bytes(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
        sync_path(self._owners)

    def newest_mark(self) -> str:
        """Of the newest key that was made or deleted; empty where none was yet."""
        with self._lock:
            if self._newest is None:
                self._newest = next(reversed(self._marks()), "")
            return self._newest

    def knows(self, mark: str) -> bool:
        """Whether these keys are as new as the mark: false where an older copy of the folder was put back."""
        return not mark or mark in self._marks()

    def _marks(self) -> list[str]:
        try:
            lines = (self.folder / "history").read_text("ascii", "replace").splitlines()
        except FileNotFoundError:
            return []
        return [line for line in lines if len(line) == 2 * _MARK_BYTES]

    def _changes(self) -> None:
        """On disk before the change is: one that a crash takes away leaves a mark too many, which is nothing."""
        path, mark = self.folder / "history", secrets.token_hex(_MARK_BYTES)
        new = not path.exists()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "ab") as file:
            # A line of its own also where a crash, or a full disk, cut off the one before.
            file.write(f"\n{mark}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_path(self.folder)
        self._newest = mark
        self.generation += 1

    def pseudonym(self, *names: str) -> str:
        """What stands for names where they need not be read, only compared."""
        return hmac.digest(self._names, "\x00".join(names).encode("utf-8", "surrogatepass"), "sha256").hex()

    def _path(self, owner: str) -> Path:
        return self._owners / f"{self.pseudonym('owner', owner)[:32]}.key"

    def _read(self, owner: str) -> DataKey | None:
        try:
            named, key = self._unwrapped(self._path(owner))
        except FileNotFoundError:
            return None
        if named != owner:
            raise self._damaged(self._path(owner), "it is the key of somebody else")
        return key

    def _damaged(self, path: Path, why: str) -> KeyDamaged:
        """Told once: it is met with every request of its user."""
        error = KeyDamaged(
            f"the key {path} cannot be opened: {why}; put a copy of this file back. Nothing of its user is read or "
            "recorded until then; what they say waits in the journals"
        )
        if path not in self._told_of:
            self._told_of.add(path)
            log.error("%s", error)
        return error

    def _unwrapped(self, path: Path) -> tuple[str, DataKey]:
        """Raises `FileNotFoundError`, or `KeyDamaged`: the master key itself was checked at the start."""
        try:
            blob = path.read_bytes()
            plain = self._wrapping.decrypt(blob[:_NONCE_BYTES], blob[_NONCE_BYTES:], b"clawrl key")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._damaged(path, error.strerror or type(error).__name__) from error
        except (InvalidTag, ValueError) as error:
            raise self._damaged(path, "it is damaged, or not of this key store") from error
        key = DataKey(id=plain[:_ID_BYTES], secret=plain[_ID_BYTES : _ID_BYTES + _KEY_BYTES])
        return plain[_ID_BYTES + _KEY_BYTES :].decode("utf-8", "surrogatepass"), key

    def _write(self, owner: str, key: DataKey) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        plain = key.id + key.secret + owner.encode("utf-8", "surrogatepass")
        _write_new(self._path(owner), nonce + self._wrapping.encrypt(nonce, plain, b"clawrl key"))

    def _keyring(self, *, given: bool) -> str:
        path = self.folder / "keyring.json"
        if not path.exists():
            if any(self._owners.iterdir()) or (self.folder / "master.check").exists():
                raise KeyStoreError(f"{path} is missing, but there are keys beside it; put it back")
            _write_new(path, json.dumps({"keyring": secrets.token_hex(16), "master": given}).encode())
        try:
            found = json.loads(path.read_bytes())
            keyring, elsewhere = str(found["keyring"]), found["master"]
        except (ValueError, LookupError, TypeError) as error:
            raise KeyStoreError(f"{path} is damaged ({error}); put a copy of it back") from error
        if elsewhere != given:
            wants = "another place, by privacy.master_key" if elsewhere else "the file master.key in it"
            raise KeyStoreError(f"the keys in {self.folder} are sealed with a master key from {wants}; set it so again")
        return keyring

    def _master_file(self) -> bytes:
        path = self.folder / "master.key"
        try:
            text = path.read_text()
        except FileNotFoundError:
            if any(self._owners.iterdir()) or (self.folder / "master.check").exists():
                raise KeyStoreError(f"{path} is missing, but there are keys that it opens; put it back") from None
            text = secrets.token_hex(_KEY_BYTES)
            _write_new(path, text.encode())
        except UnicodeDecodeError:
            text = ""
        try:
            key = bytes.fromhex(text.strip())
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise KeyStoreError(f"{path} does not hold 64 hex digits; put the right one back")
        return key

    def _check_master(self) -> None:
        """A wrong master key is known at the start, and not when somebody's turn is read."""
        path = self.folder / "master.check"
        mark = hmac.digest(self._master, b"clawrl master key", "sha256").hex().encode()
        if not path.exists():
            _write_new(path, mark)
        elif not hmac.compare_digest(path.read_bytes(), mark):
            raise KeyStoreError(f"the keys in {self.folder} were sealed with another master key; bring that one back")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKeys:
    """The keys of a `KeyStore` for one purpose."""

    store: KeyStore
    purpose: str
    _derived: dict[tuple[str, bytes], bytes]

    @classmethod
    def of(cls, store: KeyStore, purpose: str) -> StoredKeys:
        return cls(store=store, purpose=purpose, _derived={})

    def obtain(self, owner: str) -> tuple[bytes, bytes]:
        key = self.store.key(owner)
        return key.id, self._of(owner, key)

    def find(self, owner: str, key_id: bytes) -> bytes | None:
        key = self.store.existing(owner)
        return None if key is None or key.id != key_id else self._of(owner, key)

    def _of(self, owner: str, key: DataKey) -> bytes:
        place = owner, key.id
        if (known := self._derived.get(place)) is None:
            # At most one of an owner is kept: that of a forgotten user goes when the next one is made.
            for other in [other for other in self._derived if other[0] == owner]:
                del self._derived[other]
            known = self._derived[place] = key.derived(self.purpose)
        return known


class LentKeys:
    """Keys for one purpose that somebody else stores. An owner without one shares that of `EVERYBODY`."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[bytes, bytes]] = {}
        self._all: dict[bytes, bytes] = {}
        # Since when a key is not lent any more.
        self._earlier: dict[bytes, float] = {}

    def lend(self, keys: dict[str, tuple[bytes, bytes]]) -> None:
        """Earlier ones are kept for what was sealed with them, until `drop_earlier`."""
        self._current = dict(keys)
        self._all |= dict(keys.values())
        lent = {key_id for key_id, _ in keys.values()}
        now = time.monotonic()
        self._earlier = {key_id: self._earlier.get(key_id, now) for key_id in self._all if key_id not in lent}

    def drop_earlier(self, unused_s: float) -> bool:
        """Those that were not lent for so long are gone from memory; whether there were any."""
        since = time.monotonic() - unused_s
        gone = [key_id for key_id, at in self._earlier.items() if at <= since]
        for key_id in gone:
            del self._all[key_id], self._earlier[key_id]
        return bool(gone)

    def obtain(self, owner: str) -> tuple[bytes, bytes]:
        found = self._current.get(owner) or self._current.get(EVERYBODY)
        if found is None:
            raise KeyGone("no key was lent for this owner")
        return found

    def find(self, owner: str, key_id: bytes) -> bytes | None:
        return self._all.get(key_id)


JOURNAL = "journal"
"""The purpose of the keys that are lent."""

EVERYBODY = "*"
"""Whose key seals in a journal what belongs to somebody of whom nobody knew when the keys were lent."""


def _write_new(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.new")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_path(path.parent)
