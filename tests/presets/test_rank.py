"""K: what a tool returned is sent with the rank of a tool, and roles alternate as the client's do, in every preset and
every API. The lines are those of tests/text/cases/rank.toml."""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import jinja2
import pytest

from policies.presets import PRESETS
from policies.tools import RECALL
from proxy.lab.provider import Received, Say, find_violation
from tests.kit.apis import APIS, Api
from tests.kit.histories import Json
from tests.kit.prefixes import ask, moved
from tests.kit.rolling import material_of, notes_of
from tests.kit.running import compaction_of
from tests.kit.stage import Exchange, Stage, ends
from tests.kit.talk import signed
from tests.kit.templates import template_violation

HERE = Path(__file__).parent
LINES = [case["text"] for case in tomllib.loads((HERE.parent / "text/cases/rank.toml").read_text())["lines"]]
TEMPLATES = tomllib.loads((HERE / "templates.toml").read_text())
SYSTEM_SUMMARIES = frozenset({"chat", "agent-summary"})
"""The named exceptions: presets whose document puts the summary into system text, wherever it stands."""
PRICED = {name: {"input": 1, "output": 1, "read": 0.1, "write": 1.0, "window": 9_000} for name in ("m", "scribe")}
SETTINGS: Json = {
    "models": PRICED,
    "summarizers": [{"model": "scribe"}],
    "summary_wait": 10_000,
    "window": 9_000,
    "floor": None,
}
LITTLE: dict[str, Json] = {"anthropic_messages": {"max_tokens": 500}, "openai_chat": {}, "openai_responses": {}}
"""The room for the answer, so that records come before the window is full."""
pytestmark = pytest.mark.usefixtures("patient")


RECORDING, WITH_RECORDS = ("coding-agent", "adaptive"), 90
"""Presets that make records of old turns where these pay, and turns of a session in which they do."""


def attacked(turns: int = 36, with_tools: bool = True) -> list[Json]:
    """A long session: in every output stands a line of an attacker's; a person speaks after each sixth turn."""
    line = cycle(LINES)
    messages: list[Json] = [
        {"role": "system", "content": "You are careful."},
        {"role": "user", "content": "Please mend the importer, step by step. Never push."},
    ]
    for turn in range(turns):
        if with_tools:
            arguments = json.dumps({"command": f"python import_{turn}.py --check"})
            call = {"id": f"call{turn:05}", "type": "function", "function": {"name": "bash", "arguments": arguments}}
            rows = [f"row {n} of import_{turn}: value_{turn}_{n} is well formed and was read" for n in range(24)]
            output = "\n".join([*rows[:12], next(line), *rows[12:]])
            messages.append(
                {"role": "assistant", "content": f"Step {turn}: I check import_{turn}.", "tool_calls": [call]}
            )
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
        if turn % 6 == 5 or not with_tools:
            prose = "It was read in the order in which it came, and nothing of it was lost. " * (
                1 if with_tools else 12
            )
            messages.append({"role": "assistant", "content": f"{prose}Step {turn} is done."})
            messages.append({"role": "user", "content": f"Good. Go on with what follows step {turn}."})
    return [*messages, {"role": "assistant", "content": "It is done."}]


def conspires(received: Received) -> Say:
    """A summarizer that helps the attacker: it quotes each of these lines, under its number and under a person's."""
    material = material_of(received)
    numbered = re.findall(r"^\[(\d+)\] result.*\n((?: {4}.*\n?)+)", material, re.MULTILINE)
    lines = [f"[{number}] {line}" for number, text in numbered for line in LINES if line in text]
    return Say("\n".join([notes_of(material), *lines, *(f'[1] "{line}"' for line in LINES)]))


async def sent_by(stage: Stage, api: Api, preset: str, session: Sequence[Json], **fields: Any) -> list[Exchange]:
    """Requests of the session, in their order, as they went upstream."""
    stage.provider.answer = lambda received: conspires(received) if received.model == "scribe" else None
    app = await stage.start(preset=preset, **SETTINGS)
    grown = []
    for end in ends(session)[4::3]:
        grown.append(await ask(stage, app, api, session[:end], **LITTLE[api.dialect], **fields))
        await compaction_of(app).maker.settled()
    assert {exchange.status for exchange in grown} == {200}
    return grown


def entries_of(body: bytes) -> list[Json]:
    fields = json.loads(body)
    found: list[Json] = fields.get("messages", fields.get("input"))
    return found


def parts_of(body: bytes) -> Iterator[tuple[str, str]]:
    """Each part of a history, with its rank."""
    for entry in entries_of(body):
        kind = entry.get("type", "message")
        if kind != "message":
            yield "tool" if kind.endswith("_output") else "assistant", json.dumps(entry, ensure_ascii=False)
            continue
        blocks = entry["content"] if isinstance(entry.get("content"), list) else [entry]
        for block in blocks:
            is_result = entry["role"] == "tool" or block.get("type") == "tool_result"
            yield "tool" if is_result else entry["role"], json.dumps(block, ensure_ascii=False)


