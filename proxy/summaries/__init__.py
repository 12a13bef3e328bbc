"""Summaries and digests: asked for with a request, written in the background, and used by later requests."""
