"""Summaries and digests: who writes them, what is asked for and judged, and what becomes of them on a request's way."""
