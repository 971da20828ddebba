-- The schema after all migrations, for reading. A test proves that both are equal.

-- Code compatibility: `user_version` is the schema version; code must know schema `min_code_schema` or later.
CREATE TABLE store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    min_code_schema INTEGER NOT NULL
);

-- takeovers: claims from owners that did not release the stream, while its last owned record was stuck_seq.
-- served_at: time of the owner's last write. head: digest of the last record, with a seal (`digest_chain.py`).
CREATE TABLE streams (
    id INTEGER PRIMARY KEY,
    stream TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    agent TEXT NOT NULL,
    format INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    n INTEGER NOT NULL,
    owner TEXT,
    active INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    served_at INTEGER NOT NULL DEFAULT 0,
    takeovers INTEGER NOT NULL DEFAULT 0,
    stuck_seq INTEGER NOT NULL DEFAULT 0,
    paused_at INTEGER,
    paused_by TEXT,
    queue TEXT,
    priority INTEGER,
    head BLOB NOT NULL DEFAULT x''
);
CREATE INDEX streams_active ON streams (active) WHERE active = 1;

-- In write order: the appends of many streams share pages, so a group commit writes few pages, and long records stay on
-- their page. fence and n identify the append that wrote a row; both are null for admitted rows. original: hash of the
-- payload before its redaction.
CREATE TABLE log (
    id INTEGER PRIMARY KEY,
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    version INTEGER NOT NULL,
    key TEXT,
    fence INTEGER,
    n INTEGER,
    data BLOB NOT NULL,
    digest BLOB NOT NULL,
    original BLOB
);
CREATE UNIQUE INDEX log_seq ON log (stream, seq);
CREATE UNIQUE INDEX log_key ON log (stream, key) WHERE key IS NOT NULL;

CREATE TABLE admissions (
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    source_key TEXT NOT NULL,
    content TEXT NOT NULL,
    turn TEXT NOT NULL,
    input TEXT NOT NULL,
    PRIMARY KEY (stream, source_key)
) WITHOUT ROWID;

-- AUTOINCREMENT: the id of a consumed row is never reused. wakes: the row wakes a parked stream.
-- came_at: time of arrival; at: time of sending. input_bytes: size of an input with its new attachments; 0: another item.
CREATE TABLE inbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    source_key TEXT NOT NULL,
    at INTEGER NOT NULL,
    came_at INTEGER NOT NULL,
    wakes INTEGER NOT NULL,
    input_bytes INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX inbox_stream ON inbox (stream);

-- Rejected outbox entries of an append (fence, n). An entry without a row here was accepted.
CREATE TABLE outbox_rejections (
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    fence INTEGER NOT NULL,
    n INTEGER NOT NULL,
    position INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    because TEXT NOT NULL,
    PRIMARY KEY (stream, fence, n, position)
) WITHOUT ROWID;

-- request_kind: the kind of decision requested from a person. Such rows repeat the tenant: a list reads no other tenant's rows.
CREATE TABLE promises (
    id TEXT PRIMARY KEY,
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    resolution BLOB,
    deadline_at INTEGER,
    request_kind TEXT NOT NULL DEFAULT '',
    requested_at INTEGER,
    tenant TEXT NOT NULL DEFAULT '',
    consumed_at INTEGER
) WITHOUT ROWID;
CREATE INDEX promises_stream ON promises (stream);
CREATE INDEX promises_requested ON promises (tenant, requested_at, id) WHERE request_kind <> '' AND resolution IS NULL;

-- No reference to `promises`: if the owner of a promise is deleted, the streams that wait for it are woken.
CREATE TABLE waits (
    promise TEXT NOT NULL,
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    PRIMARY KEY (promise, stream)
) WITHOUT ROWID;
CREATE INDEX waits_stream ON waits (stream);

CREATE TABLE timers (
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    PRIMARY KEY (stream, name)
) WITHOUT ROWID;
CREATE INDEX timers_due ON timers (due_at);

CREATE TABLE blobs (
    id INTEGER PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL
);

CREATE TABLE blob_refs (
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    blob INTEGER NOT NULL REFERENCES blobs (id),
    PRIMARY KEY (stream, blob)
) WITHOUT ROWID;
CREATE INDEX blob_refs_blob ON blob_refs (blob);

CREATE TABLE snapshots (
    stream INTEGER PRIMARY KEY REFERENCES streams (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    code TEXT NOT NULL,
    data BLOB NOT NULL
);

-- lease_until: milliseconds on the monotonic clock of `boot`. locked: the worker holds an OS lock on its own file.
CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    boot TEXT NOT NULL,
    locked INTEGER NOT NULL,
    host TEXT NOT NULL DEFAULT '',
    lease_ms INTEGER NOT NULL DEFAULT 0,
    concurrency INTEGER NOT NULL DEFAULT 0,
    queues TEXT
) WITHOUT ROWID;

-- Granted and queued (not granted) permits of fleet-wide limits; the lowest id is first in the queue.
CREATE TABLE permits (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    worker TEXT NOT NULL REFERENCES workers (id) ON DELETE CASCADE,
    at INTEGER NOT NULL,
    granted INTEGER NOT NULL,
    UNIQUE (worker, name, holder)
);

-- Tombstones: the fence of each deleted stream. A new stream of the same name starts above it.
CREATE TABLE tombstones (
    stream TEXT PRIMARY KEY,
    fence INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- Titles for session lists. Titles and tags are projections of `title_set` and `tags_set` records.
CREATE TABLE titles (
    stream INTEGER PRIMARY KEY REFERENCES streams (id) ON DELETE CASCADE,
    title TEXT NOT NULL
);

-- The tenant is repeated, so that a query for a tag reads no other tenant's rows.
CREATE TABLE tags (
    tenant TEXT NOT NULL,
    tag TEXT NOT NULL,
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, tag, stream)
) WITHOUT ROWID;
CREATE INDEX tags_stream ON tags (stream);
