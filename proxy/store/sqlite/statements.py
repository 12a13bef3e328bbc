"""What is said to SQLite: the schema, how it came to be, and a statement for each operation."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Keys are blobs: a conversation's name is the client's, and may hold what UTF-8 cannot.
        "CREATE TABLE conversation (tenant BLOB NOT NULL, name BLOB NOT NULL, used REAL NOT NULL,"
        " PRIMARY KEY (tenant, name)) WITHOUT ROWID",
        "CREATE INDEX conversation_used ON conversation (used)",
        "CREATE TABLE step (tenant BLOB NOT NULL, conversation BLOB NOT NULL, anchor TEXT NOT NULL,"
        " decision BLOB NOT NULL, sent BLOB, at REAL NOT NULL, used REAL NOT NULL,"
        " PRIMARY KEY (tenant, conversation, anchor))",
        "CREATE TRIGGER step_inserted AFTER INSERT ON step BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        "CREATE TRIGGER step_updated AFTER UPDATE ON step BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        "CREATE TRIGGER conversation_deleted AFTER DELETE ON conversation BEGIN"
        " DELETE FROM step WHERE tenant = old.tenant AND conversation = old.name; END",
        "CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    ),
    (
        # The number says in what order they were written: clocks may stand still or go back.
        "CREATE TABLE recall (number INTEGER PRIMARY KEY, tenant BLOB NOT NULL, conversation BLOB NOT NULL,"
        " anchor TEXT NOT NULL, reply TEXT NOT NULL, content BLOB NOT NULL, used REAL NOT NULL,"
        " UNIQUE (tenant, conversation, anchor, reply))",
        "CREATE TRIGGER recall_inserted AFTER INSERT ON recall BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used);"
        # Eight for each anchor, as the contract says.
        " DELETE FROM recall WHERE number IN (SELECT number FROM recall WHERE tenant = new.tenant"
        " AND conversation = new.conversation AND anchor = new.anchor ORDER BY number DESC LIMIT -1 OFFSET 8); END",
        "CREATE TRIGGER recall_updated AFTER UPDATE ON recall BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        # The reference is a blob too: whoever asks for one may write anything.
        "CREATE TABLE original (tenant BLOB NOT NULL, conversation BLOB NOT NULL, ref BLOB NOT NULL,"
        " content BLOB NOT NULL, used REAL NOT NULL, PRIMARY KEY (tenant, conversation, ref))",
        "CREATE INDEX original_ref ON original (tenant, ref)",
        "CREATE TRIGGER original_inserted AFTER INSERT ON original BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        "CREATE TRIGGER conversation_forgotten AFTER DELETE ON conversation BEGIN"
        " DELETE FROM recall WHERE tenant = old.tenant AND conversation = old.name;"
        " DELETE FROM original WHERE tenant = old.tenant AND conversation = old.name; END",
    ),
    (
        "CREATE TABLE summary (number INTEGER PRIMARY KEY, tenant BLOB NOT NULL, conversation BLOB NOT NULL,"
        " id TEXT NOT NULL, kind TEXT NOT NULL, first TEXT NOT NULL, content BLOB NOT NULL, used REAL NOT NULL,"
        " UNIQUE (tenant, conversation, id))",
        "CREATE INDEX summary_first ON summary (tenant, conversation, kind, first)",
        "CREATE TRIGGER summary_inserted AFTER INSERT ON summary BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used);"
        # Eight for each beginning, as the contract says.
        " DELETE FROM summary WHERE number IN (SELECT number FROM summary WHERE tenant = new.tenant"
        " AND conversation = new.conversation AND kind = new.kind AND first = new.first"
        " ORDER BY number DESC LIMIT -1 OFFSET 8); END",
        "CREATE TRIGGER summary_updated AFTER UPDATE ON summary BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        # The row outlives the lease, and with it the token: the next one is higher.
        "CREATE TABLE lease (tenant BLOB NOT NULL, conversation BLOB NOT NULL, name BLOB NOT NULL,"
        " token INTEGER NOT NULL, until REAL NOT NULL, used REAL NOT NULL,"
        " PRIMARY KEY (tenant, conversation, name)) WITHOUT ROWID",
        "CREATE TRIGGER lease_inserted AFTER INSERT ON lease BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used);"
        # Those that were over a day ago.
        " DELETE FROM lease WHERE tenant = new.tenant AND conversation = new.conversation"
        " AND until < new.used - 86400; END",
        "CREATE TABLE spent (tenant BLOB NOT NULL, conversation BLOB NOT NULL, kind BLOB NOT NULL,"
        " content BLOB NOT NULL, used REAL NOT NULL, PRIMARY KEY (tenant, conversation, kind)) WITHOUT ROWID",
        "CREATE TRIGGER spent_inserted AFTER INSERT ON spent BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        "CREATE TRIGGER spent_updated AFTER UPDATE ON spent BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used); END",
        "CREATE TRIGGER conversation_dropped AFTER DELETE ON conversation BEGIN"
        " DELETE FROM summary WHERE tenant = old.tenant AND conversation = old.name;"
        " DELETE FROM lease WHERE tenant = old.tenant AND conversation = old.name;"
        " DELETE FROM spent WHERE tenant = old.tenant AND conversation = old.name; END",
        # Events outlive their conversation: that it was deleted is one of them.
        "CREATE TABLE event (number INTEGER PRIMARY KEY, tenant BLOB NOT NULL, conversation BLOB NOT NULL,"
        " content BLOB NOT NULL, used REAL NOT NULL)",
        "CREATE INDEX event_tenant ON event (tenant)",
        "CREATE INDEX event_conversation ON event (tenant, conversation)",
        # Ten thousand for each tenant, as the contract says; counted now and then.
        "CREATE TRIGGER event_inserted AFTER INSERT ON event WHEN new.number % 32 = 0 BEGIN"
        " DELETE FROM event WHERE number IN (SELECT number FROM event WHERE tenant = new.tenant"
        " ORDER BY number DESC LIMIT -1 OFFSET 10000); END",
    ),
    (
        # The text comes last: what only looks at the rest does not have to pass it.
        "CREATE TABLE leaf (number INTEGER PRIMARY KEY, tenant BLOB NOT NULL, conversation BLOB NOT NULL,"
        " shelf TEXT NOT NULL, name TEXT NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL, about BLOB NOT NULL,"
        " content BLOB NOT NULL, UNIQUE (tenant, conversation, shelf, name))",
        "CREATE INDEX leaf_of_tenant ON leaf (tenant, shelf)",
        "CREATE INDEX leaf_of_conversation ON leaf (tenant, conversation, shelf)",
        "CREATE INDEX leaf_name ON leaf (tenant, shelf, name)",
        # How much there is, so that nobody has to add it up.
        "CREATE TABLE held (tenant BLOB NOT NULL, shelf TEXT NOT NULL, conversation BLOB NOT NULL,"
        " bytes INTEGER NOT NULL, PRIMARY KEY (tenant, shelf, conversation)) WITHOUT ROWID",
        "CREATE TRIGGER leaf_inserted AFTER INSERT ON leaf BEGIN"
        " INSERT INTO conversation VALUES (new.tenant, new.conversation, new.used)"
        " ON CONFLICT DO UPDATE SET used = max(used, excluded.used);"
        " INSERT INTO held VALUES (new.tenant, new.shelf, new.conversation, new.size)"
        " ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes; END",
        "CREATE TRIGGER leaf_deleted AFTER DELETE ON leaf BEGIN"
        " UPDATE held SET bytes = bytes - old.size"
        " WHERE tenant = old.tenant AND shelf = old.shelf AND conversation = old.conversation;"
        " DELETE FROM held WHERE bytes <= 0"
        " AND tenant = old.tenant AND shelf = old.shelf AND conversation = old.conversation; END",
        "CREATE TRIGGER conversation_left AFTER DELETE ON conversation BEGIN"
        " DELETE FROM leaf WHERE tenant = old.tenant AND conversation = old.name; END",
    ),
)
"""`PRAGMA user_version` says how many of them a file has seen. One that was released is never changed."""

LOAD = """
WITH asked AS (SELECT value FROM json_each(?))
SELECT 0, 0, anchor, decision, sent, at FROM step
    WHERE tenant = ? AND conversation = ? AND anchor IN asked
