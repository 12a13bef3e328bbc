"""C5 over the wire: what is shortened never grows."""

from typing import Any

import pytest

from policies.dialects.openai_chat.request import TOOL as RECALL
from policies.model.tokens import Counter
from tests.kit.histories import TOOLS
from tests.kit.stage import Exchange, Stage

pytestmark = pytest.mark.usefixtures("patient")


def before(exchange: Exchange) -> int:
    """Tokens of the request as the client sent it, as the reply reports them."""
    return int(exchange.headers["x-narrows-tokens-before"])


def after(exchange: Exchange) -> int:
    return int(exchange.headers["x-narrows-tokens-after"])


@pytest.mark.parametrize(("tools", "added"), [(None, 0), (TOOLS, Counter()(f",{RECALL.decode()}"))])
async def test_c5_nothing_is_left_out_where_its_stub_would_be_longer(stage: Stage, tools: Any, added: int) -> None:
    """Many short turns between short questions: there is nothing to gain, so nothing may grow."""
    said = [{"role": role, "content": f"{role} {n}"} for n in range(600) for role in ("user", "assistant")]
    exchange = await stage.ask(await stage.start(window=3_000), said[:-1], model="unknown", tools=tools)
    assert before(exchange) > 3_000
    assert after(exchange) <= before(exchange) + added
    assert "left out to fit the window" not in exchange.text


async def test_c4_an_unknown_window_is_no_reason_to_leave_anything_out(stage: Stage) -> None:
    """In windows of a million, trimming began at 107,827 tokens."""
    said = [
        {"role": role, "content": f"{role} {n} " + "word " * 400} for n in range(160) for role in ("user", "assistant")
    ]
    app = await stage.start(preset="structural")
    exchange = await stage.ask(app, said[:-1], model="claude-opus-6", tools=None)
    assert before(exchange) > 120_000
    assert after(exchange) == before(exchange)
    assert (await stage.ask(app, said[:-1], model="gpt-4o", tools=None)).headers["x-narrows-mode"] == "compacted"
