"""What the planner counts of a request is what its bytes hold, whatever was edited: bills and hard marks rely on it."""

import json

import pytest

from policies.compact import compact
from tests.kit.apis import Api
from tests.kit.stage import working


@pytest.mark.parametrize("preset", ["coding-agent", "eager", "structural"])
def test_c2_the_tokens_of_an_edited_request_are_those_of_its_body(api: Api, preset: str) -> None:
    """Clipped arguments of named calls, shortened results, and folds that become exchanges of recall: those count in
    what is sent, and not in what the client wrote."""
    body = json.dumps({"model": "gpt-5.4", "max_tokens": 1_000} | api.body(working(40, 60)[:-1])).encode()
    result = compact(body, dialect=api.dialect, policies=preset, recall=True)
    assert {"clip", "offload"} & {edit.by for edit in result.plan.edits}
    again = compact(result.body, dialect=api.dialect, policies=(), recall=True)
    assert again.plan.after == result.plan.after