UNION ALL
SELECT 1, number, anchor, content, NULL, NULL FROM recall
    WHERE tenant = ? AND conversation = ? AND anchor IN asked
UNION ALL
SELECT 2, number, id, first, content, NULL FROM summary
    WHERE tenant = ? AND conversation = ? AND kind IN ('compaction', 'digest') AND first IN asked"""
"""Steps; then what stands behind replies, and then the summaries, in the order in which they were written."""

KEEP = """
INSERT INTO step (tenant, conversation, anchor, decision, sent, at, used) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET sent = coalesce(excluded.sent, sent), at = max(excluded.at, at), used = excluded.used
RETURNING decision, sent, at"""

MEND = "UPDATE step SET decision = ? WHERE tenant = ? AND conversation = ? AND anchor = ? AND decision IS ?"

KEEP_INSERT = """
INSERT INTO recall (tenant, conversation, anchor, reply, content, used) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, conversation, anchor, reply) DO UPDATE
SET number = (SELECT max(number) + 1 FROM recall), content = excluded.content, used = excluded.used"""

ORIGINAL = """
SELECT conversation, content FROM original
WHERE tenant = ? AND ref = ? AND conversation = coalesce(?, conversation)"""

LEAVES = """
SELECT name, about FROM leaf WHERE tenant = ? AND conversation = ? AND shelf = ? ORDER BY number"""

TEXTS = """
SELECT name, content FROM leaf
WHERE tenant = ? AND conversation = ? AND shelf = ? AND name IN (SELECT value FROM json_each(?))"""

HOLDERS = "SELECT conversation FROM leaf WHERE tenant = ? AND shelf = 'artifact' AND name = ? ORDER BY number"

# The oldest, as long as those before them do not make up for what is too much.
_TRIM = """
DELETE FROM leaf WHERE number IN
    (SELECT number FROM
        (SELECT number, sum(size) OVER (ORDER BY number) - size AS before FROM
            (SELECT number, size FROM leaf WHERE {0} AND shelf = ?2 ORDER BY number LIMIT 50))
     WHERE before < (SELECT total(bytes) FROM held WHERE {0} AND shelf = ?2) - ?3)
