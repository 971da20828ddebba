-- All statements of the store by name; the hot ones are first.

-- name: append_on
-- One or two records of a worker that keeps its stream: the most frequent append. Nothing is written unless the stream
-- ends at the seq that the owner knows. Then no other rows exist, and the receipt has no missed rows.
WITH moved AS (
    UPDATE perdure.streams AS s SET last_seq = $5::bigint + $6, head = $15, n = $3, active = true, parked = false,
        format = greatest(s.format, $8), updated_at = $7, served_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    WHERE s.stream = $1 AND s.fence = $2 AND s.n = $3 - 1 AND s.owner = $4 AND s.last_seq = $5
    RETURNING s.id
)
INSERT INTO perdure.log (stream, seq, at, kind, version, fence, n, data, digest)
SELECT m.id, $5::bigint + e.position, e.at, e.kind, $8, $2, $3, e.data, e.digest
FROM moved AS m, (VALUES
    (1, $9::bigint, $10::text, $11::bytea, $16::bytea), (2, $12::bigint, $13::text, $14::bytea, $17::bytea)
) AS e (position, at, kind, data, digest)
WHERE e.position <= $6 RETURNING seq

-- name: append_on_many
-- The same for many streams of one worker; returns the plans that were written.
WITH moved AS (
    UPDATE perdure.streams AS s SET last_seq = p.before + p.rows, head = p.head, n = p.n, active = true, parked = false,
        format = greatest(s.format, $8), updated_at = $7, served_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    FROM unnest($1::text::text[], $2::text::bigint[], $3::text::bigint[], $4::text::bigint[], $5::text::int[], $16::text::bytea[])
        WITH ORDINALITY AS p (stream, fence, n, before, rows, head, i)
    WHERE s.stream = p.stream AND s.fence = p.fence AND s.n = p.n - 1 AND s.owner = $6 AND s.last_seq = p.before
    RETURNING p.i, p.fence, p.n, s.id
), written AS (
    INSERT INTO perdure.log (stream, seq, at, kind, version, fence, n, data, digest)
    SELECT m.id, e.seq, e.at, e.kind, $8, m.fence, m.n, substring($13::bytea FROM e.start FOR e.size), e.digest
    FROM unnest($9::text::int[], $10::text::bigint[], $11::text::bigint[], $12::text::text[], $14::text::int[], $15::text::int[],
        $17::text::bytea[]) AS e (i, seq, at, kind, start, size, digest)
    JOIN moved AS m ON m.i = e.i
)
SELECT m.i FROM moved AS m

-- name: append_lone
-- Up to four records of one plan and nothing else. If the stream is ahead of the owner's known seq, `own` counts the
-- rows of owners in between.
WITH moved AS (
    UPDATE perdure.streams AS s SET last_seq = s.last_seq + $4, n = $3, owner = CASE WHEN $6 THEN NULL ELSE $5 END,
        head = CASE WHEN $4 = 0 THEN s.head ELSE $29 END,
        active = $7, parked = $8, format = greatest(s.format, $9), updated_at = $10,
        served_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    WHERE s.stream = $1 AND s.fence = $2 AND s.n = $3 - 1 AND s.owner = $5 AND ($4 = 0 OR s.last_seq = $28)
    RETURNING s.id, s.last_seq - $4 AS before
), written AS (
    INSERT INTO perdure.log (stream, seq, at, kind, version, key, fence, n, data, digest)
    SELECT m.id, m.before + e.position, e.at, e.kind, $9, e.key, $2, $3, e.data, e.digest
    FROM moved AS m, (VALUES
        (1, $12::bigint, $13::text, $14::text, $15::bytea, $30::bytea),
        (2, $16::bigint, $17::text, $18::text, $19::bytea, $31::bytea),
        (3, $20::bigint, $21::text, $22::text, $23::bytea, $32::bytea),
        (4, $24::bigint, $25::text, $26::text, $27::bytea, $33::bytea)
    ) AS e (position, at, kind, key, data, digest) WHERE e.position <= $4
)
SELECT m.id, m.before, CASE WHEN $11 < m.before THEN (
    SELECT count(*) FROM perdure.log AS l
    WHERE l.stream = m.id AND l.seq > $11 AND l.seq <= m.before AND l.fence IS NOT NULL
) END AS own, NOT $7 AND (SELECT b.id FROM perdure.inbox AS b WHERE b.stream = m.id LIMIT 1) IS NULL AS quiet FROM moved AS m

