"""Seals blobs with AES-256-GCM under their owner's key, and hashes under it what must only be compared.

    mark (4) | key id (8) | nonce (12) | ciphertext and tag

The owner is authenticated with the blob. The mark can begin no blob that was stored unsealed, so that those of earlier
releases are read as they are. Nonces are random: a key is good for four thousand million blobs, some hundred million
turns of one user.
"""

from __future__ import annotations

import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clawrl.ledger.codec import SEALED_MARK
from clawrl.privacy.keys import EVERYBODY, Altered, KeyDamaged, KeyGone, Keys, KeyStore, StoredKeys

_ID, _NONCE = 8, 12
_HEAD = len(SEALED_MARK) + _ID


class SealingVault:
    """With ``encrypts`` false new blobs are kept as they are and sealed ones are still read."""

    def __init__(self, keys: Keys, *, encrypts: bool = True) -> None:
        self._keys = keys
        self.encrypts = encrypts
        self._ciphers: dict[bytes, AESGCM] = {}

    def seal(self, owner: str, plain: bytes) -> bytes:
        if not self.encrypts:
            return plain
        key_id, key = self._keys.obtain(owner)
        nonce = os.urandom(_NONCE)
        return b"".join((SEALED_MARK, key_id, nonce, self._cipher(key).encrypt(nonce, plain, owner.encode())))

    def unseal(self, owner: str, sealed: bytes) -> bytes:
        if not sealed.startswith(SEALED_MARK):
            return sealed
        key_id = sealed[len(SEALED_MARK) : _HEAD]
        key = self._keys.find(owner, key_id) or self._keys.find(EVERYBODY, key_id)
        if key is None:
            raise KeyGone(
                "the key that this was sealed with is gone: its user was forgotten, or privacy.keys_dir is wrong"
            )
        nonce = sealed[_HEAD : _HEAD + _NONCE]
        try:
            return self._cipher(key).decrypt(nonce, sealed[_HEAD + _NONCE :], owner.encode())
        except InvalidTag as error:
            raise Altered("what was sealed has been changed, or belongs to another user") from error

    def forget_ciphers(self) -> None:
        """They hold keys; those that are still there make new ones."""
        self._ciphers.clear()

    def _cipher(self, key: bytes) -> AESGCM:
        if (known := self._ciphers.get(key)) is None:
            if len(self._ciphers) >= 1_000:
                self._ciphers.clear()
            known = self._ciphers[key] = AESGCM(key)
        return known


class LedgerVault(SealingVault):
    """The vault of a ledger: `digest` and `pseudonym` are keyed, too."""

    def __init__(self, store: KeyStore, *, encrypts: bool = True) -> None:
        super().__init__(StoredKeys.of(store, "ledger"), encrypts=encrypts)
        self._store = store
        self._hashing = StoredKeys.of(store, "hashes")

    @property
    def keyring(self) -> str:
        return self._store.keyring

    def digest(self, owner: str, value: str) -> str:
        """Equal values of one owner have equal digests; without the key nobody can try values out."""
        key = self._hashing.obtain(owner)[1]
        return hmac.digest(key, value.encode("utf-8", "surrogatepass"), "sha256").hex()

    def pseudonym(self, *names: str) -> str:
        return self._store.pseudonym(*names)

    def has_key(self, owner: str) -> bool:
        try:
            return self._store.existing(owner) is not None
        except KeyDamaged:
            return True

    def is_current(self, owner: str, sealed: bytes) -> bool:
        if not sealed.startswith(SEALED_MARK):
            return True
        key = self._store.existing(owner)
        return key is not None and key.id == sealed[len(SEALED_MARK) : _HEAD]

    def newest_mark(self) -> str:
        return self._store.newest_mark()

    def knows(self, mark: str) -> bool:
        return self._store.knows(mark)

    def shred(self, owner: str) -> bool:
        self.forget_ciphers()
        return self._store.shred(owner)
