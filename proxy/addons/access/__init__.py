"""Whose requests these are: keys of this gateway, and what gateways in front say."""