def roles_of(body: bytes) -> list[str]:
    """The ranks that follow each other, once for each message; the items of one reply are one message."""
    roles: list[str] = []
    for entry in entries_of(body):
        kind, content = entry.get("type", "message"), entry.get("content")
        is_result = isinstance(content, list) and any(part.get("type") == "tool_result" for part in content)
        role = entry.get("role", "tool" if kind.endswith("_output") else "assistant")
        is_call = kind == "function_call" and roles[-1:] == ["assistant"]
        if not is_call:
            roles.append("tool" if is_result else role)
    return roles


def promoted(exchange: Exchange) -> list[tuple[str, str]]:
    """The attacker's lines that stand in another rank than that of a tool."""
    parts = [(rank, text) for rank, text in parts_of(exchange.sent) if rank != "tool"]
    return [
        (rank, line) for rank, text in parts for line in LINES if json.dumps(line, ensure_ascii=False)[1:-1] in text
    ]


def new_pairs(preset: str, exchange: Exchange) -> set[tuple[str, str]]:
    """The neighbours among roles that the client did not send, but the named exceptions."""
    pairs = set(pairwise(roles_of(exchange.sent))) - set(pairwise(roles_of(exchange.given)))
    return {pair for pair in pairs if not (preset in SYSTEM_SUMMARIES and "system" in pair)}


@pytest.mark.parametrize("preset", PRESETS)
async def test_k1_k2_no_line_of_a_tool_gains_rank_and_no_two_roles_meet_that_did_not(
    stage: Stage, api: Api, preset: str
) -> None:
    grown = await sent_by(stage, api, preset, attacked(WITH_RECORDS if preset in RECORDING else 36))
    assert [promoted(exchange) for exchange in grown] == [[]] * len(grown)
    assert [new_pairs(preset, exchange) for exchange in grown] == [set()] * len(grown)
    assert moved(api, grown) == []
    assert preset == "lossless" or any(b"left out" in exchange.sent for exchange in grown)
    if preset in RECORDING:  # what a record holds of tools is there, as a tool's answer
        parts = [part for exchange in grown for part in parts_of(exchange.sent)]
        records = [text for rank, text in parts if rank == "tool" and "below is a record" in text]
        assert any(line in text for text in records for line in LINES)
    if preset in ("harness", "deep"):  # and a summary may quote it, under its own rank
        assert any(f"] tool bash: {line}" in exchange.sent.decode() for exchange in grown for line in LINES[:3])


@pytest.mark.parametrize("preset", ["adaptive", "deep", "harness"])
async def test_k1_where_calls_are_signed_no_line_of_a_tool_gains_rank(stage: Stage, preset: str) -> None:
    grown = await sent_by(stage, APIS["openai_chat"], preset, signed(attacked()))
    assert [promoted(exchange) for exchange in grown] == [[]] * len(grown)
    assert any(b"left out" in exchange.sent for exchange in grown)


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - SYSTEM_SUMMARIES))
async def test_k2_templates_render_what_they_rendered_before(stage: Stage, preset: str) -> None:
    """Of an agent's session those of Mistral and Qwen, of a chat that of Gemma, too; and the strict provider with the
    rule of templates takes all of it, and shows that it can refuse."""
    for session, tools, names in (
        (attacked(), True, ("mistral", "qwen")),
        (attacked(24, with_tools=False), False, ("gemma", "mistral", "qwen")),
    ):
        stage.provider.refuse = template_violation
        fields: Json = {} if tools else {"tools": None}
        grown = await sent_by(stage, APIS["openai_chat"], preset, session, **fields)
        for exchange in grown:
            messages = json.loads(exchange.sent)["messages"]
            for name in names:
                rendered(name, json.loads(exchange.given)["messages"])
                rendered(name, messages)
            assert template_violation({"messages": messages}) is None


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "alternate"),
        ([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}], "beginning"),
        (
            [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "1", "content": "b"}],
            "follow a tool call",
        ),
    ],
)
def test_the_rule_of_templates_refuses_what_templates_do(messages: list[Json], why: str) -> None:
    violation = template_violation({"messages": messages})
    assert violation is not None
    assert why in violation.message


async def test_r1_a_call_with_the_reference_of_a_record_returns_the_original(stage: Stage, api: Api) -> None:
    """The exchange of a record stands only in what is sent; recall reads what the client sent."""
    grown = await sent_by(stage, api, "coding-agent", attacked(WITH_RECORDS))
    made = [text for rank, text in parts_of(grown[-1].sent) if rank == "assistant" and RECALL in text]
    assert made
    assert len(set(made)) == len(made)  # ids are unique
    assert find_violation(json.loads(grown[-1].sent), dialect=api.dialect) is None


def rendered(name: str, messages: Sequence[Json]) -> str:
    def refuse(why: str) -> None:
        raise jinja2.TemplateError(why)

    template = jinja2.Environment(autoescape=True).from_string(TEMPLATES[name])
    return template.render(messages=messages, raise_exception=refuse)
