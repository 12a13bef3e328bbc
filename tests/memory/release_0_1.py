"""What release 0.1 wrote: the schema of its SQLite files, in the four steps of its migrations, and its Redis keys."""

import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from shutil import copyfile

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


def write_file(path: Path, schema: int, *, killed: bool = False) -> None:
    """A file of this schema, 1 to 4, with a decision and a secret, and, from 2 on, an original. `killed`: its process
    did not close it, so all is in its write-ahead log."""
    written = path.with_suffix(".written") if killed else path
    with closing(sqlite3.connect(written)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for migration in MIGRATIONS[:schema]:
            for statement in migration:
                connection.execute(statement)
        names = (b"tenant", b"conversation")
        connection.execute("INSERT INTO step VALUES (?, ?, 'anchor', ?, NULL, 1.5, 4e9)", (*names, b"\3decision"))
        connection.execute("INSERT INTO secret VALUES ('credentials', ?)", (b"s" * 32,))
        if schema > 1:
            connection.execute("INSERT INTO original VALUES (?, ?, ?, ?, 4e9)", (*names, b"482913", b"\3a text"))
        connection.execute(f"PRAGMA user_version = {schema}")
        connection.commit()
        for suffix in ("", "-wal") if killed else ():
            copyfile(f"{written}{suffix}", f"{path}{suffix}")


def redis_keys(prefix: str) -> dict[str, list[tuple[str | bytes, ...]]]:
    """Its keys of one conversation, and the commands that write them."""
    digest = sha256(b"6:tenant12:conversation").hexdigest()[:32]
    tag = f"{prefix}:{{{digest}}}"
    return {
        f"{tag}:steps": [("HSET", f"{tag}:steps", "danchor", b"\3decision", "tanchor", "1.5")],
        f"{tag}:originals": [("HSET", f"{tag}:originals", "482913", b"\3a text")],
        f"{prefix}:tenants": [("ZADD", f"{prefix}:tenants", "4e9", "tenant")],
        f"{prefix}:secret:credentials": [("SET", f"{prefix}:secret:credentials", b"s" * 32)],
    }