-- name: append
-- Plans of many streams. A plan whose stream is not in the expected state writes nothing and is missing in the result.
-- A missing inbox row fails the whole statement, by a division by zero. Columns are passed as text, and all bytes as
-- one value (`columns.py`).
WITH answered AS (
    SELECT w.i, w.promise FROM unnest($26::text::int[], $27::text::text[]) AS w (i, promise)
    JOIN perdure.promises AS q ON q.id = w.promise WHERE q.resolution IS NOT NULL
), plan AS (
    SELECT p.*, EXISTS (SELECT 1 FROM answered AS a WHERE a.i = p.i) AS met
    FROM unnest($1::text::int[], $2::text::text[], $3::text::bigint[], $4::text::bigint[], $5::text::bigint[], $6::text::text[],
        $7::text::bool[], $8::text::bool[], $9::text::bool[], $10::text::int[], $11::text::int[], $12::text::bigint[],
        $37::text::bigint[], $38::text::bytea[])
        AS p (i, stream, fence, n, last_n, worker, released, active, parked, format, rows, known, before, head)
), moved AS (
    UPDATE perdure.streams AS s SET
        last_seq = s.last_seq + p.rows,
        head = CASE WHEN p.rows = 0 THEN s.head ELSE p.head END,
        n = p.last_n,
        owner = CASE WHEN p.released AND NOT p.met THEN NULL ELSE p.worker END,
        active = p.active OR p.met,
        parked = p.parked AND NOT p.met,
        format = greatest(s.format, p.format),
        updated_at = $13,
        served_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    FROM plan AS p
    WHERE s.stream = p.stream AND s.fence = p.fence AND s.n = p.n - 1 AND s.owner = p.worker
        AND (p.rows = 0 OR s.last_seq = p.before)
    RETURNING p.i, p.worker, p.known, p.met, s.id, s.fence, s.active, s.last_seq - p.rows AS before
), written AS (
    INSERT INTO perdure.log (stream, seq, at, kind, version, key, fence, n, data, digest)
    SELECT m.id, m.before + e.position, e.at, e.kind, e.version, e.key, m.fence, e.n,
        substring($21::bytea FROM e.start FOR e.size), e.digest
    FROM unnest($14::text::int[], $15::text::int[], $16::text::bigint[], $17::text::text[], $18::text::int[],
        $19::text::text[], $20::text::bigint[], $22::text::int[], $23::text::int[], $39::text::bytea[])
        AS e (i, position, at, kind, version, key, n, start, size, digest)
    JOIN moved AS m ON m.i = e.i
), eaten AS (
    DELETE FROM perdure.inbox AS b USING unnest($24::text::int[], $25::text::bigint[]) AS c (i, id), moved AS m
    WHERE m.i = c.i AND b.id = c.id AND b.stream = m.id RETURNING b.id
), waiting AS (
    INSERT INTO perdure.waits (promise, stream)
    SELECT w.promise, m.id FROM unnest($26::text::int[], $27::text::text[]) AS w (i, promise) JOIN moved AS m ON m.i = w.i
    WHERE NOT m.met ON CONFLICT DO NOTHING
), leased AS (
    UPDATE perdure.workers AS k SET lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $29
    WHERE k.id = ANY ($28::text[]) AND k.id IN (SELECT m.worker FROM moved AS m) RETURNING k.id
), held AS (
    SELECT m.id, r.hash FROM unnest($30::text::int[], $31::text::text[]) AS r (i, hash) JOIN moved AS m ON m.i = r.i
), stored AS (
    INSERT INTO perdure.blobs (hash, media_type, data)
    SELECT b.hash, b.media_type, substring($34::bytea FROM b.start FOR b.size)
    FROM unnest($32::text::text[], $33::text::text[], $35::text::int[], $36::text::int[]) AS b (hash, media_type, start, size)
    WHERE b.hash IN (SELECT h.hash FROM held AS h) ORDER BY b.hash ON CONFLICT DO NOTHING
), referred AS (
    INSERT INTO perdure.blob_refs (stream, hash) SELECT h.id, h.hash FROM held AS h ON CONFLICT DO NOTHING
)
SELECT m.i, m.id, m.before, m.met, CASE WHEN m.known < m.before THEN (
        SELECT count(*) FROM perdure.log AS l
        WHERE l.stream = m.id AND l.seq > m.known AND l.seq <= m.before AND l.fence IS NOT NULL
    ) END AS own,
    NOT m.active AND (
        SELECT b.id FROM perdure.inbox AS b WHERE b.stream = m.id AND b.id <> ALL ($25::text::bigint[]) LIMIT 1
    ) IS NULL AS quiet,
    (SELECT array_agg(id) FROM leased) AS leased,
    1 / ((SELECT count(*) FROM eaten) = (SELECT count(*) FROM unnest($24::text::int[]) AS c (i) JOIN moved AS o ON o.i = c.i))::int
FROM moved AS m

-- name: append_more
-- The other contents of plans that were just written in the same transaction.
WITH moved AS (
    SELECT p.i, s.id FROM unnest($1::text::int[], $2::text::text[]) AS p (i, stream)
    JOIN perdure.streams AS s ON s.stream = p.stream
), cleared AS (
    DELETE FROM perdure.timers AS t USING unnest($3::text::int[], $4::text::text[]) AS c (i, name), moved AS m
    WHERE m.i = c.i AND t.stream = m.id AND t.name = c.name
), timed AS (
    INSERT INTO perdure.timers AS t (stream, name, due_at)
    SELECT m.id, n.name, n.due_at FROM unnest($5::text::int[], $6::text::text[], $7::text::bigint[]) AS n (i, name, due_at)
    JOIN moved AS m ON m.i = n.i ON CONFLICT DO NOTHING
), reset AS (
    INSERT INTO perdure.timers AS t (stream, name, due_at)
    SELECT m.id, n.name, n.due_at FROM unnest($8::text::int[], $9::text::text[], $10::text::bigint[]) AS n (i, name, due_at)
    JOIN moved AS m ON m.i = n.i ON CONFLICT (stream, name) DO UPDATE SET due_at = excluded.due_at
), stored AS (
    INSERT INTO perdure.blobs (hash, media_type, data)
    SELECT b.hash, b.media_type, substring($15::bytea FROM b.start FOR b.size)
    FROM unnest($13::text::text[], $14::text::text[], $16::text::int[], $17::text::int[]) AS b (hash, media_type, start, size)
    ON CONFLICT DO NOTHING
), referred AS (
    INSERT INTO perdure.blob_refs (stream, hash)
    SELECT m.id, r.hash FROM unnest($11::text::int[], $12::text::text[]) AS r (i, hash) JOIN moved AS m ON m.i = r.i
    ON CONFLICT DO NOTHING
), ended AS (
    DELETE FROM perdure.tags AS g USING unnest($24::text::int[]) AS e (i), moved AS m
    WHERE m.i = e.i AND g.stream = m.id AND starts_with(g.tag, 'live:')
)
INSERT INTO perdure.snapshots (stream, seq, code, data)
SELECT m.id, f.seq, f.code, substring($21::bytea FROM f.start FOR f.size)
FROM unnest($18::text::int[], $19::text::bigint[], $20::text::text[], $22::text::int[], $23::text::int[])
    AS f (i, seq, code, start, size)
JOIN moved AS m ON m.i = f.i
ON CONFLICT (stream) DO UPDATE SET seq = excluded.seq, code = excluded.code, data = excluded.data

