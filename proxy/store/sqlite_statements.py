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
)
"""`PRAGMA user_version` says how many of them a file has seen. One that was released is never changed."""

LOAD = """
WITH asked AS (SELECT value FROM json_each(?))
SELECT 0, anchor, decision, sent, at FROM step WHERE tenant = ? AND conversation = ? AND anchor IN asked
UNION ALL
SELECT number, anchor, content, NULL, NULL FROM recall WHERE tenant = ? AND conversation = ? AND anchor IN asked"""
"""Steps are number 0; the others are what stands behind replies, in the order in which it was written."""

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

# Originals may be large. Before a conversation goes, they go a few at a time: nobody waits longer than for these.
DELETE_ORIGINALS = """
DELETE FROM original WHERE rowid IN (SELECT rowid FROM original WHERE tenant = ? AND conversation = ? LIMIT 50)
RETURNING 1"""

DELETE_TENANT_ORIGINALS = """
DELETE FROM original WHERE rowid IN (SELECT rowid FROM original WHERE tenant = ? LIMIT 50)
RETURNING 1"""

SWEEP_ORIGINALS = """
DELETE FROM original WHERE rowid IN
    (SELECT original.rowid FROM (SELECT tenant, name FROM conversation WHERE used < ? ORDER BY used LIMIT 20) AS old
     JOIN original ON original.tenant = old.tenant AND original.conversation = old.name LIMIT 50)
RETURNING 1"""

DELETE = "DELETE FROM conversation WHERE tenant = ? AND name = ? RETURNING 1"

DELETE_TENANT = "DELETE FROM conversation WHERE tenant = ? RETURNING 1"

# A few at a time: whoever serves a request waits no longer than for these.
SWEEP = """
DELETE FROM conversation WHERE (tenant, name) IN
    (SELECT tenant, name FROM conversation WHERE used < ? ORDER BY used LIMIT 20)
RETURNING 1"""

MADE_ONCE = """
INSERT INTO secret VALUES (?, ?) ON CONFLICT DO UPDATE
SET value = CASE WHEN typeof(value) = 'blob' AND length(value) = 32 THEN value ELSE excluded.value END
RETURNING value"""

# Takes the write lock and changes nothing: fails where the file is locked, read-only or gone.
PROBE = "UPDATE secret SET value = value WHERE name IS NULL"

_KEEP_ORIGINALS = """
INSERT INTO original (tenant, conversation, ref, content, used) VALUES {}
ON CONFLICT DO UPDATE SET content = excluded.content, used = excluded.used WHERE NOT is_original(original.content)"""


def keep_originals(count: int) -> str:
    """For so many at once. What is there stays if it can be read, which SQLite asks `is_original` of ours."""
    return _KEEP_ORIGINALS.format(", ".join(["(?, ?, ?, ?, ?)"] * count))
