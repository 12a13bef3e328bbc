"""Narrows on one's own machine: run for one command, the lines that clients need, and a look at what would not work."""
