"""The statements for SQLite: the schema, and a statement for each operation."""

from collections.abc import Iterable

from proxy.memory.decisions import INSERTS, SNAPSHOTS, SUMMARIES
from proxy.memory.records import DELETIONS, EVENTS, TEXT_KINDS, TextKind

SCHEMA_VERSION = 5
"""`PRAGMA user_version` of a file; 0 is a new one, and 1 to 4 were written by release 0.1."""

# Names are blobs: they come from clients, and may hold what UTF-8 cannot.
_OF_CONVERSATION = "tenant BLOB NOT NULL, conversation BLOB NOT NULL"
_NUMBERED = f"number INTEGER PRIMARY KEY, {_OF_CONVERSATION}"
"""The number gives the order in which rows were written: clocks may stand still or go back."""
_CONTENT = "content BLOB NOT NULL, used REAL NOT NULL"
_OF_KIND = (
    f"{_NUMBERED}, kind TEXT NOT NULL, name BLOB NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL,"
    # The text comes last: what only reads the rest does not have to pass it.
    " about BLOB NOT NULL, content BLOB NOT NULL, UNIQUE (tenant, conversation, kind, name))"
)

TABLES = {
    "secret": "name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "conversation": "tenant BLOB NOT NULL, name BLOB NOT NULL, used REAL NOT NULL, PRIMARY KEY (tenant, name))"
    " WITHOUT ROWID",
    "step": f"{_OF_CONVERSATION}, anchor TEXT NOT NULL, decision BLOB NOT NULL, sent BLOB, at REAL NOT NULL,"
    " used REAL NOT NULL, PRIMARY KEY (tenant, conversation, anchor))",
    "recall": f"{_NUMBERED}, anchor TEXT NOT NULL, reply TEXT NOT NULL, {_CONTENT},"
    " UNIQUE (tenant, conversation, anchor, reply))",
    "summary": f"{_NUMBERED}, id TEXT NOT NULL, kind TEXT NOT NULL, first TEXT NOT NULL, {_CONTENT},"
    " UNIQUE (tenant, conversation, id))",
    # The row outlives the lease, and with it the token: the next one is higher.
    "lease": f"{_OF_CONVERSATION}, name BLOB NOT NULL, token INTEGER NOT NULL, until REAL NOT NULL,"
    " used REAL NOT NULL, PRIMARY KEY (tenant, conversation, name)) WITHOUT ROWID",
    # Events outlive their conversation: that it was deleted is one of them.
    "event": f"{_NUMBERED}, {_CONTENT})",
    "text": _OF_KIND,
    # Sums of sizes, so that they need not be added up.
    "text_bytes": "tenant BLOB NOT NULL, kind TEXT NOT NULL, conversation BLOB NOT NULL, bytes INTEGER NOT NULL,"
    " PRIMARY KEY (tenant, kind, conversation)) WITHOUT ROWID",
    "purse": f"{_OF_CONVERSATION}, day BLOB NOT NULL, dollars REAL NOT NULL, used REAL NOT NULL,"
    " PRIMARY KEY (tenant, conversation, day)) WITHOUT ROWID",
    "snapshot": f"{_OF_CONVERSATION}, fingerprint TEXT NOT NULL, anchor TEXT NOT NULL, {_CONTENT},"
    " PRIMARY KEY (tenant, conversation, fingerprint, anchor))",
    # As `text`, for rows of other kinds; `about` is whose they are. Those of a day stand behind a byte that no
    # conversation's name begins with, and those of no tenant behind one that is no tenant.
    "record": _OF_KIND,
}
"""The columns of each table, and what follows them."""
_INDEXES = {
    "conversation_used": "conversation (used)",
    "summary_first": "summary (tenant, conversation, kind, first)",
    "event_tenant": "event (tenant)",
    "event_conversation": "event (tenant, conversation)",
    "text_of_kind": "text (kind)",
    "text_of_tenant": "text (tenant, kind)",
    "text_of_conversation": "text (tenant, conversation, kind)",
    "text_name": "text (tenant, kind, name)",
    "record_owner": "record (tenant, kind, name) WHERE kind = 'owner'",
    "record_day": "record (conversation) WHERE kind = 'day'",
    "record_added": "record (number) WHERE kind = 'added'",
    "record_total": "record (used) WHERE kind = 'total'",
    "record_total_of_tenant": "record (tenant, used) WHERE kind = 'total'",
}