-- name: admit
-- Many deliveries. A delivery that is missing in the result was not admitted: it is a duplicate or was refused. Rows
-- are inserted in a fixed order, because a concurrent duplicate waits for the first one. An input that does not fit into
-- its queue counts for those after it, which are then judged alone. Columns are passed as text,
-- and all bytes as one value (`columns.py`).
WITH new AS (
    SELECT d.*, substring($9::bytea FROM d.start FOR d.size) AS data
    FROM unnest($1::text::int[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
        $7::text::bigint[], $8::text::bool[], $10::text::int[], $11::text::int[], $12::text::text[], $13::text::text[],
        $14::text::bool[], $30::text::bigint[], $31::text::bigint[], $32::text::bigint[])
        AS d (i, stream, source_key, content, turn, input, at, wakes, start, size, agent, claimer, fresh, input_bytes,
            max_inputs, max_bytes)
), opened AS (
    INSERT INTO perdure.streams (stream, tenant, kind, name, agent, format, last_seq, fence, n, owner, active, parked,
        created_at, updated_at, queue, priority, head)
    SELECT o.stream, o.tenant, o.kind, o.name, o.agent, $20::int, 1,
        coalesce((SELECT g.fence FROM perdure.tombstones AS g WHERE g.stream = o.stream), 0)
            + CASE WHEN o.claimer IS NULL THEN 0 ELSE 1 END,
        0, o.claimer, false, false, $21, $21, o.queue, o.priority, o.head
    FROM unnest($15::text::text[], $16::text::text[], $17::text::text[], $18::text::text[], $19::text::text[],
        $22::text::text[], $28::text::text[], $29::text::int[], $33::text::bytea[])
        AS o (stream, tenant, kind, name, agent, claimer, queue, priority, head)
    WHERE NOT EXISTS (SELECT 1 FROM perdure.streams AS s WHERE s.stream = o.stream)
    ORDER BY o.stream ON CONFLICT (stream) DO NOTHING RETURNING id, stream, agent, owner, fence
), begun AS (
    INSERT INTO perdure.log (stream, seq, at, kind, version, key, fence, n, data, digest)
    SELECT o.id, 1, r.at, r.kind, $20::int, NULL, NULL, NULL, substring($25::bytea FROM r.start FOR r.size), r.digest
    FROM opened AS o JOIN unnest($15::text::text[], $23::text::bigint[], $24::text::text[], $26::text::int[], $27::text::int[],
        $34::text::bytea[]) AS r (stream, at, kind, start, size, digest)
    ON r.stream = o.stream
), target AS (
    SELECT s.id, s.stream, s.agent, false AS opened FROM perdure.streams AS s WHERE s.stream = ANY ($2::text::text[])
    UNION ALL SELECT o.id, o.stream, o.agent, true FROM opened AS o
), waiting AS (
    SELECT t.id, w.inputs, w.bytes FROM (
        SELECT DISTINCT s.id FROM target AS s JOIN new AS l ON l.stream = s.stream WHERE l.max_inputs IS NOT NULL
        ORDER BY s.id
    ) AS t CROSS JOIN LATERAL perdure.waiting(t.id) AS w
), roomy AS (
    SELECT r.i FROM (
        SELECT d.i, d.max_inputs, d.max_bytes,
            w.inputs + count(*) FILTER (WHERE d.input_bytes > 0) OVER earlier AS inputs,
            w.bytes + sum(d.input_bytes) OVER earlier AS bytes
        FROM new AS d JOIN target AS t ON t.stream = d.stream LEFT JOIN waiting AS w ON w.id = t.id
        WINDOW earlier AS (PARTITION BY d.stream ORDER BY d.i)
    ) AS r WHERE r.max_inputs IS NULL OR (r.inputs <= r.max_inputs AND r.bytes <= r.max_bytes)
), known AS (
    INSERT INTO perdure.admissions (stream, source_key, content, turn, input)
    SELECT t.id, d.source_key, d.content, d.turn, d.input FROM new AS d JOIN target AS t ON t.stream = d.stream
    WHERE (d.agent IS NULL OR d.agent = t.agent) AND (t.opened OR NOT d.fresh) AND d.i IN (SELECT r.i FROM roomy AS r)
    ORDER BY d.stream, d.source_key ON CONFLICT DO NOTHING RETURNING stream, source_key
), put AS (
    INSERT INTO perdure.inbox (stream, source_key, at, wakes, input_bytes, data)
    SELECT t.id, d.source_key, d.at, d.wakes, d.input_bytes, d.data
    FROM new AS d JOIN target AS t ON t.stream = d.stream
    JOIN known AS k ON k.stream = t.id AND k.source_key = d.source_key
    ORDER BY d.i RETURNING id, stream, source_key
), taken AS (
    UPDATE perdure.streams AS s SET owner = c.claimer, fence = s.fence + 1, n = 0, takeovers = 0
    FROM (
        SELECT DISTINCT ON (d.stream) d.stream, d.claimer FROM new AS d JOIN target AS t ON t.stream = d.stream
        JOIN known AS k ON k.stream = t.id AND k.source_key = d.source_key
        WHERE d.claimer IS NOT NULL ORDER BY d.stream, d.i
    ) AS c
    WHERE s.stream = c.stream AND s.owner IS NULL AND NOT s.active AND NOT s.parked AND s.paused_at IS NULL
        AND s.format <= $20
    RETURNING s.stream, s.owner, s.fence
)
SELECT d.i, p.id, coalesce(o.owner, g.owner) AS claimer, coalesce(o.fence, g.fence) AS fence, t.opened
FROM new AS d JOIN target AS t ON t.stream = d.stream
JOIN put AS p ON p.stream = t.id AND p.source_key = d.source_key
LEFT JOIN opened AS o ON o.stream = d.stream AND o.owner IS NOT NULL
LEFT JOIN taken AS g ON g.stream = d.stream
ORDER BY d.i

-- name: stream_lock
SELECT id, owner, fence, n, last_seq, format, head FROM perdure.streams WHERE stream = $1 FOR NO KEY UPDATE

-- name: log_insert
INSERT INTO perdure.log (stream, seq, at, kind, version, key, fence, n, data, digest)
SELECT $1, e.seq, e.at, e.kind, e.version, e.key, $2, $3, e.data, e.digest
FROM unnest($4::bigint[], $5::bigint[], $6::text[], $7::int[], $8::text[], $9::bytea[], $10::bytea[])
    AS e (seq, at, kind, version, key, data, digest)

-- name: stream_advance
UPDATE perdure.streams SET last_seq = $2, n = $3, owner = $4, active = $5, parked = $6, format = $7, updated_at = $8, head = $9,
    served_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
WHERE id = $1

-- name: stream_still_stuck
UPDATE perdure.streams SET stuck_seq = $2 WHERE id = $1

-- name: inbox_consume
DELETE FROM perdure.inbox WHERE id = ANY ($1::bigint[]) AND stream = $2 RETURNING id

-- name: log_admitted_between
SELECT seq, at, kind, data, key, version FROM perdure.log
WHERE stream = $1 AND seq > $2 AND seq < $3 AND fence IS NULL ORDER BY seq

-- name: log_of_append
SELECT seq, at, kind, data, key, version FROM perdure.log AS l
WHERE l.stream = $1 AND l.fence = $2 AND l.n = $3 ORDER BY seq

-- name: log_before_append
SELECT coalesce(max(seq), 0) FROM perdure.log WHERE stream = $1 AND fence = $2 AND n < $3

-- name: log_taken
SELECT key, kind FROM perdure.log WHERE stream = $1 AND key = ANY ($2::text[])

-- name: log_find
SELECT l.seq, l.at, l.kind, l.data, l.key, l.version
FROM perdure.streams AS s JOIN perdure.log AS l ON l.stream = s.id AND l.key = $2 WHERE s.stream = $1

-- name: log_count
SELECT count(*) FROM perdure.streams AS s JOIN perdure.log AS l ON l.stream = s.id AND starts_with(l.key, $2) AND l.seq <= $3
WHERE s.stream = $1

-- name: log_rewrite
UPDATE perdure.log SET data = $3, original = $4 WHERE stream = $1 AND seq = $2

-- name: log_one
SELECT seq, at, kind, data, key, version, digest, original FROM perdure.log WHERE stream = $1 AND seq = $2

-- name: log_chained
-- A part of a log with its digests.
SELECT l.seq, l.at, l.kind, l.data, l.key, l.version, l.digest, l.original
FROM perdure.streams AS s JOIN perdure.log AS l ON l.stream = s.id
WHERE s.stream = $1 AND l.seq > $2 AND l.seq <= $3 ORDER BY l.seq LIMIT $4

-- name: stream_head
SELECT last_seq, head FROM perdure.streams WHERE stream = $1

-- name: stream_ends
SELECT stream, last_seq, head FROM perdure.streams WHERE stream = ANY ($1::text::text[])

-- name: stream_names
SELECT stream FROM perdure.streams WHERE stream > $1 ORDER BY stream LIMIT 1000

-- name: log_read
SELECT l.seq, l.at, l.kind, l.data, l.key, l.version
FROM perdure.streams AS s JOIN perdure.log AS l ON l.stream = s.id
WHERE s.stream = $1 AND l.seq > $2 AND l.seq <= $3 ORDER BY l.seq LIMIT $4

-- name: load
-- Snapshot, its row and those after it, the inbox and the end of the log, in one consistent view; `part` distinguishes
-- them.
WITH s AS (
    SELECT id, last_seq, head FROM perdure.streams WHERE stream = $1
), f AS (
    SELECT p.seq, p.code, p.data FROM perdure.snapshots AS p WHERE p.stream = (SELECT id FROM s) AND p.code = $2
)
SELECT 0 AS part, f.seq, 0::bigint AS at, f.code AS kind, f.data, NULL::text AS key, 0 AS version, NULL::bytea AS digest,
    NULL::bytea AS original FROM f
UNION ALL
SELECT 1, l.seq, l.at, l.kind, l.data, l.key, l.version, l.digest, l.original FROM perdure.log AS l
WHERE l.stream = (SELECT id FROM s) AND l.seq >= coalesce((SELECT f.seq FROM f), 0)
UNION ALL
SELECT 3, s.last_seq, 0, '', s.head, NULL, 0, NULL, NULL FROM s
UNION ALL
SELECT 2, i.id, i.at, i.source_key, i.data, NULL, 0, NULL, NULL FROM perdure.inbox AS i WHERE i.stream = (SELECT id FROM s)
ORDER BY 1, 2

-- name: inbox_last
SELECT coalesce(max(id), 0) FROM perdure.inbox WHERE stream = $1

-- name: inbox_read
SELECT i.id, i.source_key, i.data, i.at FROM perdure.streams AS s JOIN perdure.inbox AS i ON i.stream = s.id
WHERE s.stream = $1 ORDER BY i.id

-- name: timer_next
SELECT min(due_at) FROM perdure.timers

-- name: blob_read
SELECT media_type, data FROM perdure.blobs WHERE hash = $1

-- name: blob_read_held
SELECT b.media_type, b.data FROM perdure.blobs AS b JOIN perdure.blob_refs AS r ON r.hash = b.hash
JOIN perdure.streams AS s ON s.id = r.stream WHERE b.hash = $1 AND s.stream = $2

-- name: blobs_put
WITH stored AS (
    INSERT INTO perdure.blobs (hash, media_type, data)
    SELECT b.hash, b.media_type, b.data FROM unnest($2::text[], $3::text[], $4::bytea[]) AS b (hash, media_type, data)
    ON CONFLICT DO NOTHING
)
INSERT INTO perdure.blob_refs (stream, hash) SELECT $1, h FROM unnest($2::text[]) AS h ON CONFLICT DO NOTHING

-- name: blobs_refer
-- Refer to stored bytes that a stream of the tenant refers to, and lock the existing references meanwhile.
WITH known AS (
    SELECT r.hash FROM perdure.blob_refs AS r JOIN perdure.streams AS s ON s.id = r.stream
    WHERE r.hash = ANY ($2::text[]) AND s.tenant = $3 FOR SHARE OF r
), referred AS (
    INSERT INTO perdure.blob_refs (stream, hash) SELECT DISTINCT $1::bigint, k.hash FROM known AS k ON CONFLICT DO NOTHING
)
SELECT DISTINCT hash FROM known

-- name: blobs_unrefer
DELETE FROM perdure.blob_refs WHERE stream = $1 AND hash = ANY ($2::text[])

-- name: blob_owned
SELECT hash FROM perdure.blob_refs WHERE stream = $1 ORDER BY hash

-- name: blob_collect
DELETE FROM perdure.blobs AS b
WHERE b.hash = ANY ($1::text[]) AND NOT EXISTS (SELECT 1 FROM perdure.blob_refs AS r WHERE r.hash = b.hash)

-- name: snapshot_put
INSERT INTO perdure.snapshots (stream, seq, code, data) VALUES ($1, $2, $3, $4)
ON CONFLICT (stream) DO UPDATE SET seq = excluded.seq, code = excluded.code, data = excluded.data

-- name: snapshot_drop
DELETE FROM perdure.snapshots WHERE stream = (SELECT id FROM perdure.streams WHERE stream = $1)

-- name: stream_target
SELECT id, agent FROM perdure.streams WHERE stream = $1

-- name: stream_open
INSERT INTO perdure.streams (stream, tenant, kind, name, agent, format, last_seq, fence, n, owner, active, parked,
    created_at, updated_at, queue, priority, head)
VALUES ($1, $2, $3, $4, $5, $6, $8, coalesce((SELECT fence FROM perdure.tombstones WHERE stream = $1), 0), 0, NULL, false,
    false, $7, $7, $9, $10, $11)
ON CONFLICT (stream) DO NOTHING RETURNING id

-- name: stream_place
UPDATE perdure.streams SET queue = $2, priority = $3 WHERE stream = $1 RETURNING id

-- name: admission_insert
INSERT INTO perdure.admissions (stream, source_key, content, turn, input) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING RETURNING stream

-- name: admissions_put
INSERT INTO perdure.admissions (stream, source_key, content, turn, input)
SELECT $1, a.source_key, a.content, a.turn, a.input
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS a (source_key, content, turn, input)

-- name: outbox_rejections_put
INSERT INTO perdure.outbox_rejections (stream, fence, n, position, verdict, because)
SELECT s.id, v.fence, v.n, v.position, v.verdict, v.because
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::int[], $5::text[], $6::text[])
    AS v (stream, fence, n, position, verdict, because)
