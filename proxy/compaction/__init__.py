"""From the bytes a client sent to the bytes that go upstream."""