RETURNING 1"""

TRIM = {
    "artifact": _TRIM.format("tenant = ?1 AND ?4 IS ?4"),
    "message": _TRIM.format("tenant = ?1 AND conversation = ?4"),
}
"""By shelf, whose bytes are counted: the tenant's, or the conversation's."""

KEEP_SUMMARY = """
INSERT INTO summary (tenant, conversation, id, kind, first, content, used) SELECT ?, ?, ?, ?, ?, ?, ?
WHERE ? IS NULL OR EXISTS (SELECT 1 FROM lease WHERE tenant = ? AND conversation = ? AND name = ? AND token = ?)
ON CONFLICT (tenant, conversation, id) DO UPDATE
SET number = (SELECT max(number) + 1 FROM summary), kind = excluded.kind, first = excluded.first,
    content = excluded.content, used = excluded.used
RETURNING 1"""

SUMMARIES = "SELECT id, first, content FROM summary WHERE tenant = ? AND conversation = ? ORDER BY number"

# What is no time, or too far ahead, was damaged, or written by a clock that was wrong.
LEASE = """
INSERT INTO lease (tenant, conversation, name, token, until, used) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET token = max(token + 1, excluded.token), until = excluded.until, used = excluded.used
WHERE typeof(until) <> 'real' OR until <= excluded.used OR until > excluded.used + ?
RETURNING token"""

RELEASE = "UPDATE lease SET until = 0 WHERE tenant = ? AND conversation = ? AND name = ? AND token = ?"

SPEND = """
INSERT INTO spent (tenant, conversation, kind, content, used) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET content = added(kind, content, excluded.content), used = excluded.used"""

SPENT = "SELECT kind, content FROM spent WHERE tenant = ? AND conversation = ?"

NOTE = "INSERT INTO event (tenant, conversation, content, used) VALUES (?, ?, ?, ?)"

_EVENTS = "SELECT tenant, conversation, content FROM event {} ORDER BY number DESC LIMIT ?"

# Events, originals and leaves are many, and may be large. Before a conversation goes, they go a few at a time: nobody
# waits longer than for these.
_A_FEW = "DELETE FROM {0} WHERE rowid IN (SELECT rowid FROM {0} WHERE {1} LIMIT 50) RETURNING 1"
_MANY = ("event", "original", "leaf")

DELETE_FIRST = tuple(_A_FEW.format(table, "tenant = ? AND conversation = ?") for table in _MANY)
DELETE = "DELETE FROM conversation WHERE tenant = ? AND name = ? RETURNING 1"

DELETE_TENANT_FIRST = tuple(_A_FEW.format(table, "tenant = ?") for table in _MANY)
DELETE_TENANT = "DELETE FROM conversation WHERE tenant = ? RETURNING 1"

_SWEEP_ROWS = """
DELETE FROM {0} WHERE rowid IN
    (SELECT {0}.rowid FROM (SELECT tenant, name FROM conversation WHERE used < ? ORDER BY used LIMIT 20) AS old
     JOIN {0} ON {0}.tenant = old.tenant AND {0}.conversation = old.name LIMIT 50)
