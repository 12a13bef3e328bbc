"""Tests that take longer or need more than PyPI has; each is a target of the Makefile."""
