"""Requests and replies on the wire: what is received, forwarded upstream and returned to the client."""
