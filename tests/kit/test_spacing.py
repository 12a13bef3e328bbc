"""JSON over many lines is what `json.dumps` writes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.spacing import indented

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=9)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS | st.just("\n [\\n"),
    lambda deeper: st.lists(deeper, max_size=4) | st.dictionaries(_TEXTS, deeper, max_size=4),
)


@pytest.mark.parametrize(("comma", "colon"), [(",", ": "), (" ,", ":  ")])
@given(body=st.dictionaries(_TEXTS, _VALUES, min_size=1, max_size=5))
def test_a_body_over_many_lines_is_what_json_writes(comma: str, colon: str, body: dict[str, Any]) -> None:
    plain = json.dumps(body, indent=1, ensure_ascii=False, separators=(comma, colon))
    assert indented(body, comma, colon) == plain.encode()
