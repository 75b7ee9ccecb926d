-- The stored format, for SQLite 3.37 and later (STRICT). Not frozen before the first release.
--
-- The head of a session is the last row of the unique (session, version) index, and a position is
-- never reused because nothing is ever deleted: so there is no head row and no AUTOINCREMENT, which
-- together cost 40 % of the bytes written.

CREATE TABLE event (
  position    INTEGER PRIMARY KEY CHECK (position > 0),  -- over the whole log, in commit order
  session     TEXT    NOT NULL,
  version     INTEGER NOT NULL,               -- 1, 2, 3 … in the session; a fork goes on counting
  type        TEXT    NOT NULL,
  format      INTEGER NOT NULL DEFAULT 1,     -- of the payload, for reading older ones
  event_id    BLOB    NOT NULL CHECK (length(event_id) = 16),
  recorded_at INTEGER NOT NULL,               -- microseconds since 1970, for people
  hash        BLOB    NOT NULL CHECK (length(hash) = 32),
  digest      BLOB    CHECK (length(digest) = 32), -- of the payload that was erased; NULL while it stands here
  payload     BLOB    NOT NULL,
  UNIQUE (session, version)
) STRICT;

CREATE TABLE fork (
  session TEXT    PRIMARY KEY,
  parent  TEXT    NOT NULL,
  at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE lease (
  session TEXT    PRIMARY KEY,
  owner   TEXT    NOT NULL,
  epoch   INTEGER NOT NULL,                   -- rises with each new owner
  seconds REAL    NOT NULL,
  until   INTEGER NOT NULL                    -- microseconds since 1970; 0 when given back
) STRICT, WITHOUT ROWID;

CREATE INDEX lease_in_force ON lease (until) WHERE until > 0;  -- of all leases ever given, the few to look at

CREATE TABLE erasure (                        -- must stand before an event's payload may change
  position INTEGER PRIMARY KEY,
  reason   TEXT    NOT NULL
) STRICT;

-- Triggers see what the application does. REPLACE INTO deletes without firing a delete trigger
-- unless recursive_triggers is on, so an insert is refused where a row stands already.
CREATE TRIGGER event_is_next BEFORE INSERT ON event
WHEN NEW.version <> coalesce(
       (SELECT max(version) FROM event WHERE session = NEW.session),
       (SELECT at FROM fork WHERE session = NEW.session),
       0) + 1
  OR (NEW.position > 0 AND NEW.position <> (SELECT coalesce(max(position), 0) + 1 FROM event))
BEGIN SELECT RAISE(ABORT, 'the log is append-only: not the next version'); END;

CREATE TRIGGER event_stays BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'the log is append-only: no delete'); END;

CREATE TRIGGER event_is_final BEFORE UPDATE ON event
WHEN NEW.position <> OLD.position OR NEW.session <> OLD.session OR NEW.version <> OLD.version
  OR NEW.type <> OLD.type OR NEW.format <> OLD.format OR NEW.event_id <> OLD.event_id
  OR NEW.recorded_at <> OLD.recorded_at OR NEW.hash <> OLD.hash
  OR NEW.digest IS NULL OR (OLD.digest IS NOT NULL AND NEW.digest <> OLD.digest)
  OR NOT EXISTS (SELECT 1 FROM erasure WHERE position = OLD.position)
BEGIN SELECT RAISE(ABORT, 'the log is append-only: no update'); END;

CREATE TRIGGER fork_stays BEFORE DELETE ON fork
BEGIN SELECT RAISE(ABORT, 'the log is append-only: no delete'); END;

CREATE TRIGGER fork_is_final BEFORE UPDATE ON fork
BEGIN SELECT RAISE(ABORT, 'the log is append-only: no update'); END;

CREATE TRIGGER fork_is_new BEFORE INSERT ON fork
WHEN EXISTS (SELECT 1 FROM event WHERE session = NEW.session)
  OR EXISTS (SELECT 1 FROM fork WHERE session = NEW.session)
BEGIN SELECT RAISE(ABORT, 'the log is append-only: the session exists'); END;

CREATE TRIGGER lease_rises BEFORE UPDATE ON lease
WHEN NEW.session <> OLD.session OR NEW.epoch < OLD.epoch
BEGIN SELECT RAISE(ABORT, 'an epoch only rises'); END;

CREATE TRIGGER lease_stays BEFORE DELETE ON lease
BEGIN SELECT RAISE(ABORT, 'an epoch only rises'); END;

CREATE TRIGGER lease_is_new BEFORE INSERT ON lease
WHEN EXISTS (SELECT 1 FROM lease WHERE session = NEW.session)
BEGIN SELECT RAISE(ABORT, 'an epoch only rises'); END;
