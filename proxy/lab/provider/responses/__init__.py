"""OpenAI Responses: the API's items, its replies, and its rules."""
