"""Anthropic Messages: content blocks, the order of messages, thinking, the other rules, and the API's replies."""
