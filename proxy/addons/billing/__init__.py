"""Costs of conversations: both bills of each request, added up by day and by conversation, and the holdout."""
