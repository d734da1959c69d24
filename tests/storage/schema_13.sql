-- An account of 0.1.0 as it was at schema 13: a project with a value, a user, a program with a history and a poll.
INSERT INTO accounts (name, created_time) VALUES ('demo', '2026-01-01Z');
INSERT INTO users (id, account, username, password_hash, role, tokens_valid_from, created_time, updated_time)
    VALUES ('u1', 'demo', 'earlier', 'hash', 'admin', '2026-01-01Z', '2026-01-01Z', '2026-01-01Z');
INSERT INTO projects (account, id, name, metadata, created_time, updated_time)
    VALUES ('demo', 'football', 'Football', '{"a": 1}', '2026-01-01Z', '2026-01-01Z');
INSERT INTO storage_usage (account, project_id, value_count, octets) VALUES ('demo', 'football', 1, 12);
INSERT INTO stored_values (account, project_id, id, metadata, octets, created_time)
    VALUES ('demo', 'football', 'line-up', '{"keeper": 1}', 12, '2026-01-01Z');
INSERT INTO revisions (account, project_id, id, version, status, content, created_by, updated_by, created_time,
    updated_time) VALUES ('demo', 'football', 'r1', '1', 'published', '{"b": 2}', 'u1', 'u1', '2026-01-01Z', '2026-01-01Z');
INSERT INTO programs (account, id, name, project_id, access, created_time, updated_time)
    VALUES ('demo', 'final', 'The final', 'football', 'public', '2026-01-01Z', '2026-01-01Z');
INSERT INTO program_heads (program_uid, epoch, epoch_reason, seq, last_change)
    SELECT uid, 'epochOf01000', 'created', 3, '2026-01-01T00:00:03Z' FROM programs;
INSERT INTO events (history, seq, id, created_time, timestamp, timecode, event, metadata)
    SELECT history, 1, '01900000-0000-7000-8000-000000000001'::uuid, '2026-01-01T00:00:01Z'::timestamptz, 1, 1,
        'Poll#show', '{"title": "Who wins?", "options": ["Home", "Away"]}'::json FROM program_heads
    UNION ALL
    SELECT history, 2, '01900000-0000-7000-8000-000000000002', '2026-01-01T00:00:02Z', 2, 2, 'Score#update',
        '{"home": 2}' FROM program_heads;
INSERT INTO event_changes (history, seq, event_id, event_seq, kind, before, after, time)
    SELECT history, 3, id, 2, 'updated', '{"epoch": "epochOf01000", "seq": 2}', '{"epoch": "epochOf01000", "seq": 3}',
        '2026-01-01T00:00:03Z' FROM events WHERE seq = 2;
INSERT INTO answer_keys SELECT uid, '0123456789abcdef' FROM programs;
INSERT INTO answer_polls (program_uid, account, measure, context, shards)
    SELECT uid, 'demo', 'whoWins', '01900000-0000-7000-8000-000000000001', 1 FROM programs;
INSERT INTO answer_tallies SELECT uid, 0, '{3,4}', 9, 7, 7, now() FROM answer_polls;
INSERT INTO statistics VALUES ('demo', 'day', date_trunc('day', now()) - interval '1 day', '', '', 1, 2, 3, 4, 5, 6);
INSERT INTO audit (account, time, actor_name, action, target_type, target_id, details)
    VALUES ('demo', '2026-01-01Z', 'operator', 'user.created', 'user', 'u1', '{}');
