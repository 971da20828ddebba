-- All statements of the store by name; the hot ones are first.

-- name: stream_state
SELECT id, owner, fence, n, last_seq, format, head FROM streams WHERE stream = ?

-- name: log_insert
INSERT INTO log (stream, seq, at, kind, version, key, fence, n, data, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: stream_advance
UPDATE streams SET last_seq = ?, head = ?, n = ?, owner = ?, active = ?, parked = ?, format = ?, updated_at = ?,
    served_at = ? WHERE id = ?

-- name: stream_still_stuck
UPDATE streams SET stuck_seq = ? WHERE id = ?

-- name: inbox_consume
DELETE FROM inbox WHERE id = ? AND stream = ?

-- name: log_admitted_between
SELECT seq, at, kind, data, key, version FROM log
WHERE stream = ? AND seq > ? AND seq < ? AND fence IS NULL ORDER BY seq

-- name: log_of_append
SELECT seq, at, kind, data, key, version FROM log
WHERE stream = ? AND fence = ? AND n = ? ORDER BY seq

-- name: log_before_append
SELECT coalesce(max(seq), 0) FROM log WHERE stream = ? AND fence = ? AND n < ?

-- name: log_find
SELECT l.seq, l.at, l.kind, l.data, l.key, l.version
FROM streams AS s JOIN log AS l ON l.stream = s.id AND l.key = ? WHERE s.stream = ?

-- name: log_count
SELECT count(*) FROM streams AS s JOIN log AS l ON l.stream = s.id AND l.key >= ? AND l.key < ? AND l.seq <= ?
WHERE s.stream = ?

-- name: log_rewrite
UPDATE log SET data = ?, original = ? WHERE stream = ? AND seq = ?

-- name: log_one
SELECT seq, at, kind, data, key, version, digest, original FROM log WHERE stream = ? AND seq = ?

-- name: log_chained
-- A part of a log with its digests.
SELECT l.seq, l.at, l.kind, l.data, l.key, l.version, l.digest, l.original
FROM streams AS s JOIN log AS l ON l.stream = s.id
WHERE s.stream = ? AND l.seq > ? AND l.seq <= ? ORDER BY l.seq LIMIT ?

-- name: log_read
SELECT l.seq, l.at, l.kind, l.data, l.key, l.version
FROM streams AS s JOIN log AS l ON l.stream = s.id
WHERE s.stream = ? AND l.seq > ? AND l.seq <= ? ORDER BY l.seq LIMIT ?

-- name: timer_set
INSERT INTO timers (stream, name, due_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: timer_clear
DELETE FROM timers WHERE stream = ? AND name = ?

-- name: timer_next
SELECT min(due_at) FROM timers

-- name: blob_find
SELECT id FROM blobs WHERE hash = ?

-- name: blob_insert
INSERT INTO blobs (hash, media_type, data) VALUES (?, ?, ?)

-- name: blob_refer
INSERT INTO blob_refs (stream, blob) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: blob_of_tenant
SELECT b.id FROM blobs AS b JOIN blob_refs AS r ON r.blob = b.id JOIN streams AS s ON s.id = r.stream
WHERE b.hash = ? AND s.tenant = ? LIMIT 1

-- name: blob_unrefer
DELETE FROM blob_refs WHERE stream = ? AND blob = ?

-- name: blob_size
SELECT length(data) FROM blobs WHERE hash = ?

-- name: blob_read
SELECT media_type, data FROM blobs WHERE hash = ?

-- name: blob_read_held
SELECT b.media_type, b.data FROM blobs b JOIN blob_refs r ON r.blob = b.id JOIN streams s ON s.id = r.stream
WHERE b.hash = ? AND s.stream = ?

-- name: blob_owned
SELECT blob FROM blob_refs WHERE stream = ?

-- name: blob_collect
DELETE FROM blobs WHERE id = ? AND NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob = blobs.id)

-- name: snapshot_put
INSERT INTO snapshots (stream, seq, code, data) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seq = excluded.seq, code = excluded.code, data = excluded.data

-- name: stream_load
-- The end of a log and the snapshot of a code version.
SELECT s.last_seq, s.head, p.seq, p.code, p.data
FROM streams AS s LEFT JOIN snapshots AS p ON p.stream = s.id AND p.code = ? WHERE s.stream = ?

-- name: snapshot_read
SELECT p.seq, p.code, p.data FROM streams AS s JOIN snapshots AS p ON p.stream = s.id
WHERE s.stream = ? AND p.code = ?

-- name: snapshot_drop
DELETE FROM snapshots WHERE stream = (SELECT id FROM streams WHERE stream = ?)

-- name: stream_open
INSERT INTO streams (stream, tenant, kind, name, agent, format, last_seq, fence, n, owner, active, parked, created_at,
    updated_at, queue, priority)
VALUES (:stream, :tenant, :kind, :name, :agent, :format, 0,
        coalesce((SELECT fence FROM tombstones WHERE stream = :stream), 0), 0, NULL, 0, 0, :now, :now, :queue, :priority)

-- name: stream_place
UPDATE streams SET queue = ?, priority = ? WHERE stream = ?

-- name: stream_target
SELECT id, agent FROM streams WHERE stream = ?

-- name: stream_target_waiting
-- The target with its waiting inputs, for a delivery to a queue with a limit.
SELECT s.id, s.agent, count(i.id), coalesce(sum(i.input_bytes), 0)
FROM streams AS s LEFT JOIN inbox AS i ON i.stream = s.id AND i.input_bytes > 0 WHERE s.stream = ? GROUP BY s.id

-- name: tenant_waiting
SELECT count(*), coalesce(sum(i.input_bytes), 0)
FROM inbox AS i JOIN streams AS s ON s.id = i.stream WHERE s.tenant = ? AND i.input_bytes > 0

-- name: stream_annotated
UPDATE streams SET last_seq = ?, head = ?, format = ?, updated_at = ? WHERE id = ?

-- name: stream_ownership
SELECT id, owner, fence, last_seq, format, active, parked, paused_at FROM streams WHERE stream = ?

-- name: stream_left_waiting
-- Neglected: the stream is idle, and an inbox row has waited for two seconds while the owner wrote nothing. An owner
-- that has not written since its claim (n = 0) is just starting and keeps the stream.
SELECT 1 FROM streams AS s WHERE s.id = :id AND s.active = 0 AND s.parked = 0 AND s.n > 0 AND s.served_at <= :waited
    AND EXISTS (SELECT 1 FROM inbox AS i WHERE i.stream = s.id AND i.came_at <= :waited)

-- name: stream_stuck
SELECT takeovers, stuck_seq,
    coalesce((SELECT seq FROM log WHERE stream = s.id AND fence IS NOT NULL ORDER BY seq DESC LIMIT 1), 0)
FROM streams AS s WHERE id = ?

-- name: stream_taken_over
UPDATE streams SET takeovers = ?, stuck_seq = ? WHERE id = ?

-- name: stream_claim
-- A released stream has killed no worker, so takeovers restart at 0.
UPDATE streams SET takeovers = CASE WHEN owner IS NULL THEN 0 ELSE takeovers END, owner = ?, fence = fence + 1, n = 0
WHERE id = ?

-- name: stream_pause
UPDATE streams SET paused_at = ?, paused_by = ? WHERE id = ?

-- name: stream_take_back
UPDATE streams SET owner = NULL, fence = fence + 1, n = 0 WHERE id = ? AND active = 0

-- name: stream_delete
DELETE FROM streams WHERE id = ?

-- name: tombstone_find
SELECT fence FROM tombstones WHERE stream = ?

-- name: tombstone_put
INSERT INTO tombstones (stream, fence) VALUES (?, ?) ON CONFLICT DO UPDATE SET fence = excluded.fence

-- name: admission_find
SELECT content, turn, input FROM admissions WHERE stream = ? AND source_key = ?

-- name: admission_insert
INSERT INTO admissions (stream, source_key, content, turn, input) VALUES (?, ?, ?, ?, ?)

-- name: inbox_insert
INSERT INTO inbox (stream, source_key, at, came_at, wakes, input_bytes, data) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: inbox_last
SELECT coalesce(max(id), 0) FROM inbox WHERE stream = ?

-- name: inbox_some
SELECT 1 FROM inbox WHERE stream = ? LIMIT 1

-- name: inbox_read
SELECT i.id, i.source_key, i.data, i.at FROM streams AS s JOIN inbox AS i ON i.stream = s.id
WHERE s.stream = ? ORDER BY i.id

-- name: outbox_rejection_insert
INSERT INTO outbox_rejections (stream, fence, n, position, verdict, because) VALUES (?, ?, ?, ?, ?, ?)

-- name: log_prune
DELETE FROM log WHERE stream = ? AND seq = ?

-- name: admission_prune
DELETE FROM admissions WHERE stream = ? AND source_key = ?

-- name: outbox_rejections_read
SELECT position, verdict, because FROM outbox_rejections WHERE stream = ? AND fence = ? AND n = ?

-- name: promise_insert
INSERT INTO promises (id, stream, resolution, deadline_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: promise_ask
INSERT INTO promises (id, stream, deadline_at, request_kind, requested_at, tenant) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: promise_read
SELECT p.id, s.stream, p.resolution, p.deadline_at, p.request_kind, p.requested_at, p.consumed_at
FROM promises AS p JOIN streams AS s ON s.id = p.stream WHERE p.id = ?

-- name: promises_requested
SELECT p.id, s.stream, p.resolution, p.deadline_at, p.request_kind, p.requested_at, p.consumed_at
FROM promises AS p JOIN streams AS s ON s.id = p.stream
WHERE p.tenant = ? AND p.request_kind <> '' AND p.resolution IS NULL AND (p.requested_at, p.id) > (?, ?)
ORDER BY p.requested_at, p.id LIMIT ?

-- name: promises_requested_as
SELECT p.id, s.stream, p.resolution, p.deadline_at, p.request_kind, p.requested_at, p.consumed_at
FROM promises AS p JOIN streams AS s ON s.id = p.stream
WHERE p.id >= ? AND p.id < ? AND p.tenant = ? AND p.request_kind <> '' ORDER BY p.id LIMIT ?

-- name: promise_resolve
UPDATE promises SET resolution = ? WHERE id = ? AND resolution IS NULL AND (deadline_at IS NULL OR deadline_at > ?)

-- name: promise_lapse
UPDATE promises SET resolution = ? WHERE id = ? AND resolution IS NULL

-- name: promise_use
UPDATE promises SET consumed_at = ? WHERE id = ?

-- name: promise_rewrite
UPDATE promises SET resolution = ? WHERE id = ? AND stream = ? AND resolution IS NOT NULL

-- name: promise_owned
SELECT id FROM promises WHERE stream = ?

-- name: wait_insert
INSERT INTO waits (promise, stream) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: wait_streams
SELECT s.id, s.stream FROM waits AS w JOIN streams AS s ON s.id = w.stream WHERE w.promise = ? ORDER BY s.id

-- name: wait_end
DELETE FROM waits WHERE promise = ?

-- name: worker_put
INSERT INTO workers (id, pid, version, started_at, lease_until, boot, locked, host, lease_ms, concurrency, queues)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET pid = excluded.pid, version = excluded.version, started_at = excluded.started_at,
    lease_until = excluded.lease_until, boot = excluded.boot, locked = excluded.locked, host = excluded.host,
    lease_ms = excluded.lease_ms, concurrency = excluded.concurrency, queues = excluded.queues

-- name: worker_renew
UPDATE workers SET lease_until = ?, boot = ? WHERE id = ?

-- name: worker_read
SELECT id, pid, version, started_at, lease_until, boot, locked, host, lease_ms, concurrency, queues FROM workers
WHERE id = ?

-- name: worker_list
SELECT id, pid, version, started_at, lease_until, boot, locked, host, lease_ms, concurrency, queues FROM workers
ORDER BY started_at, id

-- name: worker_loads
SELECT owner, count(*), sum(active) FROM streams WHERE owner IS NOT NULL GROUP BY owner

-- name: worker_free
UPDATE streams SET owner = NULL WHERE owner = ?

-- name: worker_remove
DELETE FROM workers WHERE id = ?

-- name: worker_lapse
-- The lease ends now, which is also the last heartbeat.
UPDATE workers SET lease_until = ?, lease_ms = 0 WHERE id = ?

-- name: worker_let_go
-- Release the streams of dead workers that have no work.
UPDATE streams SET owner = NULL WHERE owner = ? AND active = 0 AND parked = 0
    AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.stream = streams.id)
    AND NOT EXISTS (SELECT 1 FROM timers WHERE timers.stream = streams.id)

-- name: worker_owns
SELECT 1 FROM streams WHERE owner = ? LIMIT 1

-- name: permit_read
SELECT name, holder, worker, at, granted FROM permits ORDER BY id

-- name: permit_put
INSERT INTO permits (name, holder, worker, at, granted) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (worker, name, holder) DO UPDATE SET granted = excluded.granted

-- name: permit_end
DELETE FROM permits WHERE worker = ? AND holder = ?

-- name: work
-- All work: stream, arrival time, and whether an inbox row has waited too long for the owner.
SELECT i.stream AS id, i.came_at AS at, i.came_at <= :waited AS waited
FROM inbox AS i JOIN streams AS p ON p.id = i.stream WHERE i.wakes OR NOT p.parked
UNION ALL SELECT stream, due_at, 0 FROM timers WHERE due_at <= :now
UNION ALL SELECT id, served_at, 0 FROM streams WHERE active = 1

-- name: work_of
-- The work of a few streams. The cost depends only on the number of these streams.
SELECT i.stream AS id, i.came_at AS at, i.came_at <= :waited AS waited
FROM streams AS p JOIN inbox AS i ON i.stream = p.id
WHERE p.stream IN (SELECT value FROM json_each(:only)) AND (i.wakes OR NOT p.parked)
UNION ALL SELECT t.stream, t.due_at, 0 FROM streams AS p JOIN timers AS t ON t.stream = p.id
WHERE p.stream IN (SELECT value FROM json_each(:only)) AND t.due_at <= :now
UNION ALL SELECT id, served_at, 0 FROM streams WHERE stream IN (SELECT value FROM json_each(:only)) AND +active = 1

-- name: ready
-- Streams with work that a worker may drive, with ready time and round within the tenant. The list of live workers does
-- not contain this worker, so its own streams are included. The list of excluded streams contains those that it drives.
SELECT w.*, row_number() OVER (PARTITION BY w.priority, w.tenant ORDER BY w.since, w.id) AS round FROM (
    SELECT s.id, s.stream, s.tenant, s.owner, coalesce(s.priority, json_extract(a.value, '$[1]'), 0) AS priority,
        coalesce(s.queue, json_extract(a.value, '$[0]'), 'default') AS queue, max(s.served_at, min(k.at)) AS since
    FROM ({work}) AS k CROSS JOIN streams AS s ON s.id = k.id LEFT JOIN json_each(:agents) AS a ON a.key = s.agent
    WHERE s.paused_at IS NULL AND s.format <= :format AND (:tenant IS NULL OR s.tenant = :tenant) AND (:agents IS NULL OR a.key IS NOT NULL)
        AND s.stream NOT IN (SELECT value FROM json_each(:driving))
        AND (
            s.owner IS NULL
            OR s.owner NOT IN (SELECT value FROM json_each(:alive))
            OR (k.waited AND s.active = 0 AND s.parked = 0 AND s.n > 0 AND s.served_at <= :waited)
        ) AND (:quarantined = 'also' OR (:quarantined = 'only') = (
            s.owner IS NOT NULL AND s.owner <> :worker AND s.takeovers > 0 AND s.stuck_seq =
                coalesce((SELECT seq FROM log WHERE stream = s.id AND fence IS NOT NULL ORDER BY seq DESC LIMIT 1), 0)
        ))
    GROUP BY s.id
) AS w WHERE (:queues IS NULL OR w.queue IN (SELECT value FROM json_each(:queues)))
    AND w.queue NOT IN (SELECT value FROM json_each(:without))

-- name: claimable
SELECT r.id, r.stream, r.owner, r.queue FROM ({ready}) AS r
ORDER BY r.priority DESC, r.round, coalesce((SELECT key FROM json_each(:recent) WHERE value = r.tenant), -1), r.since, r.id
LIMIT :limit

-- name: stream_read
SELECT s.stream, s.tenant, s.kind, s.name, s.agent, s.last_seq, s.fence, s.owner, s.active, s.parked,
    (SELECT count(*) FROM inbox AS i WHERE i.stream = s.id), s.created_at, s.updated_at,
    (SELECT title FROM titles AS t WHERE t.stream = s.id),
    (SELECT json_group_array(tag) FROM (SELECT tag FROM tags AS g WHERE g.stream = s.id ORDER BY tag)),
    s.paused_at, s.paused_by, s.queue, s.priority, s.id
FROM streams AS s WHERE s.stream = ?

-- name: stream_list
SELECT s.stream, s.tenant, s.kind, s.name, s.agent, s.last_seq, s.fence, s.owner, s.active, s.parked,
    (SELECT count(*) FROM inbox AS i WHERE i.stream = s.id), s.created_at, s.updated_at,
    (SELECT title FROM titles AS t WHERE t.stream = s.id),
    (SELECT json_group_array(tag) FROM (SELECT tag FROM tags AS g WHERE g.stream = s.id ORDER BY tag)),
    s.paused_at, s.paused_by, s.queue, s.priority, s.id
FROM streams AS s
WHERE s.tenant = ? AND s.kind = ? AND (s.updated_at, s.stream) < (?, ?)
ORDER BY s.updated_at DESC, s.stream DESC LIMIT ?

-- name: stream_list_tagged
SELECT s.stream, s.tenant, s.kind, s.name, s.agent, s.last_seq, s.fence, s.owner, s.active, s.parked,
    (SELECT count(*) FROM inbox AS i WHERE i.stream = s.id), s.created_at, s.updated_at,
    (SELECT title FROM titles AS t WHERE t.stream = s.id),
    (SELECT json_group_array(tag) FROM (SELECT tag FROM tags AS g WHERE g.stream = s.id ORDER BY tag)),
    s.paused_at, s.paused_by, s.queue, s.priority, s.id
FROM tags AS wanted JOIN streams AS s ON s.id = wanted.stream
WHERE wanted.tenant = ? AND wanted.tag = ? AND s.kind = ? AND (s.updated_at, s.stream) < (?, ?)
ORDER BY s.updated_at DESC, s.stream DESC LIMIT ?

-- name: stream_newest
SELECT s.stream, s.tenant, s.kind, s.name, s.agent, s.last_seq, s.fence, s.owner, s.active, s.parked,
    (SELECT count(*) FROM inbox AS i WHERE i.stream = s.id), s.created_at, s.updated_at,
    (SELECT title FROM titles AS t WHERE t.stream = s.id),
    (SELECT json_group_array(tag) FROM (SELECT tag FROM tags AS g WHERE g.stream = s.id ORDER BY tag)),
    s.paused_at, s.paused_by, s.queue, s.priority, s.id
FROM tags AS wanted CROSS JOIN streams AS s ON s.id = wanted.stream
WHERE wanted.tenant = :tenant AND wanted.tag = :tag AND wanted.stream < :before AND s.kind = :kind
    AND (:agent IS NULL OR s.agent = :agent)
ORDER BY wanted.stream DESC LIMIT :limit

-- name: log_marks
SELECT s.stream, l.seq, l.at, l.kind, l.data, l.key, l.version
FROM json_each(:streams) AS w CROSS JOIN streams AS s ON s.stream = w.value CROSS JOIN log AS l ON l.stream = s.id AND l.seq = 1
UNION ALL SELECT s.stream, l.seq, l.at, l.kind, l.data, l.key, l.version
FROM json_each(:streams) AS w CROSS JOIN streams AS s ON s.stream = w.value CROSS JOIN log AS l ON l.stream = s.id AND l.key = :key

-- name: stream_heads
SELECT s.stream, s.id, s.created_at, s.last_seq FROM json_each(?) AS w CROSS JOIN streams AS s ON s.stream = w.value

-- name: title_put
INSERT INTO titles (stream, title) VALUES (?, ?) ON CONFLICT DO UPDATE SET title = excluded.title

-- name: tags_clear
DELETE FROM tags WHERE stream = ?

-- name: tag_put
-- An ended stream gets no tag that begins with `live:`.
INSERT INTO tags (tenant, tag, stream) SELECT :tenant, :tag, :stream
WHERE NOT (:tag >= 'live:' AND :tag < 'live;' AND EXISTS (SELECT 1 FROM log WHERE stream = :stream AND key = 'process:end'))
ON CONFLICT DO NOTHING

-- name: tag_drop
DELETE FROM tags WHERE tenant = ? AND tag = ? AND stream = ?

-- name: tags_end
DELETE FROM tags WHERE stream = :stream AND tag >= 'live:' AND tag < 'live;'

-- name: tags_cut
DELETE FROM tags WHERE tenant = ? AND tag >= ? AND tag < ?

-- name: stream_names
SELECT stream FROM streams ORDER BY id

-- name: stream_unfinished
SELECT owner, count(*) FROM streams WHERE active = 1 GROUP BY owner

-- name: secret_put
INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: secret_read
SELECT value FROM secrets WHERE name = ?
