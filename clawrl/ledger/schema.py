"""The tables, and what may be written in them.

``turns`` is narrow and indexed by state; what is wide or private lies in ``arrivals``, ``payloads``,
``evidence``, ``judgements``, ``targets``, ``feedback`` and ``refusals`` under the same turn id. ``hints`` and
``vitals`` outlive their turn, up to a bound each. ``transitions`` is append-only. The partial indices
hold only the rows that a hot query wants, so that finished turns cost it nothing.

The CHECK constraints say in SQL what `clawrl.ledger.states.Place` says in Python.

Format 4 may hold sealed blobs and keyed hashes, which earlier releases cannot read; see `clawrl.ledger.protecting`.
"""

SCHEMA_VERSION = 4

UPGRADES = {
    3: """
    ALTER TABLE turns ADD COLUMN withheld TEXT NOT NULL DEFAULT 'nothing';
    ALTER TABLE turns ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0
    """,
}
"""What takes a ledger of an earlier format to the next one."""

TABLES = """
CREATE TABLE arrivals (
    turn_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    implicit INTEGER NOT NULL,
    parent TEXT,
    kind TEXT NOT NULL,
    prefix_hash TEXT,
    messages_hash TEXT NOT NULL,
    answer_hash TEXT,
    segment TEXT NOT NULL,
    group_id TEXT,
    history BLOB NOT NULL,
    new_messages BLOB NOT NULL,
    sent BLOB,
    inputs BLOB NOT NULL,
    new_count INTEGER NOT NULL,
    ends_session INTEGER NOT NULL,
    may_train INTEGER NOT NULL,
    arrived_at REAL NOT NULL,
    noted_at REAL NOT NULL,
    recorded INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX arrivals_by_body ON arrivals (owner, messages_hash, implicit, noted_at)
    WHERE parent IS NOT NULL AND kind = 'main';
CREATE INDEX arrivals_orphaned ON arrivals (owner, prefix_hash, implicit, arrived_at)
    WHERE parent IS NULL AND prefix_hash IS NOT NULL;
CREATE INDEX arrivals_unrecorded ON arrivals (noted_at) WHERE recorded = 0;

CREATE TABLE turns (
    seq INTEGER PRIMARY KEY,
    turn_id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    implicit INTEGER NOT NULL,
    kind TEXT NOT NULL,
    group_id TEXT,
    messages_hash TEXT NOT NULL,
    reply_hash TEXT NOT NULL,
    answer_hash TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    step INTEGER,
    lease_id TEXT,
    oldest_version INTEGER,
    newest_version INTEGER,
    prompt_tokens INTEGER NOT NULL,
    reused_tokens INTEGER NOT NULL,
    response_tokens INTEGER NOT NULL,
    finish_reason TEXT NOT NULL,
    started_at REAL NOT NULL,
    finished_at REAL NOT NULL,
    replica TEXT NOT NULL,
    overridden INTEGER NOT NULL,
    recorded_at REAL NOT NULL,
    state_at REAL NOT NULL,
    withheld TEXT NOT NULL DEFAULT 'nothing',
    forgotten INTEGER NOT NULL DEFAULT 0,
    CHECK ((state = 'dropped') = (reason IS NOT NULL)),
    CHECK ((state IN ('leased', 'applied', 'trained')) = (step IS NOT NULL)),
    CHECK ((step IS NULL) = (lease_id IS NULL))
);
CREATE INDEX turns_by_state ON turns (state, reason);
CREATE INDEX turns_by_session ON turns (owner, session, reply_hash, seq);
CREATE INDEX turns_by_answer ON turns (owner, session, answer_hash, seq);
CREATE INDEX turns_anonymous ON turns (owner, reply_hash, seq) WHERE implicit = 1;
CREATE INDEX turns_anonymous_awaiting ON turns (owner, reply_hash, seq)
    WHERE implicit = 1 AND state = 'awaiting_next';
CREATE INDEX turns_by_reply ON turns (owner, reply_hash, recorded_at) WHERE kind = 'main';
CREATE INDEX turns_awaiting ON turns (state_at) WHERE state = 'awaiting_next';
CREATE INDEX turns_awaiting_session ON turns (owner, session, answer_hash, seq) WHERE state = 'awaiting_next';
CREATE INDEX turns_judging ON turns (seq) WHERE state = 'judging';
CREATE INDEX turns_judged ON turns (seq) WHERE state = 'judged';
CREATE INDEX turns_queued ON turns (seq) WHERE state = 'queued';
CREATE INDEX turns_queued_group ON turns (owner, group_id, messages_hash, seq)
    WHERE state = 'queued' AND group_id IS NOT NULL;
CREATE INDEX turns_undecided_group ON turns (owner, group_id, messages_hash)
    WHERE state IN ('awaiting_next', 'judging', 'judged') AND group_id IS NOT NULL;
CREATE INDEX turns_leased ON turns (lease_id, seq) WHERE state = 'leased';
CREATE INDEX turns_applied ON turns (step) WHERE state = 'applied';
CREATE INDEX turns_held ON turns (step) WHERE step IS NOT NULL;
CREATE INDEX turns_finished ON turns (seq) WHERE state IN ('trained', 'dropped');

CREATE TABLE payloads (
    turn_id TEXT PRIMARY KEY,
    response_text BLOB NOT NULL,
    answer BLOB NOT NULL,
    prompt_ids BLOB NOT NULL,
    response_ids BLOB NOT NULL,
    response_logps BLOB NOT NULL,
    spans TEXT NOT NULL,
    sampling BLOB NOT NULL
);

CREATE TABLE evidence (
    turn_id TEXT PRIMARY KEY,
    from_turn TEXT NOT NULL,
    messages BLOB NOT NULL
);

CREATE TABLE judgements (
    turn_id TEXT PRIMARY KEY,
    verdict INTEGER CHECK (verdict IN (-1, 0, 1)),
    votes TEXT NOT NULL,
    judge TEXT NOT NULL,
    feedback REAL,
    reward REAL,
    opinion BLOB NOT NULL
);

CREATE TABLE targets (
    turn_id TEXT PRIMARY KEY,
    teaching BLOB NOT NULL
);

CREATE TABLE feedback (
    turn_id TEXT PRIMARY KEY,
    score REAL NOT NULL CHECK (score BETWEEN -1 AND 1),
    comment BLOB NOT NULL,
    given_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('taken', 'too_late'))
);

CREATE TABLE hints (
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    digest TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    hint BLOB NOT NULL,
    at REAL NOT NULL,
    UNIQUE (owner, session, digest, turn_id)
);
CREATE INDEX hints_by_turn ON hints (turn_id);

CREATE TABLE vitals (
    id INTEGER PRIMARY KEY,
    turn_id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    response_tokens INTEGER NOT NULL,
    repetition REAL NOT NULL,
    fluency REAL,
    on_topic_lift REAL,
    kl REAL,
    at REAL NOT NULL,
    orphaned INTEGER NOT NULL
);
CREATE INDEX vitals_orphaned ON vitals (id) WHERE orphaned = 1;

CREATE TABLE transitions (
    id INTEGER PRIMARY KEY,
    turn_id TEXT NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    detail TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX transitions_by_turn ON transitions (turn_id, id);

CREATE TABLE leases (
    id INTEGER PRIMARY KEY,
    lease_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    deadline REAL NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'confirmed', 'applied', 'closed'))
);
CREATE UNIQUE INDEX leases_live ON leases (run_id, step) WHERE status IN ('open', 'confirmed');
CREATE INDEX leases_open ON leases (deadline) WHERE status = 'open';

CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    restored_step INTEGER NOT NULL,
    taken_step INTEGER NOT NULL,
    checkpointed_step INTEGER NOT NULL,
    at REAL NOT NULL
);

CREATE TABLE steps (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('applied', 'trained', 'undone')),
    turns INTEGER NOT NULL,
    reward_mean REAL,
    stats TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (run_id, step)
);
CREATE INDEX steps_by_step ON steps (step);
CREATE INDEX steps_applied ON steps (step) WHERE state = 'applied';

CREATE TABLE versions (
    version INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    snapshot TEXT NOT NULL,
    digest TEXT NOT NULL,
    published_at REAL NOT NULL,
    stats TEXT NOT NULL,
    good INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX versions_good ON versions (version) WHERE good = 1;

CREATE TABLE pause (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    by TEXT NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL
);

CREATE TABLE counters (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID;

CREATE TABLE pruned (
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (state, reason)
) WITHOUT ROWID;
"""

