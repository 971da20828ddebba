-- The schema after all migrations, for reading. A test proves that both are equal.

CREATE TABLE perdure.store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL,
    version int NOT NULL,
    min_code_schema int NOT NULL
);

-- Every append updates a row in place; free space on the page avoids index updates.
-- takeovers: claims from owners that did not release the stream, while its last owned record was stuck_seq.
-- served_at: time of the owner's last write, on the server's clock. head: digest of the last record, with a seal
-- (`digest_chain.py`).
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
    priority int,
    head bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX streams_active ON perdure.streams (owner) WHERE active;
CREATE INDEX streams_owner ON perdure.streams (owner) WHERE owner IS NOT NULL;
CREATE INDEX streams_listed ON perdure.streams (tenant, kind);

-- fence and n identify the append that wrote a row; both are null for admitted rows. original: hash of the payload before
-- its redaction.
-- No reference to streams: every writer holds the lock on the stream's row, so a check per row is unnecessary.
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
    digest bytea NOT NULL,
    original bytea,
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

-- wakes: the row wakes a parked stream. input_bytes: size of an input with its new attachments; 0: another item. came_at: time of arrival on the server's clock; at: time on the sender's clock.
CREATE TABLE perdure.inbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    source_key text NOT NULL,
    at bigint NOT NULL,
    came_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    wakes boolean NOT NULL,
    input_bytes bigint NOT NULL DEFAULT 0,
    data bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX inbox_stream ON perdure.inbox (stream);

-- The inputs that wait in a stream. Senders to one stream wait here for each other, until the earlier one has committed.
-- The second statement of a volatile function has a snapshot of its own, so it counts what they inserted.
CREATE FUNCTION perdure.waiting(bigint) RETURNS TABLE (inputs bigint, bytes bigint) LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('perdure inbox', $1));
    SELECT count(*), coalesce(sum(i.input_bytes), 0)::bigint FROM perdure.inbox AS i
    WHERE i.stream = $1 AND i.input_bytes > 0
$$;

-- Rejected outbox entries of an append (fence, n). An entry without a row here was accepted.
CREATE TABLE perdure.outbox_rejections (
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    fence bigint NOT NULL,
    n bigint NOT NULL,
    position int NOT NULL,
    verdict text NOT NULL,
    because text NOT NULL,
    PRIMARY KEY (stream, fence, n, position)
);

-- request_kind: the kind of decision requested from a person. Such rows repeat the tenant: a list reads no other tenant's rows.
CREATE TABLE perdure.promises (
    id text COLLATE "C" PRIMARY KEY,
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    resolution bytea,
    deadline_at bigint,
    request_kind text NOT NULL DEFAULT '',
    requested_at bigint,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    consumed_at bigint
);
CREATE INDEX promises_stream ON perdure.promises (stream);
CREATE INDEX promises_requested ON perdure.promises (tenant, requested_at, id) WHERE request_kind <> '' AND resolution IS NULL;

-- No reference to `promises`: if the owner of a promise is deleted, the streams that wait for it are woken.
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

-- lease_until: milliseconds on the server's clock. boot and lock identify the OS lock that the worker's process holds
-- on its machine; lock is blank without one.
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

-- Granted and queued (not granted) permits of fleet-wide limits; the lowest id is first in the queue.
CREATE TABLE perdure.permits (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    worker text COLLATE "C" NOT NULL REFERENCES perdure.workers (id) ON DELETE CASCADE,
    at bigint NOT NULL,
    granted boolean NOT NULL,
    UNIQUE (worker, name, holder)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- Tombstones: the fence of each deleted stream. A new stream of the same name starts above it.
CREATE TABLE perdure.tombstones (
    stream text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL
);

CREATE TABLE perdure.secrets (
    name text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);

-- Titles for session lists. Titles and tags are projections of `title_set` and `tags_set` records.
CREATE TABLE perdure.titles (
    stream bigint PRIMARY KEY REFERENCES perdure.streams (id) ON DELETE CASCADE,
    title text NOT NULL
);

-- The tenant is repeated, so that a query for a tag reads no other tenant's rows.
CREATE TABLE perdure.tags (
    tenant text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    stream bigint NOT NULL REFERENCES perdure.streams (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, tag, stream)
);
CREATE INDEX tags_stream ON perdure.tags (stream);

-- The side channel of live model text. Rows may be lost, and are lost in a crash of the server.
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

-- Counts commit notifications, for processes that cannot listen.
CREATE SEQUENCE perdure.commit_counter;
