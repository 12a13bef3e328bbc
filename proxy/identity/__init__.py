"""Who asks: what a client shows of itself, where it asks from, and what both together let it do."""
