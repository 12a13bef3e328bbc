"""OpenAI chat completions: the API's prompts and replies, and its rules."""
