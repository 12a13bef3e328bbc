"""Which preset and which mode go for a request: by rule, and by what the request itself may ask for."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest

from policies.presets import PRESETS, Preset
from policies.tools import Toolbox
from proxy.config import ConfigurationError, Settings
from proxy.identity.who import Identity
from proxy.kernel.receive import named_model, options_of
from proxy.requests import RequestOptions
from tests.kit.histories import EAGER
from tests.kit.running import Running, Start
from tests.kit.settings import settings_with
from tests.kit.stage import Stage, ends, moved, working
from tests.kit.wire import APIS

KEY = "sk-team"
DIGEST = sha256(KEY.encode()).hexdigest()
MINE = {"mine": {"base": "gentle"}}
RULES: Any = (
    {"path": "/v1/messages", "preset": "chat"},
    {"key_sha256": DIGEST.upper(), "model": "gpt-4o*", "preset": "mine"},
    {"key_sha256": DIGEST, "mode": "off"},
    {"model": "o1", "preset": "adaptive", "mode": "observe"},
    {"model": "o3", "aim": "context", "context_tokens": 40_000},
)
NOBODY = Identity("", "t", "o")
CHAT, MESSAGES, RESPONSES = "openai_chat", "anthropic_messages", "openai_responses"


def body(model: str) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.mark.parametrize(
    ("dialect", "credential", "model", "asked", "expected"),
    [
        (MESSAGES, "", "gpt-4o", RequestOptions("on"), RequestOptions("on", "chat")),
        (MESSAGES, KEY, "gpt-4o", RequestOptions("off"), RequestOptions("off", "chat")),
        (CHAT, KEY, "gpt-4o-mini", RequestOptions("on"), RequestOptions("on", "mine")),
        (CHAT, f"other\n{KEY}", "gpt-4o", RequestOptions("observe"), RequestOptions("observe", "mine")),
        (RESPONSES, KEY, "gpt-4", RequestOptions("on"), RequestOptions("off")),
        (CHAT, "sk-else", "gpt-4o", RequestOptions("on"), RequestOptions("on")),
        (CHAT, "", "o1", RequestOptions("on"), RequestOptions("observe")),
        (CHAT, "", "o1-mini", RequestOptions("on"), RequestOptions("on")),
        (CHAT, "", "o1", RequestOptions("off", "mine"), RequestOptions("off", "mine")),
        (MESSAGES, "", "o1", RequestOptions("on", "gentle"), RequestOptions("on", "gentle")),
        (CHAT, "", "o3", RequestOptions("on"), RequestOptions("on", "", "context", 40_000)),
        (CHAT, "", "o3", RequestOptions("on", "", "bill", 9_000), RequestOptions("on", "", "bill", 9_000)),
        (CHAT, "", "o3", RequestOptions("on", "", None, 9_000), RequestOptions("on", "", "context", 9_000)),
    ],
)
async def test_the_first_rule_that_fits_counts_alone(
    dialect: str, credential: str, model: str, asked: RequestOptions, expected: RequestOptions
) -> None:
    settings = Settings(rules=RULES, presets=MINE)  # type: ignore[arg-type]  # as the file says it
    access = Identity(credential, "t", "o")
    assert options_of(asked, settings, dialect, access, await named_model(body(model))) == expected


@pytest.mark.parametrize("unread", [b"", b"[]", b'{"model": 5}', b'{"model": "\xff"}', b'{"a":' + b"[" * 100_000])
async def test_x8_a_body_without_a_model_fits_no_rule_about_one(unread: bytes) -> None:
    assert await named_model(unread) == ""


async def test_a_large_body_is_looked_through_beside_the_others() -> None:
    assert await named_model(b'{"pad":"' + b"x" * 2**22 + b'","model":"o1"}') == "o1"


@pytest.mark.parametrize(
    ("rule", "advice"),
    [
        ('mode = "off"', "rules.0: say for which requests: one of path, key_sha256, model"),
        ('model = "x"', "rules.0: say what then: one of preset, mode, aim, context_tokens"),
        ('model = "x"\naim = "cost"', "rules.0.aim: Input should be 'bill', 'context' or 'steady'"),
        ('model = "x"\ncontext_tokens = 999', "rules.0.context_tokens: Input should be greater than or equal to 1000"),
        ('model = "x"\ncontext_tokens = "9000"', "rules.0.context_tokens: Input should be a valid integer"),
        (
            'path = "/v1/mesages"\nmode = "off"',  # codespell:ignore mesages
            "rules.0.path: there is no path '/v1/mesages' (did you mean /v1/messages?)",
        ),
        ('path = "/v1/messages/count_tokens"\nmode = "off"', "rules.0.path: there is no path"),
        ('key_sha256 = "sk-team"\nmode = "off"', "rules.0.key_sha256: give the SHA-256"),
        ('model = "a*b"\nmode = "off"', "rules.0.model: give a name, with one * at its end at most"),
        ('model = "x"\npreset = "gentel"', "rules.0.preset: there is no preset 'gentel' (did you mean gentle?)"),
        ('model = "x"\nmode = "of"', "rules.0.mode: Input should be 'on', 'off' or 'observe' (did you mean off?)"),
        ('modle = "x"\nmode = "off"', "rules.0.modle: there is no setting 'modle'"),  # codespell:ignore modle
        (
            'model = "a*"\nmode = "off"\n[[rules]]\nkey_sha256 = "' + DIGEST + '"\nmodel = "ab"\nmode = "on"',
            "rules.1: it never counts: rules.0 fits all that it fits; move it up",
        ),
    ],
)
def test_c6_a_rule_that_cannot_be_meant_is_refused(tmp_path: Any, rule: str, advice: str) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text(f"[[rules]]\n{rule}\n")
    with pytest.raises(ConfigurationError) as refusal:
        settings_with(["--config", str(file)])
    assert str(refusal.value).startswith(advice)
    assert f" ({file}, line " in str(refusal.value)


# --- over the wire ---


async def post(
    setup: Running, path: str, content: bytes, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str], Any]:
    url = setup.url.removesuffix("/v1") + path
    async with setup.client.post(url, data=content, headers={"Content-Type": "application/json", **headers}) as reply:
        return reply.status, reply.headers, await reply.read()


async def test_a_request_is_served_as_its_path_its_key_and_its_model_say(narrows: Start) -> None:
    setup = await narrows(rules=RULES, presets=MINE)
    proofs: list[dict[str, str]] = [{}, {"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}]
    for api in APIS:
        for proof in proofs:
            await post(setup, api.path, api.body, proof)
    served = [noted.client_request.options[:2] for noted in setup.compaction.seen]
    by_key = [("on", ""), ("on", "mine"), ("on", "mine")]
    assert served == [*by_key, *by_key, *[("on", "chat")] * 3]


async def test_a_request_may_choose_what_it_is_allowed_to(narrows: Start) -> None:
    setup = await narrows(request_presets=["mine", "adaptive"], presets=MINE, rules=RULES)
    for name in ("mine", " mine ", "adaptive"):
        await post(setup, "/v1/messages", body("m"), {"x-narrows-preset": name, "x-narrows": "observe"})
    served = [noted.client_request.options[:2] for noted in setup.compaction.seen]
    assert served == [("observe", "mine"), ("observe", "mine"), ("observe", "")]
    forwarded = {name.lower() for asked in setup.upstream.seen for name, _ in asked.headers}
    assert not [name for name in forwarded if name.startswith("x-narrows")]


@pytest.mark.parametrize(("allowed", "advice"), [([], "allows none"), (["gentle", "chat"], "one of gentle, chat")])
async def test_what_it_may_not_choose_is_refused_in_the_shape_of_its_api(
    narrows: Start, allowed: list[str], advice: str
) -> None:
    setup = await narrows(request_presets=allowed)
    for api in APIS:
        for names in (["rolling"], [""], ["chat", "chat"]):
            headers = [("x-narrows-preset", name) for name in names]
            url = setup.url.removesuffix("/v1") + api.path
            async with setup.client.post(url, data=api.body, headers=headers) as reply:
                said = await reply.json()
            assert (reply.status, api.code(said)) == (400, "bad_header")
            assert "x-narrows-preset" in said["error"]["message"]
            assert advice in said["error"]["message"]
    assert setup.upstream.seen == []


# --- the aim and the size of a request ---

AIM, SIZE = "x-narrows-aim", "x-narrows-context-tokens"


async def test_a_request_may_choose_its_aim_and_its_size_before_a_rule_does(narrows: Start) -> None:
    setup = await narrows(request_aim=True, rules=({"model": "o3", "aim": "context", "context_tokens": 40_000},))
    choices: list[dict[str, str]] = [{}, {AIM: " Bill "}, {SIZE: "1000"}, {AIM: "bill", SIZE: " 250000 "}]
    for headers in choices:
        await post(setup, "/v1/chat/completions", body("o3"), headers)
    served = [noted.client_request.options[2:4] for noted in setup.compaction.seen]
    assert served == [("context", 40_000), ("bill", 40_000), ("context", 1_000), ("bill", 250_000)]
    forwarded = {name.lower() for request in setup.upstream.seen for name, _ in request.headers}
    assert not [name for name in forwarded if name.startswith("x-narrows")]


@pytest.mark.parametrize(
    ("allowed", "name", "values", "advice"),
    [
        (False, AIM, ["bill"], "is not allowed: `request_aim` is off"),
        (False, SIZE, ["50000"], "is not allowed: `request_aim` is off"),
        (True, AIM, ["cheap"], "must be bill, context or steady"),
        (True, AIM, ["bill", "bill"], "must be bill, context or steady"),
        (True, SIZE, ["999"], "must be one number, 1,000 or more"),
        (True, SIZE, ["-5000"], "must be one number"),
        (True, SIZE, ["50k"], "must be one number"),
        (True, SIZE, ["5" * 30], "must be one number"),
        (True, SIZE, ["5000", "5000"], "must be one number"),
        (True, SIZE, [""], "must be one number"),
    ],
)
async def test_an_aim_or_a_size_that_may_not_be_sent_is_refused_in_the_shape_of_the_api(
    narrows: Start, allowed: bool, name: str, values: list[str], advice: str
) -> None:
    setup = await narrows(request_aim=allowed)
    for api in APIS:
        url = setup.url.removesuffix("/v1") + api.path
        async with setup.client.post(url, data=api.body, headers=[(name, value) for value in values]) as reply:
            error = await reply.json()
        assert (reply.status, api.code(error)) == (400, "bad_header")
        assert f"The header {name} {advice}" in error["error"]["message"]
    assert setup.upstream.seen == []


@pytest.mark.usefixtures("patient")
async def test_s2_another_aim_in_a_conversation_moves_nothing_undeclared(stage: Stage) -> None:
    app = await stage.start(request_aim=True)
    session = working(8)
    headers: list[list[tuple[str, str]]] = [[], [], [], [(AIM, "context")], [(AIM, "context")], [], []]
    requests = zip(ends(session)[:7], headers, strict=True)
    grown = [await stage.ask(app, session[:end], *chosen) for end, chosen in requests]
    assert moved(grown) == []


async def test_a_prompt_over_its_size_is_said_beside_other_warnings(stage: Stage) -> None:
    app = await stage.start(context_tokens=1_000)
    question = {"role": "user", "content": "word " * 1_500}
    small = await stage.ask(app, [{"role": "user", "content": "hello"}])
    large = await stage.ask(app, [question])
    observed = await stage.ask(app, [question], ("x-narrows", "observe"))
    assert "x-narrows-warning" not in small.headers
    assert int(large.headers["x-narrows-tokens-after"]) > 1_000
    assert large.headers["x-narrows-warning"] == observed.headers["x-narrows-warning"] == "over-context-tokens"
    written = {"path": "a.py", "content": "[narrows: rest: ref 482913]"}
    call = {"id": "c1", "type": "function", "function": {"name": "write_file", "arguments": json.dumps(written)}}
    answered = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "ok"}]
    both = await stage.ask(app, [question, *answered])
    assert both.headers["x-narrows-warning"] == "marker-in-argument, over-context-tokens"


# --- modes and presets by rule ---


async def test_one_key_is_compacted_where_all_others_are_relayed(stage: Stage) -> None:
    rule = {"key_sha256": DIGEST, "mode": "on"}
    app = await stage.start(mode="off", rules=(rule,))
    others = await stage.ask(app, working()[:-1])
    team = await stage.ask(app, working()[:-1], ("Authorization", f"Bearer {KEY}"))
    assert (others.mode, others.sent) == ("bypassed", others.given)
    assert (team.mode, len(team.sent) < len(team.given)) == ("compacted", True)


@pytest.mark.usefixtures("patient")
async def test_s2_another_preset_in_a_conversation_moves_nothing_undeclared(stage: Stage) -> None:
    app = await stage.start(preset="coding-agent", request_presets=("eager",))
    session, eager = working(12), ("x-narrows-preset", "eager")
    headers: list[list[tuple[str, str]]] = [[], [], [], [], [eager], [eager], [eager], [], [], [], [eager], [eager]]
    grown = [await stage.ask(app, session[:end], *said) for end, said in zip(ends(session)[:12], headers, strict=True)]
    assert [exchange.headers.get("x-narrows-preset") for exchange in grown] == [
        "eager" if said else None for said in headers
    ]
    assert grown[4].prefix in ("checkpoint:config", "checkpoint:paid", "tail-cut")
    assert moved(grown) == []


async def test_a_rule_about_a_path_goes_for_its_counts_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "nothing", Preset(EAGER[-1:]))
    app = await stage.start(preset="nothing", rules=({"path": "/v1/messages", "preset": "eager"},))
    url = app.base_url + "/messages/count_tokens"
    said = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    async with stage.client.post(
        url, json=said, headers={"x-api-key": "k", "anthropic-version": "2023-06-01"}
    ) as reply:
        assert (reply.status, reply.headers["x-narrows-preset"]) == (200, "eager")


# --- tool_kinds ---


async def test_what_a_person_says_of_tools_counts_and_is_part_of_what_decisions_follow_from(stage: Stage) -> None:
    """A file is cut later than what a command says."""
    session = working()[:-1]
    as_it_is = await stage.ask(await stage.start(), session)
    as_said = await stage.ask(await stage.start(tool_kinds={"ba*": "file"}, tenant="other"), session)
    assert len(as_said.sent) > len(as_it_is.sent)
    following = await stage.ask(await stage.start(tenant="other"), [*session, *working()[-1:], session[1]])
    assert following.prefix.startswith("checkpoint:")
    assert moved([as_said, following]) == []


def test_tool_kinds_are_those_that_there_are() -> None:
    assert Toolbox(Settings(tool_kinds={"mcp__*": "data"}).tool_kinds).kind("mcp__x", "{}", "") == "data"
