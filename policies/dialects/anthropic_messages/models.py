"""The list of models, a page at a time."""

from collections.abc import Mapping, Sequence

from policies.dialects.http import Model, ModelListing

_PAGE, _LONGEST_PAGE = 20, 1_000
"""Models on a page where `limit` does not say, and at most."""
_PAGING = ("after_id", "before_id", "limit")


def page(models: Sequence[Model], query: Mapping[str, str]) -> Mapping[str, object]:
    """A page of the list."""
    ids = [model["id"] for model in models]
    after, before, limit = (query.get(name, "") for name in _PAGING)
    size = min(max(1, int(limit)), _LONGEST_PAGE) if limit.isascii() and limit.isdigit() else _PAGE
    begin = ids.index(after) + 1 if after in ids else 0
    end = ids.index(before) if before in ids else len(ids)
    entries = models[max(begin, end - size) : end] if before in ids else models[begin : begin + size]
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return {"data": entries, "has_more": len(entries) < end - begin, "first_id": first, "last_id": last}


MODELS = ModelListing(
    entry=lambda id_, _: {"type": "model", "id": id_, "display_name": id_, "created_at": "1970-01-01T00:00:00Z"},
    page=page,
    paging=_PAGING,
    whole=f"limit={_LONGEST_PAGE}",
)
