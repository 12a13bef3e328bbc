"""The costs of conversations, as `narrows usage` and the pages report it, from the bills in the store."""
