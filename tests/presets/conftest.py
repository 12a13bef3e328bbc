"""What the end-to-end tests of presets share."""

from tests.kit.rolling import office_of_a_test

__all__ = ["office_of_a_test"]