JOIN perdure.streams AS s ON s.stream = v.stream

-- name: log_prune
DELETE FROM perdure.log WHERE stream = $1 AND seq = ANY($2::bigint[])

-- name: admissions_prune
DELETE FROM perdure.admissions WHERE stream = $1 AND source_key = ANY($2::text[])

-- name: outbox_rejections_read
SELECT position, verdict, because FROM perdure.outbox_rejections WHERE stream = $1 AND fence = $2 AND n = $3

-- name: admission_find
SELECT content, turn, input FROM perdure.admissions WHERE stream = $1 AND source_key = $2

-- name: admission_insert_counted
-- The waiting inputs before this one. No row is returned if the key is taken.
WITH added AS (
    INSERT INTO perdure.admissions (stream, source_key, content, turn, input) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT DO NOTHING RETURNING stream
)
SELECT w.inputs, w.bytes FROM added AS a CROSS JOIN LATERAL perdure.waiting(a.stream) AS w

-- name: tenant_waiting
SELECT count(*), coalesce(sum(i.input_bytes), 0)::bigint
FROM perdure.inbox AS i JOIN perdure.streams AS s ON s.id = i.stream WHERE s.tenant = $1 AND i.input_bytes > 0

-- name: inbox_insert
INSERT INTO perdure.inbox (stream, source_key, at, wakes, input_bytes, data) VALUES ($1, $2, $3, $4, $5, $6)
RETURNING id