ADDED = """
CREATE TABLE IF NOT EXISTS identity (only INTEGER PRIMARY KEY CHECK (only = 1), ledger_id TEXT NOT NULL);
INSERT OR IGNORE INTO identity (only, ledger_id) VALUES (1, lower(hex(randomblob(16))));
CREATE TABLE IF NOT EXISTS protection (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    keyring TEXT NOT NULL,
    sealed INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS opted_out (
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (owner, session)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS opted_out_by_age ON opted_out (at);
CREATE TABLE IF NOT EXISTS keys_seen (only INTEGER PRIMARY KEY CHECK (only = 1), mark TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS key_tags (owner TEXT PRIMARY KEY, tag TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refusals (turn_id TEXT PRIMARY KEY, words BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS forgettings (
    id INTEGER PRIMARY KEY,
    who TEXT NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL,
    lead REAL NOT NULL,
    owner TEXT,
    session TEXT,
    wanted TEXT NOT NULL,
    asked TEXT NOT NULL,
    found TEXT NOT NULL,
    told INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS forgettings_of ON forgettings (who, until);
CREATE INDEX IF NOT EXISTS forgettings_wanted ON forgettings (wanted);
CREATE INDEX IF NOT EXISTS forgettings_by_age ON forgettings (until);
CREATE TABLE IF NOT EXISTS trained_on (
    who TEXT NOT NULL,
    step INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (who, step)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS trained_on_by_step ON trained_on (step);
CREATE TABLE IF NOT EXISTS hint_uses (
    turn_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    source TEXT NOT NULL,
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (turn_id, digest, source)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS hint_uses_by_source ON hint_uses (source);
CREATE INDEX IF NOT EXISTS hint_uses_by_session ON hint_uses (owner, session);
CREATE INDEX IF NOT EXISTS hint_uses_by_age ON hint_uses (at);
CREATE INDEX IF NOT EXISTS arrivals_by_session ON arrivals (owner, session, noted_at);
CREATE INDEX IF NOT EXISTS evidence_by_source ON evidence (from_turn);
CREATE INDEX IF NOT EXISTS turns_queued_oldest ON turns (oldest_version, started_at, seq) WHERE state = 'queued';
DROP INDEX IF EXISTS turns_of_session;
DROP INDEX IF EXISTS turns_of_version;
CREATE INDEX IF NOT EXISTS turns_named ON turns (session, seq);
CREATE INDEX IF NOT EXISTS turns_in_session ON turns (session, owner, seq);
CREATE INDEX IF NOT EXISTS turns_from_version ON turns (oldest_version, seq) WHERE oldest_version IS NOT NULL;
CREATE INDEX IF NOT EXISTS turns_to_version ON turns (newest_version, seq) WHERE newest_version > oldest_version;
CREATE INDEX IF NOT EXISTS turns_over_versions ON turns (seq) WHERE newest_version > oldest_version + 1;
"""
"""What ledgers of this format may lack; releases that do not know it are not disturbed by it."""

EARLIER = {
    "forgotten": """
    INSERT INTO forgettings (who, since, until, lead, owner, session, wanted, asked, found, told)
        SELECT who, since, until, 0.0, owner, session, '', '', '{}', 1 FROM forgotten;
    DROP TABLE forgotten
    """
}
"""Tables of this format that are another one now, and what becomes of what is in them."""
