"""Texts of requests that are stored for people: nothing that is sent needs it."""
