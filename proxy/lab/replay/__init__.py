"""Recorded sessions through a real Narrows: who plays the model, what it cost with and without, and side by side."""
