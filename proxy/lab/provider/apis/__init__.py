"""One API each: its rules, its prompts, its replies."""
