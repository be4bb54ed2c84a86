"""Which conversation a request belongs to, and what it proves about the answers before it. Pure functions.

`names` says which session a client means, `kinds` whether a request may train, `evidence` what people and tools really
said, `canonical` which messages are the same, and `arrival` puts it together for the ledger.
"""

from clawrl.serving.sessions.arrival import affinity_key, make_arrival
from clawrl.serving.sessions.canonical import answer_hash, reply_hash
from clawrl.serving.sessions.facts import SessionFacts, session_facts
from clawrl.serving.sessions.names import MAX_SESSION_CHARS, named_session

__all__ = [
    "MAX_SESSION_CHARS",
    "SessionFacts",
    "affinity_key",
    "answer_hash",
    "make_arrival",
    "named_session",
    "reply_hash",
    "session_facts",
]
