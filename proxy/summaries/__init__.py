"""Summaries and digests: asked for with a request, written in the background, and used by later requests.

The states of a summary, and where each begins: policies/model/summary_record.py.
"""
