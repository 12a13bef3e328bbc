"""Whose requests these are, and what they may: keys of this gateway, and what gateways in front say."""