USE = "INSERT INTO conversation VALUES ({}) ON CONFLICT DO UPDATE SET used = max(used, excluded.used)"
_USED = USE.format("new.tenant, new.conversation, new.used")
_NEWEST = "DELETE FROM {0} WHERE rowid IN (SELECT rowid FROM {0} WHERE {1} ORDER BY {3} LIMIT -1 OFFSET {2})"
_SAME = "tenant = new.tenant AND conversation = new.conversation"
_SAME_TEXTS = "tenant = old.tenant AND kind = old.kind AND conversation = old.conversation"
_DELETED = "DELETE FROM {} WHERE tenant = old.tenant AND conversation = old.name"
_TRIGGERS = {
    "step_inserted AFTER INSERT ON step": [_USED],
    **{f"{table}_updated AFTER UPDATE ON {table}": [_USED] for table in ("step", "recall", "summary")},
    "recall_inserted AFTER INSERT ON recall": [
        _USED,
        _NEWEST.format("recall", f"{_SAME} AND anchor = new.anchor", INSERTS, "number DESC"),
    ],
    "summary_inserted AFTER INSERT ON summary": [
        _USED,
        _NEWEST.format("summary", f"{_SAME} AND kind = new.kind AND first = new.first", SUMMARIES, "number DESC"),
    ],
    "lease_inserted AFTER INSERT ON lease": [
        _USED,
        f"DELETE FROM lease WHERE {_SAME} AND until < new.used - 86400",  # those over a day ago
    ],
    "event_inserted AFTER INSERT ON event WHEN new.number % 32 = 0": [
        _NEWEST.format("event", "tenant = new.tenant", EVENTS, "number DESC")
    ],
    "text_inserted AFTER INSERT ON text": [
        _USED,
        "INSERT INTO text_bytes VALUES (new.tenant, new.kind, new.conversation, new.size)"
        " ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes",
    ],
    "text_deleted AFTER DELETE ON text": [
        f"UPDATE text_bytes SET bytes = bytes - old.size WHERE {_SAME_TEXTS}",
        f"DELETE FROM text_bytes WHERE bytes <= 0 AND {_SAME_TEXTS}",
    ],
    "purse_inserted AFTER INSERT ON purse WHEN new.day = x''": [_USED],
    "snapshot_inserted AFTER INSERT ON snapshot": [
        _USED,
        _NEWEST.format("snapshot", _SAME, SNAPSHOTS, "used DESC, rowid DESC"),
    ],
    "all_deleted AFTER DELETE ON conversation": [
        *map(_DELETED.format, ("step", "recall", "summary", "lease", "text", "snapshot", "record")),
        f"{_DELETED.format('purse')} AND day = x''",
    ],
}

SCHEMA = (
    *(f"CREATE TABLE IF NOT EXISTS {name} ({columns}" for name, columns in TABLES.items()),
    *(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}" for name, columns in _INDEXES.items()),
    *(f"CREATE TRIGGER IF NOT EXISTS {when} BEGIN {'; '.join(what)}; END" for when, what in _TRIGGERS.items()),
)
"""Each statement is harmless a second time: a file of this version may be older than some tables."""

