"""The cost of a request: prices, how prompt caches match, when a rewrite pays, and where cache marks help."""
