"""The tables of bills in SQLite: a row for each bill, for each conversation, and for each day and its labels. A batch
is inserted into a view, whose trigger writes all three, and nothing where the bill is there.
"""

from proxy.store import BILLS, DAY_ROWS

_OF_CONVERSATION = "tenant BLOB NOT NULL, conversation BLOB NOT NULL"
_HAS_ROW = "EXISTS (SELECT 1 FROM bill_day WHERE tenant = new.tenant AND day = new.day AND name = new.name)"
_HAS_ROOM = f"(SELECT count(*) FROM bill_day WHERE tenant = new.tenant AND day = new.day) < {DAY_ROWS}"
_ADDED = "ON CONFLICT DO UPDATE SET content = day_sums(content, excluded.content)"

BILL_TABLES = (
    f"CREATE TABLE IF NOT EXISTS bill (number INTEGER PRIMARY KEY, {_OF_CONVERSATION}, id TEXT NOT NULL,"
    " used REAL NOT NULL, content BLOB NOT NULL, UNIQUE (tenant, conversation, id))",
    "CREATE INDEX IF NOT EXISTS bill_of_none ON bill (number) WHERE conversation = x''",
    "CREATE TABLE IF NOT EXISTS bill_day (tenant BLOB NOT NULL, day TEXT NOT NULL, name BLOB NOT NULL,"
    " owner TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY (tenant, day, name))",
    "CREATE INDEX IF NOT EXISTS bill_day_day ON bill_day (day)",
    f"CREATE TABLE IF NOT EXISTS bill_conversation ({_OF_CONVERSATION}, owner TEXT NOT NULL, at REAL NOT NULL,"
    " content BLOB NOT NULL, PRIMARY KEY (tenant, conversation))",
    "CREATE INDEX IF NOT EXISTS bill_conversation_at ON bill_conversation (at)",
    "CREATE INDEX IF NOT EXISTS bill_conversation_tenant ON bill_conversation (tenant, at)",
    "CREATE VIEW IF NOT EXISTS bill_added AS SELECT tenant, conversation, id, used AS at, content, used, x'' AS day,"
    " x'' AS name, '' AS owner, x'' AS sums, x'' AS other_name, '' AS other_owner, x'' AS other_sums, x'' AS row"
    " FROM bill",
    "CREATE TRIGGER IF NOT EXISTS bill_added_inserted INSTEAD OF INSERT ON bill_added WHEN NOT EXISTS"
    " (SELECT 1 FROM bill WHERE tenant = new.tenant AND conversation = new.conversation AND id = new.id) BEGIN"
    " INSERT INTO bill_day SELECT new.tenant, new.day, new.name, new.owner, new.sums"
    f" WHERE {_HAS_ROW} OR {_HAS_ROOM} {_ADDED};"
    " INSERT INTO bill_day SELECT new.tenant, new.day, new.other_name, new.other_owner, new.other_sums"
    f" WHERE NOT {_HAS_ROW} {_ADDED};"
    " INSERT INTO bill_conversation SELECT new.tenant, new.conversation, new.owner, new.at, new.row"
    " WHERE new.conversation <> x'' ON CONFLICT DO UPDATE"
    " SET content = conversation_sums(content, excluded.content), at = max(at, excluded.at),"
    " owner = iif(excluded.at >= at, excluded.owner, owner);"
    " INSERT INTO conversation SELECT new.tenant, new.conversation, new.used WHERE new.conversation <> x''"
    " ON CONFLICT DO UPDATE SET used = max(used, excluded.used);"
    " INSERT INTO bill (tenant, conversation, id, used, content)"
    " VALUES (new.tenant, new.conversation, new.id, new.at, new.content); END",
    "CREATE TRIGGER IF NOT EXISTS bill_inserted AFTER INSERT ON bill WHEN new.number % 16 = 0 BEGIN"
    " DELETE FROM bill WHERE number IN (SELECT number FROM bill WHERE tenant = new.tenant"
    f" AND conversation = new.conversation ORDER BY used DESC, number DESC LIMIT -1 OFFSET {BILLS}); END",
    "CREATE TRIGGER IF NOT EXISTS bill_deleted AFTER DELETE ON conversation BEGIN"
    " DELETE FROM bill WHERE tenant = old.tenant AND conversation = old.name;"
    " DELETE FROM bill_conversation WHERE tenant = old.tenant AND conversation = old.name; END",
)
"""As those of `statements` that a file of this version may be without."""
