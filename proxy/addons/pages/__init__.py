"""Narrows' own pages: who may ask for them, and what they answer."""