-- name: annotate
-- No row is returned if the stream does not exist or has moved, or the key is taken.
WITH s AS (
    UPDATE perdure.streams AS t SET last_seq = t.last_seq + 1, head = $10, format = greatest(t.format, $4), updated_at = $7
    WHERE t.stream = $1 AND t.last_seq = $8 AND t.head = $9 AND ($5::text IS NULL
        OR NOT EXISTS (SELECT 1 FROM perdure.log AS l WHERE l.stream = t.id AND l.key = $5))
    RETURNING t.id, t.last_seq
)
INSERT INTO perdure.log (stream, seq, at, kind, version, key, fence, n, data, digest)
SELECT s.id, s.last_seq, $2, $3, $4, $5, NULL, NULL, $6, $11 FROM s RETURNING seq

-- name: stream_annotated
UPDATE perdure.streams SET last_seq = $2, format = $3, updated_at = $4, head = $5 WHERE id = $1

-- name: claim_free
-- The stream is unowned or owned by this worker, so no lease has to be checked.
-- A released stream has killed no worker, so takeovers restart at 0.
UPDATE perdure.streams AS s SET owner = $2, fence = s.fence + 1, n = 0,
    takeovers = CASE WHEN o.previous IS NULL THEN 0 ELSE s.takeovers END
FROM (SELECT id, owner AS previous FROM perdure.streams WHERE stream = $1 FOR NO KEY UPDATE) AS o
WHERE s.id = o.id AND s.format <= $3 AND (o.previous = $2 OR (o.previous IS NULL AND s.paused_at IS NULL))
RETURNING s.fence, s.last_seq, o.previous, s.parked, CASE WHEN s.takeovers > 0 AND s.stuck_seq = coalesce((
    SELECT l.seq FROM perdure.log AS l WHERE l.stream = s.id AND l.fence IS NOT NULL ORDER BY l.seq DESC LIMIT 1
), 0) THEN s.takeovers ELSE 0 END AS takeovers

-- name: stream_left_waiting
-- Neglected: the stream is idle, and an inbox row has waited for two seconds while the owner wrote nothing. An owner
-- that has not written since its claim (n = 0) is just starting and keeps the stream.
SELECT s.id FROM perdure.streams AS s, (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 2000 AS waited) AS c
WHERE s.stream = $1 AND NOT s.active AND NOT s.parked AND s.n > 0 AND s.served_at <= c.waited
    AND EXISTS (SELECT 1 FROM perdure.inbox AS i WHERE i.stream = s.id AND i.came_at <= c.waited)

-- name: stream_holder
-- The owner, and whether it neglects the stream.
SELECT EXISTS ({stream_left_waiting}) AS left_waiting, {worker_cells}
FROM perdure.streams AS s JOIN perdure.workers AS w ON w.id = s.owner WHERE s.stream = $1

-- name: stream_ownership
SELECT id, owner, fence, last_seq, format, active, parked, paused_at FROM perdure.streams WHERE stream = $1
FOR NO KEY UPDATE

-- name: stream_taken_over
UPDATE perdure.streams AS s SET takeovers = CASE WHEN s.stuck_seq = o.seq THEN s.takeovers + 1 ELSE 1 END, stuck_seq = o.seq
FROM (SELECT coalesce((
    SELECT l.seq FROM perdure.log AS l WHERE l.stream = $1 AND l.fence IS NOT NULL ORDER BY l.seq DESC LIMIT 1
), 0) AS seq) AS o
WHERE s.id = $1 RETURNING s.takeovers

-- name: stream_claim
UPDATE perdure.streams SET owner = $2, fence = fence + 1, n = 0,
    takeovers = CASE WHEN owner IS NULL THEN 0 ELSE takeovers END
WHERE id = $1

-- name: stream_pause
UPDATE perdure.streams SET paused_at = $2, paused_by = $3 WHERE id = $1

-- name: stream_take_back
UPDATE perdure.streams SET owner = NULL, fence = fence + 1, n = 0 WHERE id = $1 AND NOT active

-- name: stream_keep
-- Lock an existing stream against deletion until the end of the transaction.
SELECT id FROM perdure.streams WHERE stream = $1 FOR KEY SHARE

-- name: stream_remove
SELECT id, fence FROM perdure.streams WHERE stream = $1 FOR UPDATE

-- name: log_delete
DELETE FROM perdure.log WHERE stream = $1

-- name: stream_delete
DELETE FROM perdure.streams WHERE id = $1

-- name: tombstone_find
SELECT fence FROM perdure.tombstones WHERE stream = $1

-- name: tombstone_put
INSERT INTO perdure.tombstones (stream, fence) VALUES ($1, $2) ON CONFLICT (stream) DO UPDATE SET fence = excluded.fence

-- name: promises_lock
-- Taken before a promise is created or resolved, and before a stream waits for one, so that no wake is lost.
SELECT pg_advisory_xact_lock(h) FROM (
    SELECT DISTINCT hashtextextended('perdure promise ' || p, 0) AS h FROM unnest($1::text[]) AS p ORDER BY 1
) AS sorted

-- name: promises_watch
SELECT pg_advisory_xact_lock_shared(h) FROM (
    SELECT DISTINCT hashtextextended('perdure promise ' || p, 0) AS h FROM unnest($1::text[]) AS p ORDER BY 1
) AS sorted

