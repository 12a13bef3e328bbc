"""The store in Redis: one server, Sentinels or a cluster."""
