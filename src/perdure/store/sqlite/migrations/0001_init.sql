-- 0001 init: streams and what belongs to them. Works with code from schema 1 on.
-- Everything but `store`, `workers` and `graves` goes when its stream goes.

-- Which code can work with this file: schema version is `user_version`, and code must know `works_from` at least.
CREATE TABLE store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    works_from INTEGER NOT NULL
);

-- takeovers: how often it was taken from a worker that did not give it back, while its last owned record was stuck_seq.
-- served_at: when its owner last wrote.
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
    priority INTEGER
);
CREATE INDEX streams_active ON streams (active) WHERE active = 1;

-- In the order of writing: the appends of many streams share pages, so a group commit writes few of them, and long records
-- stay on their page. fence and n name the append that wrote a row; they are null for what was admitted by somebody else.
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
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX log_place ON log (stream, seq);
CREATE UNIQUE INDEX log_key ON log (stream, key) WHERE key IS NOT NULL;

CREATE TABLE admissions (
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    source_key TEXT NOT NULL,
    content TEXT NOT NULL,
    turn TEXT NOT NULL,
    input TEXT NOT NULL,
    PRIMARY KEY (stream, source_key)
) WITHOUT ROWID;

-- AUTOINCREMENT: an id that was consumed never comes back as another item. news: it wakes a parked stream.
-- came_at: when it was put here; at: when it was sent.
CREATE TABLE inbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    source_key TEXT NOT NULL,
    at INTEGER NOT NULL,
    came_at INTEGER NOT NULL,
    news INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX inbox_stream ON inbox (stream);

-- What became of a send of an append (fence, n) that was not accepted. One that has no row here was.
CREATE TABLE verdicts (
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    fence INTEGER NOT NULL,
    n INTEGER NOT NULL,
    place INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    because TEXT NOT NULL,
    PRIMARY KEY (stream, fence, n, place)
) WITHOUT ROWID;

-- asks: what people are asked for; then the tenant is repeated, so that a list of it never leads through another's rows.
CREATE TABLE promises (
    id TEXT PRIMARY KEY,
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    resolution BLOB,
    deadline_at INTEGER,
    asks TEXT NOT NULL DEFAULT '',
    asked_at INTEGER,
    tenant TEXT NOT NULL DEFAULT '',
    consumed_at INTEGER
) WITHOUT ROWID;
CREATE INDEX promises_stream ON promises (stream);
CREATE INDEX promises_asked ON promises (tenant, asked_at, id) WHERE asks <> '' AND resolution IS NULL;

-- Not bound to `promises`: a stream may wait for a promise whose owner is deleted meanwhile, and is woken then.
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

-- lease_until counts milliseconds of the boot named beside it. locked: the worker holds an OS lock on its own file.
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

-- What a worker may do at once with others of the fleet, or (not granted) waits for; the lowest id is first.
CREATE TABLE permits (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    worker TEXT NOT NULL REFERENCES workers (id) ON DELETE CASCADE,
    at INTEGER NOT NULL,
    granted INTEGER NOT NULL,
    UNIQUE (worker, name, holder)
);

-- The fence a deleted stream had: one that takes its name starts above it.
CREATE TABLE graves (
    stream TEXT PRIMARY KEY,
    fence INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- How a session is listed and found: a projection of its `title_set` and `tags_set` records.
CREATE TABLE titles (
    stream INTEGER PRIMARY KEY REFERENCES streams (id) ON DELETE CASCADE,
    title TEXT NOT NULL
);

-- The tenant is repeated so that one tenant's tags never lead through another's rows.
CREATE TABLE tags (
    tenant TEXT NOT NULL,
    tag TEXT NOT NULL,
    stream INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, tag, stream)
) WITHOUT ROWID;
CREATE INDEX tags_stream ON tags (stream);
