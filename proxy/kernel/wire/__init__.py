"""HTTP/1.1 with clients: heads, uploads, and responses."""
