"""What keeps a conversation private on disk: rules that redact, keys that seal, and who may be forgotten.

Knows the messages and hands the ledger its `Vault` and `Screen`; where text lies and how rows go is the ledger's own
matter.
"""
