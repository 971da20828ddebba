-- 0001 init: streams and what belongs to them. Works with code from schema 1 on.
-- Everything but `store`, `workers`, `secrets` and `graves` goes when its stream goes.

CREATE TABLE perdure.store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL,
    version int NOT NULL,
    works_from int NOT NULL
);

-- Rows change in place with every append: room on the page keeps the indexes out of it.
-- takeovers: how often it was taken from a worker that did not give it back, while its last owned record was stuck_seq.
-- served_at: when its owner last wrote, on the server's clock.
CREATE TABLE perdure.streams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream text COLLATE "C" NOT NULL UNIQUE,
    tenant text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    agent text NOT NULL,
    format int NOT NULL,
    last_seq bigint NOT NULL,
    fence bigint NOT NULL,
    n bigint NOT NULL,
    owner text,
    active boolean NOT NULL,
    parked boolean NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    served_at bigint NOT NULL DEFAULT 0,
    takeovers int NOT NULL DEFAULT 0,
    stuck_seq bigint NOT NULL DEFAULT 0,
    paused_at bigint,
    paused_by text,
    queue text COLLATE "C",
    priority int
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX streams_active ON perdure.streams (owner) WHERE active;
CREATE INDEX streams_owner ON perdure.streams (owner) WHERE owner IS NOT NULL;
CREATE INDEX streams_listed ON perdure.streams (tenant, kind);

-- fence and n name the append that wrote a row; they are null for what was admitted by somebody else.
-- No reference to streams: whoever writes here holds the lock on the stream's row, so a check per row proves nothing.
CREATE TABLE perdure.log (
    stream bigint NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    fence bigint,
    n bigint,
    version int NOT NULL,
    kind text NOT NULL,
    key text COLLATE "C",
    data bytea NOT NULL,
    PRIMARY KEY (stream, seq)
);
CREATE UNIQUE INDEX log_key ON perdure.log (stream, key) WHERE key IS NOT NULL;

CREATE TABLE perdure.admissions (
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    source_key text COLLATE "C" NOT NULL,
    content text NOT NULL,
    turn text NOT NULL,
    input text NOT NULL,
    PRIMARY KEY (stream, source_key)
);

-- news: it wakes a parked stream. came_at: on the server's clock; at: on that of whoever sent it.
CREATE TABLE perdure.inbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    source_key text NOT NULL,
    at bigint NOT NULL,
    came_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    news boolean NOT NULL,
    data bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX inbox_stream ON perdure.inbox (stream);

-- What became of a send of an append (fence, n) that was not accepted. One that has no row here was.
CREATE TABLE perdure.verdicts (
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    fence bigint NOT NULL,
    n bigint NOT NULL,
    place int NOT NULL,
    verdict text NOT NULL,
    because text NOT NULL,
    PRIMARY KEY (stream, fence, n, place)
);

-- asks: what people are asked for; then the tenant is repeated, so that a list of it never leads through another's rows.
CREATE TABLE perdure.promises (
    id text COLLATE "C" PRIMARY KEY,
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    resolution bytea,
    deadline_at bigint,
    asks text NOT NULL DEFAULT '',
    asked_at bigint,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    consumed_at bigint
);
CREATE INDEX promises_stream ON perdure.promises (stream);
CREATE INDEX promises_asked ON perdure.promises (tenant, asked_at, id) WHERE asks <> '' AND resolution IS NULL;

-- Not bound to `promises`: a stream may wait for a promise whose owner is deleted meanwhile, and is woken then.
CREATE TABLE perdure.waits (
    promise text COLLATE "C" NOT NULL,
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    PRIMARY KEY (promise, stream)
);
CREATE INDEX waits_stream ON perdure.waits (stream);

CREATE TABLE perdure.timers (
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    due_at bigint NOT NULL,
    PRIMARY KEY (stream, name)
);
CREATE INDEX timers_due ON perdure.timers (due_at);

CREATE TABLE perdure.blobs (
    hash text COLLATE "C" PRIMARY KEY,
    media_type text NOT NULL,
    data bytea NOT NULL
);

CREATE TABLE perdure.blob_refs (
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    hash text COLLATE "C" NOT NULL REFERENCES perdure.blobs (hash),
    PRIMARY KEY (stream, hash)
);
CREATE INDEX blob_refs_hash ON perdure.blob_refs (hash);

CREATE TABLE perdure.snapshots (
    stream bigint PRIMARY KEY REFERENCES perdure.streams (id) ON DELETE CASCADE,
    seq bigint NOT NULL,
    code text NOT NULL,
    data bytea NOT NULL
);

-- lease_until is on the server's clock, in milliseconds. boot and lock name the OS lock that the worker's process holds
-- on its machine; lock is blank where there is none.
CREATE TABLE perdure.workers (
    id text COLLATE "C" PRIMARY KEY,
    pid bigint NOT NULL,
    version text NOT NULL,
    started_at bigint NOT NULL,
    lease_until bigint NOT NULL,
    boot text NOT NULL,
    lock text NOT NULL,
    host text NOT NULL DEFAULT '',
    lease_ms bigint NOT NULL DEFAULT 0,
    concurrency int NOT NULL DEFAULT 0,
    queues text[]
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- What a worker may do at once with others of the fleet, or (not granted) waits for; the lowest id is first.
CREATE TABLE perdure.permits (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    worker text COLLATE "C" NOT NULL REFERENCES perdure.workers (id) ON DELETE CASCADE,
    at bigint NOT NULL,
    granted boolean NOT NULL,
    UNIQUE (worker, name, holder)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- The fence a deleted stream had: one that takes its name starts above it.
CREATE TABLE perdure.graves (
    stream text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL
);

CREATE TABLE perdure.secrets (
    name text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);

-- How a session is listed and found: a projection of its `title_set` and `tags_set` records.
CREATE TABLE perdure.titles (
    stream bigint PRIMARY KEY REFERENCES perdure.streams (id) ON DELETE CASCADE,
    title text NOT NULL
);

-- The tenant is repeated so that one tenant's tags never lead through another's rows.
CREATE TABLE perdure.tags (
    tenant text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, tag, stream)
);
CREATE INDEX tags_stream ON perdure.tags (stream);

-- What models are writing this moment. It may be lost, and after a crash of the server it is.
CREATE UNLOGGED TABLE perdure.live (
    stream text COLLATE "C" NOT NULL,
    turn text COLLATE "C" NOT NULL,
    effect text COLLATE "C" NOT NULL,
    run bigint NOT NULL,
    seq bigint NOT NULL,
    start int NOT NULL,
    text text NOT NULL,
    thinking bool NOT NULL,
    at bigint NOT NULL
);
CREATE INDEX live_stream ON perdure.live (stream);
CREATE INDEX live_at ON perdure.live (at);

-- Moves after commits, for those who cannot listen.
CREATE SEQUENCE perdure.pulse;
