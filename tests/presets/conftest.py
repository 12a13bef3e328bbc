"""What the end-to-end tests of presets share with those of the proxy."""

from tests.conftest import narrows
from tests.proxy.conftest import patient, stage
from tests.proxy.rolling import office_of_a_test

__all__ = ["narrows", "office_of_a_test", "patient", "stage"]
