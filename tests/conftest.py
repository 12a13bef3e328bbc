"""The fixtures of all tests."""

pytest_plugins = ["tests.kit.running", "tests.kit.fixtures"]