-- name: promise_insert
INSERT INTO perdure.promises (id, stream, resolution, deadline_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING

-- name: promise_ask
INSERT INTO perdure.promises (id, stream, deadline_at, request_kind, requested_at, tenant) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING

-- name: promise_read
SELECT p.id, s.stream, p.resolution, p.deadline_at, p.request_kind, p.requested_at, p.consumed_at
FROM perdure.promises AS p JOIN perdure.streams AS s ON s.id = p.stream WHERE p.id = $1

-- name: promises_requested
SELECT p.id, s.stream, p.resolution, p.deadline_at, p.request_kind, p.requested_at, p.consumed_at
FROM perdure.promises AS p JOIN perdure.streams AS s ON s.id = p.stream
WHERE p.tenant = $1 AND p.request_kind <> '' AND p.resolution IS NULL AND (p.requested_at, p.id) > ($2, $3)
ORDER BY p.requested_at, p.id LIMIT $4

-- name: promises_requested_as
SELECT p.id, s.stream, p.resolution, p.deadline_at, p.request_kind, p.requested_at, p.consumed_at
FROM perdure.promises AS p JOIN perdure.streams AS s ON s.id = p.stream
WHERE p.id >= $1 AND p.id < $2 AND p.tenant = $3 AND p.request_kind <> '' ORDER BY p.id LIMIT $4

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: promises_answered
SELECT id, resolution FROM perdure.promises WHERE id = ANY ($1::text[]) AND resolution IS NOT NULL

-- name: promise_resolve
UPDATE perdure.promises SET resolution = $2 WHERE id = $1 AND resolution IS NULL
    AND (deadline_at IS NULL OR deadline_at > (extract(epoch FROM clock_timestamp()) * 1000)::bigint) RETURNING id

-- name: promise_lapse
UPDATE perdure.promises SET resolution = $2 WHERE id = $1 AND resolution IS NULL

-- name: promise_use
UPDATE perdure.promises SET consumed_at = $2 WHERE id = $1

-- name: promise_rewrite
UPDATE perdure.promises SET resolution = $3 WHERE id = $1 AND stream = $2 AND resolution IS NOT NULL

-- name: promise_owned
SELECT p.id FROM perdure.streams AS s JOIN perdure.promises AS p ON p.stream = s.id WHERE s.stream = $1 ORDER BY p.id

-- name: promise_wake
WITH woken AS (DELETE FROM perdure.waits WHERE promise = $1 RETURNING stream)
INSERT INTO perdure.inbox (stream, source_key, at, wakes, data) SELECT stream, $2, $3, $4, $5 FROM woken ORDER BY stream

-- name: wait_insert
INSERT INTO perdure.waits (promise, stream) SELECT p, $1 FROM unnest($2::text[]) AS p ON CONFLICT DO NOTHING

-- name: worker_put
INSERT INTO perdure.workers AS w (id, pid, version, started_at, lease_until, boot, lock, host, lease_ms, concurrency,
    queues)
VALUES ($1, $2, $3, $4, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $5, $6, $7, $8, $5, $9, $10)
ON CONFLICT (id) DO UPDATE SET pid = excluded.pid, version = excluded.version, started_at = excluded.started_at,
    lease_until = excluded.lease_until, boot = excluded.boot, lock = excluded.lock, host = excluded.host,
    lease_ms = excluded.lease_ms, concurrency = excluded.concurrency, queues = excluded.queues

-- name: worker_renew
UPDATE perdure.workers SET lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2 WHERE id = $1
RETURNING id

-- name: worker_cells
-- excused: within one lease after the server's start, a worker may have been unable to renew its lease.
w.id, w.pid, w.version, w.started_at, w.lease_until, w.boot, w.lock, w.host,
    w.lease_until - (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS lease_left, w.lease_ms, w.concurrency, w.queues,
    (extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) * 1000)::bigint < w.lease_ms AS excused

-- name: worker_read
SELECT {worker_cells} FROM perdure.workers AS w WHERE w.id = $1

-- name: worker_list
SELECT {worker_cells} FROM perdure.workers AS w ORDER BY w.started_at, w.id

-- name: worker_living
-- Workers with a valid lease, and excused workers. All live workers are among these.
SELECT {worker_cells} FROM perdure.workers AS w
WHERE greatest(w.lease_until, (extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint + w.lease_ms)
    > (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: permits_lock
SELECT pg_advisory_xact_lock(h) FROM (
    SELECT DISTINCT hashtextextended('perdure permit ' || p, 0) AS h FROM unnest($1::text[]) AS p ORDER BY 1
) AS sorted

-- name: permits_read
SELECT name, holder, worker, at, granted FROM perdure.permits WHERE $1::text[] IS NULL OR name = ANY ($1) ORDER BY id

-- name: permits_put
INSERT INTO perdure.permits (name, holder, worker, at, granted)
SELECT p.name, p.holder, $1, $2, p.granted
FROM unnest($3::text[], $4::text[], $5::bool[]) WITH ORDINALITY AS p (name, holder, granted, position) ORDER BY p.position
ON CONFLICT (worker, name, holder) DO UPDATE SET granted = excluded.granted

-- name: permits_end
DELETE FROM perdure.permits WHERE worker = $1 AND holder = ANY ($2::text[])

-- name: worker_loads
SELECT owner, count(*), count(*) FILTER (WHERE active) FROM perdure.streams WHERE owner IS NOT NULL GROUP BY owner

-- name: worker_free
UPDATE perdure.streams SET owner = NULL WHERE owner = $1

-- name: worker_remove
DELETE FROM perdure.workers WHERE id = $1

-- name: worker_let_go
-- Release the streams of dead workers that have no work.
UPDATE perdure.streams SET owner = NULL WHERE id IN (
    SELECT s.id FROM perdure.streams AS s WHERE s.owner = ANY ($1::text[]) AND NOT s.active AND NOT s.parked
        AND NOT EXISTS (SELECT 1 FROM perdure.inbox AS i WHERE i.stream = s.id)
        AND NOT EXISTS (SELECT 1 FROM perdure.timers AS t WHERE t.stream = s.id)
    ORDER BY s.id LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED
)

-- name: worker_forget
DELETE FROM perdure.workers AS w
WHERE w.id = ANY ($1::text[]) AND NOT EXISTS (SELECT 1 FROM perdure.streams AS s WHERE s.owner = w.id) RETURNING w.id

-- name: worker_lapse
-- The lease ends now, which is also the last heartbeat.
UPDATE perdure.workers SET lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, lease_ms = 0 WHERE id = $1

-- name: work
-- All work: stream, arrival time, and whether an inbox row has waited too long for the owner.
-- The lower bound of timers is for the planner: for a range it expects few rows and uses the index at any time.
SELECT i.stream AS id, i.came_at AS at,
    i.came_at <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 2000 AS waited
FROM perdure.inbox AS i JOIN perdure.streams AS p ON p.id = i.stream
WHERE i.wakes OR NOT p.parked
UNION ALL SELECT t.stream, t.due_at, false FROM perdure.timers AS t WHERE t.due_at BETWEEN -9223372036854775807 AND $1
UNION ALL SELECT o.id, o.served_at, false FROM perdure.streams AS o
WHERE o.active AND (o.owner IS NULL OR o.owner <> ALL ($4::text[]))

-- name: work_of
-- The work of a few streams. The cost depends only on the number of these streams: `OFFSET 0` makes the planner look up
-- each by name.
SELECT k.* FROM unnest($15::text[]) AS n (stream) CROSS JOIN LATERAL (
    SELECT p.id, p.active, p.parked, p.owner, p.served_at FROM perdure.streams AS p WHERE p.stream = n.stream OFFSET 0
) AS p CROSS JOIN LATERAL (
    SELECT i.stream AS id, i.came_at AS at,
        i.came_at <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 2000 AS waited
    FROM perdure.inbox AS i WHERE i.stream = p.id AND (i.wakes OR NOT p.parked)
    UNION ALL SELECT t.stream, t.due_at, false FROM perdure.timers AS t WHERE t.stream = p.id AND t.due_at <= $1
    UNION ALL SELECT p.id, p.served_at, false WHERE p.active AND (p.owner IS NULL OR p.owner <> ALL ($4::text[]))
) AS k

-- name: ready
-- Streams with work that a worker may drive, with ready time and round within the tenant. The list of live workers does
-- not contain this worker, so its own streams are included. The list of excluded streams contains those that it drives.
SELECT w.*, row_number() OVER (PARTITION BY w.priority, w.tenant ORDER BY w.since, w.id) AS round FROM (
    SELECT s.id, s.tenant, coalesce(s.priority, a.priority, 0) AS priority,
        coalesce(s.queue, a.queue, 'default') AS queue, greatest(s.served_at, min(k.at)) AS since
    FROM ({work}) AS k JOIN perdure.streams AS s ON s.id = k.id
    LEFT JOIN unnest($6::text[], $7::text[], $8::text::int[]) AS a (agent, queue, priority) ON a.agent = s.agent
    WHERE s.paused_at IS NULL AND s.format <= $2 AND ($5::text IS NULL OR s.tenant = $5) AND ($6::text[] IS NULL OR a.agent IS NOT NULL)
        AND s.stream <> ALL ($10::text[]) AND (
            s.owner IS NULL OR s.owner <> ALL ($4::text[])
            OR (k.waited AND NOT s.active AND NOT s.parked AND s.n > 0
                AND s.served_at <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 2000)
        ) AND ($12 = 'also' OR ($12 = 'only') = (
            s.owner IS NOT NULL AND s.owner <> $3 AND s.takeovers > 0 AND s.stuck_seq = coalesce((
                SELECT l.seq FROM perdure.log AS l WHERE l.stream = s.id AND l.fence IS NOT NULL ORDER BY l.seq DESC LIMIT 1
            ), 0)
        ))
    GROUP BY s.id, a.priority, a.queue
) AS w WHERE ($9::text[] IS NULL OR w.queue = ANY ($9)) AND w.queue <> ALL ($11::text[])

-- name: claimable
SELECT s.stream FROM ({ready}) AS r JOIN perdure.streams AS s ON s.id = r.id
ORDER BY r.priority DESC, r.round, coalesce(array_position($13::text[], r.tenant), 0), r.since, r.id LIMIT $14

-- name: claim_ready
-- Streams that a concurrent statement is claiming are skipped; unowned streams are claimed at once.
WITH picked AS (
    SELECT s.id, s.stream, s.owner, r.queue, r.priority, r.round, r.tenant, r.since
    FROM ({ready}) AS r JOIN perdure.streams AS s ON s.id = r.id
    WHERE s.paused_at IS NULL
        AND (s.owner IS NULL OR s.owner <> ALL ($4::text[])
            OR (NOT s.active AND NOT s.parked AND s.n > 0))
    ORDER BY r.priority DESC, r.round, coalesce(array_position($13::text[], r.tenant), 0), r.since, r.id LIMIT $14
    FOR NO KEY UPDATE OF s SKIP LOCKED
), taken AS (
    UPDATE perdure.streams AS s SET owner = $3, fence = s.fence + 1, n = 0, takeovers = 0 FROM picked AS p
    WHERE s.id = p.id AND p.owner IS NULL RETURNING s.id, s.fence, s.last_seq, s.parked
)
SELECT p.stream, p.queue, t.fence, t.last_seq, t.parked FROM picked AS p LEFT JOIN taken AS t ON t.id = p.id
ORDER BY p.priority DESC, p.round, coalesce(array_position($13::text[], p.tenant), 0), p.since, p.id

-- name: stream_read
-- Reads several streams, because concurrent reads are batched.
SELECT s.stream, s.tenant, s.kind, s.name, s.agent, s.last_seq, s.fence, s.owner, s.active, s.parked,
    (SELECT count(*) FROM perdure.inbox AS i WHERE i.stream = s.id) AS waiting, s.created_at, s.updated_at,
    (SELECT t.title FROM perdure.titles AS t WHERE t.stream = s.id) AS title,
    ARRAY(SELECT g.tag FROM perdure.tags AS g WHERE g.stream = s.id ORDER BY g.tag) AS tags,
    s.paused_at, s.paused_by, s.queue, s.priority, s.id,
    {worker_cells}
FROM perdure.streams AS s LEFT JOIN perdure.workers AS w ON w.id = s.owner WHERE s.stream = ANY ($1::text::text[])

-- name: stream_list
SELECT s.stream, s.tenant, s.kind, s.name, s.agent, s.last_seq, s.fence, s.owner, s.active, s.parked,
    (SELECT count(*) FROM perdure.inbox AS i WHERE i.stream = s.id) AS waiting, s.created_at, s.updated_at,
    (SELECT t.title FROM perdure.titles AS t WHERE t.stream = s.id) AS title,
    ARRAY(SELECT g.tag FROM perdure.tags AS g WHERE g.stream = s.id ORDER BY g.tag) AS tags,
    s.paused_at, s.paused_by, s.queue, s.priority, s.id
FROM perdure.streams AS s
WHERE s.tenant = $1 AND s.kind = $2 AND (s.updated_at, s.stream) < ($3, $4)
ORDER BY s.updated_at DESC, s.stream DESC LIMIT $5

-- name: stream_list_tagged
SELECT s.stream, s.tenant, s.kind, s.name, s.agent, s.last_seq, s.fence, s.owner, s.active, s.parked,
    (SELECT count(*) FROM perdure.inbox AS i WHERE i.stream = s.id) AS waiting, s.created_at, s.updated_at,
    (SELECT t.title FROM perdure.titles AS t WHERE t.stream = s.id) AS title,
    ARRAY(SELECT g.tag FROM perdure.tags AS g WHERE g.stream = s.id ORDER BY g.tag) AS tags,
    s.paused_at, s.paused_by, s.queue, s.priority, s.id
FROM perdure.tags AS wanted JOIN perdure.streams AS s ON s.id = wanted.stream
WHERE wanted.tenant = $1 AND wanted.tag = $6 AND s.kind = $2 AND (s.updated_at, s.stream) < ($3, $4)
ORDER BY s.updated_at DESC, s.stream DESC LIMIT $5

-- name: stream_newest
-- The tag is a range, so that only the index beginning with it provides the order. `OFFSET 0` prevents a plan that
-- reads all streams in order.
SELECT s.stream, s.tenant, s.kind, s.name, s.agent, s.last_seq, s.fence, s.owner, s.active, s.parked,
    (SELECT count(*) FROM perdure.inbox AS i WHERE i.stream = s.id) AS waiting, s.created_at, s.updated_at,
    (SELECT t.title FROM perdure.titles AS t WHERE t.stream = s.id) AS title,
    ARRAY(SELECT g.tag FROM perdure.tags AS g WHERE g.stream = s.id ORDER BY g.tag) AS tags,
    s.paused_at, s.paused_by, s.queue, s.priority, s.id
FROM perdure.tags AS wanted CROSS JOIN LATERAL (
    SELECT x.* FROM perdure.streams AS x
    WHERE x.id = wanted.stream AND x.kind = $2 AND ($5::text IS NULL OR x.agent = $5) OFFSET 0
) AS s
WHERE wanted.tenant = $1 AND wanted.tag >= $3 AND (wanted.tag, wanted.stream) < ($3, $4)
ORDER BY wanted.tag DESC, wanted.stream DESC LIMIT $6

-- name: log_marks
SELECT s.stream, l.seq, l.at, l.kind, l.data, l.key, l.version
FROM perdure.streams AS s JOIN perdure.log AS l ON l.stream = s.id AND l.seq = 1 WHERE s.stream = ANY ($1::text[])
UNION ALL SELECT s.stream, l.seq, l.at, l.kind, l.data, l.key, l.version
FROM perdure.streams AS s JOIN perdure.log AS l ON l.stream = s.id AND l.key = $2 WHERE s.stream = ANY ($1::text[])

-- name: stream_heads
SELECT s.stream, s.id, s.created_at, s.last_seq FROM perdure.streams AS s WHERE s.stream = ANY ($1::text::text[])

-- name: title_put
INSERT INTO perdure.titles (stream, title) VALUES ($1, $2) ON CONFLICT (stream) DO UPDATE SET title = excluded.title

-- name: tags_clear
DELETE FROM perdure.tags WHERE stream = $1

-- name: tags_put
-- An ended stream gets no tag that begins with `live:`.
INSERT INTO perdure.tags (tenant, tag, stream) SELECT $1, t, $2 FROM unnest($3::text[]) AS t
WHERE NOT (starts_with(t, 'live:')
    AND EXISTS (SELECT 1 FROM perdure.log AS l WHERE l.stream = $2 AND l.key = 'process:end'))
ON CONFLICT DO NOTHING

-- name: tags_drop
DELETE FROM perdure.tags WHERE stream = $1 AND tag = ANY ($2::text[])

-- name: tags_end
DELETE FROM perdure.tags WHERE stream = $1 AND starts_with(tag, 'live:')

-- name: tags_cut
DELETE FROM perdure.tags WHERE tenant = $1 AND tag >= $2 AND tag < $3

-- name: stream_unfinished
SELECT owner, count(*) FROM perdure.streams WHERE active GROUP BY owner

-- name: secret
WITH made AS (INSERT INTO perdure.secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING value)
SELECT value FROM made UNION ALL SELECT value FROM perdure.secrets WHERE name = $1

-- name: announce
SELECT p.commit_counter, pg_notify($1, $2 || ' ' || p.commit_counter) FROM (SELECT nextval('perdure.commit_counter') AS commit_counter) AS p

-- name: commit_counter_read
-- A new sequence has the last value 1 before its first use.
SELECT last_value - (NOT is_called)::int FROM perdure.commit_counter

-- name: settings_read
SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')

-- name: log_lost
-- A loose index scan from stream to stream: the number of steps depends on streams, not on records.
WITH RECURSIVE logged AS (
    (SELECT stream FROM perdure.log ORDER BY stream LIMIT 1)
    UNION ALL
    SELECT (SELECT l.stream FROM perdure.log AS l WHERE l.stream > g.stream ORDER BY l.stream LIMIT 1)
    FROM logged AS g WHERE g.stream IS NOT NULL
)
SELECT count(*) FROM logged AS g
WHERE g.stream IS NOT NULL AND NOT EXISTS (SELECT 1 FROM perdure.streams AS s WHERE s.id = g.stream)

-- name: log_holes
SELECT count(*) FROM perdure.streams AS s
WHERE s.last_seq <> coalesce((SELECT max(l.seq) FROM perdure.log AS l WHERE l.stream = s.id), 0)

-- name: store_exists
SELECT to_regclass('perdure.store') IS NOT NULL, pg_is_in_recovery() OR current_setting('transaction_read_only')::bool,
    (SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = $1 AND c.relkind IN ('r', 'v', 'S'))

-- name: store_read
SELECT id, version, min_code_schema FROM perdure.store

-- name: store_write
INSERT INTO perdure.store (id, version, min_code_schema) VALUES (replace(gen_random_uuid()::text, '-', ''), $1, $2)
ON CONFLICT (one) DO UPDATE SET version = excluded.version, min_code_schema = excluded.min_code_schema

-- name: store_rights
SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' AND NOT (
    has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
    AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
) ORDER BY 1

-- name: migration_lock
SELECT pg_advisory_xact_lock(hashtextextended('perdure migration ' || $1::text, 0))

-- name: live_put
WITH over AS (
    DELETE FROM perdure.live AS l USING unnest($1::text::text[], $2::text::bigint[]) AS o (stream, run)
    WHERE l.stream = o.stream AND l.run <= o.run
), old AS (
    DELETE FROM perdure.live WHERE at < $12
)
INSERT INTO perdure.live (stream, turn, effect, run, seq, start, text, thinking, at)
SELECT p.*, $11 FROM unnest($3::text::text[], $4::text::text[], $5::text::text[], $6::text::bigint[], $7::text::bigint[],
    $8::text::int[], $9::text::text[], $10::text::bool[]) AS p

-- name: live_read
SELECT turn, effect, run, seq, start, text, thinking FROM perdure.live WHERE stream = $1 ORDER BY run, seq, start

-- name: live_forget
DELETE FROM perdure.live WHERE stream = $1
