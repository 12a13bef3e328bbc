"""Whether anything of what a client sent is gone: neither in what was sent, nor to be recalled byte for byte."""

import json
from collections.abc import Iterator
from typing import Any

from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, converse
from policies.recall import original
from tests.kit.apis import Api, entries
from tests.kit.histories import refs_in
from tests.kit.talk import letters


def conversation_in(api: Api, body: bytes) -> Conversation:
    dialect = DIALECTS[api.dialect]
    return converse([dialect.read(raw, letters) for raw in entries(api, body)])


def texts_in(value: Any) -> Iterator[str]:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(inner)
    if isinstance(value, str):
        yield value


def lost(api: Api, given: bytes, sent: bytes) -> list[str]:
    """The texts of a client's body that are neither in what was sent for it, nor behind a reference there; and the
    references that lead nowhere."""
    client, upstream = conversation_in(api, given), conversation_in(api, sent)
    own = {text for text in texts_in(json.loads(given)[api.history]) if refs_in(text)}
    texts = (text for text in texts_in(json.loads(sent)[api.history]) if text not in own)
    originals = {ref: original(client, ref) for text in texts for ref in refs_in(text)}
    there = {block.text for block in upstream.blocks}
    hidden = [text for text in originals.values() if text]
    gone = [b.text for b in client.blocks if b.text not in there and not any(b.text in text for text in hidden)]
    return gone + [ref for ref, text in originals.items() if text is None]
