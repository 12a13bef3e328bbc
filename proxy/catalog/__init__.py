"""Where models are served, what they cost, and how large their windows are."""
