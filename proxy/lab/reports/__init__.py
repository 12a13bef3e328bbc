"""Results, drawn: `text` and `presets` for a terminal, `page` for a browser."""