_ROW = "INSERT OR IGNORE INTO record (kind, tenant, conversation, name, size, used, about, content) SELECT"
OF_0_2 = {
    "owner": f"{_ROW} 'owner', tenant, conversation, CAST(owner AS BLOB), 0, used, x'', x'' FROM owner",
    "bill": f"{_ROW} 'bill', tenant, conversation, CAST(id AS BLOB), length(content), used, x'', content FROM bill"
    " WHERE conversation <> x'' ORDER BY number",
    "bill_day": f"{_ROW} 'day', tenant, CAST(x'ff' || day AS BLOB), name, length(content), 0, CAST(owner AS BLOB),"
    " content FROM bill_day",
    "bill_conversation": f"{_ROW} 'total', tenant, conversation, x'', length(content), at, CAST(owner AS BLOB),"
    " content FROM bill_conversation",
    "spent": f"{_ROW} 'spent', tenant, conversation, kind, length(content), used, x'', content FROM spent",
    "gateway_key": f"{_ROW} 'key', x'ff', x'', CAST(sha256 AS BLOB), length(content), 0, x'', content FROM gateway_key",
}
"""Tables of release 0.2, and the statements that carry over what is in them."""
_TRIGGERS_OF_0_2 = ("bill", "owner", "conversation", "purse", "snapshot", "record")
DROP_OF_0_2 = (
    "DROP VIEW IF EXISTS bill_added",
    *(f"DROP TRIGGER IF EXISTS {table}_deleted" for table in _TRIGGERS_OF_0_2),
    *(f"DROP TABLE IF EXISTS {table}" for table in OF_0_2),
)
PAGES = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size"""

_SIZES = {
    "step": "length(decision) + coalesce(length(sent), 0) + 200",
    **dict.fromkeys(("recall", "summary", "snapshot", "event"), "length(content) + 200"),
    **dict.fromkeys(("text", "record"), "size + 200"),
}
"""About how many bytes a row takes, by its table."""
_SIZE = " + ".join(
    f"(SELECT total({size}) FROM {table} WHERE tenant = some.tenant AND conversation = some.name)"
    for table, size in _SIZES.items()
)
_HELD = f"SELECT tenant, name, {_SIZE} + 500 FROM (SELECT tenant, name FROM conversation {{}}) AS some"
HELD = _HELD.format("WHERE (tenant, name) > (?, ?) ORDER BY tenant, name LIMIT 20")
"""The conversations behind this one, and about how many bytes each of them takes."""
OLDEST = _HELD.format("WHERE tenant = ? ORDER BY used LIMIT 8")

LOAD = """
WITH anchors AS (SELECT value FROM json_each(?))
SELECT 0, 0, anchor, decision, sent, at FROM step
    WHERE tenant = ? AND conversation = ? AND anchor IN anchors
UNION ALL
SELECT 1, number, anchor, content, NULL, NULL FROM recall
    WHERE tenant = ? AND conversation = ? AND anchor IN anchors
UNION ALL
SELECT 2, number, id, first, content, NULL FROM summary
    WHERE tenant = ? AND conversation = ? AND kind IN ('compaction', 'digest') AND first IN anchors"""
"""Steps; then the recall exchanges behind replies, and then the summaries, numbered in the order of writing."""

_CLAIM = """
INSERT INTO step (tenant, conversation, anchor, decision, sent, at, used) VALUES {}
ON CONFLICT DO UPDATE
SET sent = coalesce(excluded.sent, sent), at = max(excluded.at, at), used = excluded.used
RETURNING decision, sent, at, tenant, conversation, anchor"""


def claim(count: int) -> str:
    """For so many steps at once."""
    return _CLAIM.format(", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * count))


NEWEST_STEP = """
SELECT anchor, decision, sent, at FROM step WHERE tenant = ? AND conversation = ? AND sent IS NOT NULL AND anchor <> '*'
ORDER BY at DESC, rowid DESC LIMIT 1"""

# In the place of the row of the former anchor, if there is one.
PUT_SNAPSHOT = """
INSERT OR REPLACE INTO snapshot (rowid, tenant, conversation, fingerprint, anchor, content, used) VALUES
((SELECT rowid FROM snapshot WHERE tenant = ?1 AND conversation = ?2 AND fingerprint = ?3 AND anchor = ?7),
 ?1, ?2, ?3, ?4, ?5, ?6)"""

SNAPSHOT = """
SELECT anchor, content FROM json_each(?) AS wanted JOIN snapshot
    ON tenant = ? AND conversation = ? AND fingerprint = ? AND anchor = wanted.value