RETURNING 1"""

SWEEP_FIRST = tuple(map(_SWEEP_ROWS.format, ("step", "recall", "original", "summary", "leaf")))
SWEEP = """
DELETE FROM conversation WHERE (tenant, name) IN
    (SELECT tenant, name FROM conversation WHERE used < ? ORDER BY used LIMIT 20)
RETURNING 1"""

_SWEEP_NUMBERED = """
DELETE FROM {0} WHERE number IN
    (SELECT number FROM (SELECT number, used FROM {0} ORDER BY number LIMIT 50) WHERE used < ?)
RETURNING 1"""

SWEEP_NUMBERED = tuple(map(_SWEEP_NUMBERED.format, ("event", "leaf")))

MADE_ONCE = """
INSERT INTO secret VALUES (?, ?) ON CONFLICT DO UPDATE
SET value = CASE WHEN typeof(value) = 'blob' AND length(value) = 32 THEN value ELSE excluded.value END
RETURNING value"""

# Takes the write lock and changes nothing: fails where the file is locked, read-only or gone.
PROBE = "UPDATE secret SET value = value WHERE name IS NULL"

_KEEP_ORIGINALS = """
INSERT INTO original (tenant, conversation, ref, content, used) VALUES {}
ON CONFLICT DO UPDATE SET content = kept(tenant, conversation, ref, content, excluded.content), used = excluded.used
WHERE kept(tenant, conversation, ref, content, excluded.content) IS NOT content"""


_KEEP_LEAVES = """
INSERT INTO leaf (tenant, conversation, shelf, name, size, used, about, content) VALUES {}
ON CONFLICT (tenant, conversation, shelf, name) DO UPDATE SET content = excluded.content"""


def keep_leaves(count: int) -> str:
    """For so many at once. A text that is there is the same, and may be damaged: it is written anew."""
    return _KEEP_LEAVES.format(", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * count))


def keep_originals(count: int) -> str:
    """For so many at once. What is there stays if it can be read, as `kept` of ours says."""
    return _KEEP_ORIGINALS.format(", ".join(["(?, ?, ?, ?, ?)"] * count))


def events(*, tenant: bool, conversation: bool) -> str:
    """The newest of all, or those of one tenant or of one conversation."""
    wanted = [name for name, asked in (("tenant = ?", tenant), ("conversation = ?", conversation)) if asked]
    return _EVENTS.format("WHERE " + " AND ".join(wanted) if wanted else "")
