"""What replays, explains, draws and simulates. Nothing that serves requests imports it."""