ORDER BY wanted.key DESC LIMIT 1"""

MEND = "UPDATE step SET decision = ? WHERE tenant = ? AND conversation = ? AND anchor = ? AND decision IS ?"

PUT_INSERT = """
INSERT INTO recall (tenant, conversation, anchor, reply, content, used) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, conversation, anchor, reply) DO UPDATE
SET number = (SELECT max(number) + 1 FROM recall), content = excluded.content, used = excluded.used"""

# The oldest, until the sizes of those deleted make up the surplus.
_DROP_TEXTS = """
DELETE FROM text WHERE number IN
    (SELECT number FROM
        (SELECT number, sum(size) OVER (ORDER BY number) - size AS before FROM
            (SELECT number, size FROM text WHERE {0} AND kind = ?2 ORDER BY number LIMIT 50))
     WHERE before < (SELECT total(bytes) FROM text_bytes WHERE {0} AND kind = ?2) - ?3)
RETURNING 1"""


def drop_texts(kind: TextKind) -> str:
    """Delete some of what is too much: of the tenant's texts, or of the conversation's."""
    whose = "?4 IS ?4" if kind.bounded_by == "tenant" else "conversation = ?4"
    return _DROP_TEXTS.format(f"tenant = ?1 AND {whose}")


PUT_SUMMARY = """
INSERT INTO summary (tenant, conversation, id, kind, first, content, used) SELECT ?, ?, ?, ?, ?, ?, ?
WHERE ? IS NULL OR EXISTS (SELECT 1 FROM lease WHERE tenant = ? AND conversation = ? AND name = ? AND token = ?)
ON CONFLICT (tenant, conversation, id) DO UPDATE
SET number = (SELECT max(number) + 1 FROM summary), kind = excluded.kind, first = excluded.first,
    content = excluded.content, used = excluded.used
RETURNING 1"""

DELETE_SUMMARIES = """
DELETE FROM summary WHERE tenant = ? AND conversation = ? AND id IN (SELECT value FROM json_each(?))"""

LIST_SUMMARIES = "SELECT id, first, content FROM summary WHERE tenant = ? AND conversation = ? ORDER BY number"

# What is no time, or too far ahead, was damaged, or written by a clock that was wrong.
LEASE = """
INSERT INTO lease (tenant, conversation, name, token, until, used) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET token = max(token + 1, excluded.token), until = excluded.until, used = excluded.used
WHERE typeof(until) <> 'real' OR until <= excluded.used OR until > excluded.used + ?
RETURNING token"""

RELEASE = "UPDATE lease SET until = 0 WHERE tenant = ? AND conversation = ? AND name = ? AND token = ?"

# A sum that was damaged counts as nothing.
TAKE = """
INSERT INTO purse (tenant, conversation, day, dollars, used) SELECT ?1, ?2, ?3, max(?4, 0.0), ?5 WHERE ?4 <= ?6
ON CONFLICT DO UPDATE
SET dollars = max(iif(typeof(dollars) = 'real', dollars, 0.0) + ?4, 0.0), used = excluded.used
WHERE ?4 < 0 OR iif(typeof(dollars) = 'real', dollars, 0.0) + ?4 <= ?6
RETURNING 1"""

SWEEP_PURSES = "DELETE FROM purse WHERE day <> x'' AND used < ?"

NOTE = "INSERT INTO event (tenant, conversation, content, used) VALUES (?, ?, ?, ?)"

_EVENTS = "SELECT tenant, conversation, content FROM event {} ORDER BY number DESC LIMIT ?"

# Events and texts are many, and may be large. Before a conversation goes, they go a few at a time, so that no other
# statement waits longer than for these. Events are the first of them.
_A_FEW = "DELETE FROM {0} WHERE rowid IN (SELECT rowid FROM {0} WHERE {1} LIMIT 50) RETURNING 1"

DELETE_FIRST = tuple(_A_FEW.format(table, "tenant = ? AND conversation = ?") for table in ("event", "text", "record"))
DELETE = "DELETE FROM conversation WHERE tenant = ? AND name = ? RETURNING 1"

DELETE_TENANT_FIRST = tuple(_A_FEW.format(table, "tenant = ?") for table in ("event", "text", "record"))
DELETE_TENANT = "DELETE FROM conversation WHERE tenant = ? RETURNING 1"

_SWEEP_ROWS = """
DELETE FROM {0} WHERE rowid IN
    (SELECT {0}.rowid FROM (SELECT tenant, name FROM conversation WHERE used < ? ORDER BY used LIMIT 20) AS old
     JOIN {0} ON {0}.tenant = old.tenant AND {0}.conversation = old.name LIMIT 50)
