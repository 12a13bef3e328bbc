"""`make reference`: write the pages."""

from tests.docs.reference import WRITERS

for path, page in WRITERS.items():
    path.write_text(page(), encoding="utf-8")