RETURNING 1"""

SWEEP_FIRST = tuple(map(_SWEEP_ROWS.format, ("step", "recall", "summary", "text", "record")))
SWEEP = """
DELETE FROM conversation WHERE (tenant, name) IN
    (SELECT tenant, name FROM conversation WHERE used < ? ORDER BY used LIMIT 20)
RETURNING 1"""

_SWEEP_NUMBERED = """
DELETE FROM {0} WHERE number IN
    (SELECT number FROM (SELECT number, used FROM {0} WHERE {1} ORDER BY number LIMIT 50) WHERE used < ?)
RETURNING 1"""

SWEEP_NUMBERED = (
    _SWEEP_NUMBERED.format("event", "true"),
    *(_SWEEP_NUMBERED.format("text", f"kind = '{kind.name}'") for kind in TEXT_KINDS.values() if kind.bounded_by),
)

PUT_ONCE = """
INSERT INTO secret VALUES (?, ?) ON CONFLICT DO UPDATE
SET value = CASE WHEN typeof(value) = 'blob' AND length(value) = 32 THEN value ELSE excluded.value END
RETURNING value"""

# Takes the write lock and changes nothing: fails where the file is locked, read-only or gone.
PROBE = "UPDATE secret SET value = value WHERE name IS NULL"


def events(*, tenant: bool, conversation: bool) -> str:
    """The newest of all, or those of one tenant or of one conversation."""
    wanted = [term for term, applies in (("tenant = ?", tenant), ("conversation = ?", conversation)) if applies]
    wanted = wanted if tenant else [f"tenant <> x'{DELETIONS.encode().hex()}'", *wanted]
    return _EVENTS.format("WHERE " + " AND ".join(wanted))


# --- rows for people and accounts ---

_HERE = "kind = ? AND tenant = ? AND conversation = ?"
ROWS = f"SELECT name, about, {{1}}, size FROM {{0}} WHERE {_HERE} {{2}} ORDER BY number"
"""Of a table, with their contents or without, all or some."""
COUNT = f"SELECT count(*) FROM record WHERE {_HERE}"
FIND = "SELECT conversation FROM {0} WHERE tenant = ? AND kind = '{1}' AND name = ? ORDER BY number"
DELETE_ROW = f"DELETE FROM {{}} WHERE {_HERE} AND name = ?"
_PUT = """
INSERT INTO {} (kind, tenant, conversation, name, size, used, about, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, conversation, kind, name) DO UPDATE SET content = excluded.content"""
PUT = {
    "text": _PUT.format("text"),
    "record": f"{_PUT.format('record')}, size = excluded.size, used = excluded.used, about = excluded.about",
}
ALL_OF_TENANT = "SELECT name FROM conversation WHERE tenant = ?"


def search(kind: str, terms: Iterable[str]) -> str:
    """The newest rows of a kind, in all places."""
    where = " AND ".join((f"kind = '{kind}'", *terms))
    return f"SELECT tenant, conversation, content FROM record WHERE {where} ORDER BY used DESC LIMIT ?"


BYTES_OF_DAYS = "SELECT total(2 * length(name) + size + 100), min(conversation) FROM record WHERE kind = 'day'"
SWEEP_DAYS = _A_FEW.format("record", "kind = 'day' AND conversation < ?")
SWEEP_ADDED = _SWEEP_NUMBERED.format("record", "kind = 'added'")
