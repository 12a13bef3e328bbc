"""The provider's prompt cache by hand: a token is a character here, and each message has four more."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.money.caches import DAY, HOUR
from policies.money.prices import Prices, Usage
from proxy.lab.provider import ANTHROPIC, APIS, OPENAI, PREFIX, CacheRule, PromptCache, PromptReader, rule_for
from proxy.lab.provider.prompt import FRAME

Message = dict[str, Any]


class Cache:
    """One owner's requests in a row."""

    def __init__(self, rule: CacheRule) -> None:
        self.rule = rule
        self.read = PromptReader(len, APIS["openai_chat"])
        self.now = 0.0
        self.cache = PromptCache(len, lambda: self.now)
        self.kept = 0

    def __call__(self, *messages: Message, owner: str = "me", **body: Any) -> tuple[int, int, int]:
        usage = self.cache.charge(owner, self.read({"messages": messages, **body}), self.rule)
        assert usage == Usage(usage.prompt, usage.cached, usage.written, 0, usage.written_longer)
        assert usage.cached + usage.written <= usage.prompt
        assert usage.written_longer <= usage.written
        self.kept = usage.written_longer
        return usage.prompt, usage.cached, usage.written


def says(role: str, text: str, mark: str = "") -> Message:
    if not mark:
        return {"role": role, "content": text}
    value = {"type": "ephemeral"} if mark == "cache_control" else {"mode": "explicit"}
    return {"role": role, "content": [{"type": "text", "text": text, mark: value}]}


def system(size: int, mark: str = "") -> Message:
    return says("system", "s" * size, mark)


def user(text: str, mark: str = "") -> Message:
    return says("user", text, mark)


def assistant(text: str) -> Message:
    return says("assistant", text)


def call(call_id: str) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": "read", "arguments": "{}"}}


def calls(*ids: str) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": [call(i) for i in ids]}


def result(call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


# --- what a prompt holds ---


def test_tokens_are_text_names_arguments_and_four_for_each_message() -> None:
    read = PromptReader(len, APIS["openai_chat"])
    spoken = [user("hello"), calls("a", "b"), result("a"), result("b")]
    assert read({"messages": spoken}).tokens == (4 + 5) + (4 + 2 * len("read{}")) + 2 * (4 + len("ok"))


def test_c2_an_image_is_not_counted_as_text_and_schemas_are_counted() -> None:
    read = PromptReader(len, APIS["openai_chat"])
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    assert read({"messages": [{"role": "user", "content": [picture]}]}).tokens == 4 + 765
    tool = {"type": "function", "function": {"name": "read", "parameters": {}}}
    schema = '{"type":"function","function":{"name":"read","parameters":{}}}'
    assert read({"messages": [user("x")], "tools": [tool]}).tokens == len(schema) + 4 + 1


# --- any prefix, in steps of 128 from 1,024 ---


def test_prefix_rule_reads_what_an_earlier_request_began_with() -> None:
    serve = Cache(PREFIX)
    first = (system(1_000), user("u" * 100))
    assert serve(*first) == (1_108, 0, 0)
    grown = (*first, assistant("a" * 50), user("v" * 200))
    assert serve(*grown) == (1_366, 1_024, 0)  # 1,108 in common
    assert serve(*grown) == (1_366, 1_280, 0)  # all of it in common
    assert serve(*first) == (1_108, 1_024, 0)


def test_prefix_rule_counts_the_common_beginning_of_a_message_that_differs() -> None:
    serve = Cache(PREFIX)
    serve(system(1_000), user("u" * 2_000))
    assert serve(system(1_000), user("u" * 1_500 + "x" * 500))[1] == 2_432  # 1,004 + 4 + 1,500 = 2,508
    assert serve(system(1_000), assistant("u" * 2_000))[1] == 0  # another role: 1,004 in common


def test_prefix_rule_begins_at_1024() -> None:
    serve = Cache(PREFIX)
    serve(system(1_000), user("u" * 16 + "first"))
    assert serve(system(1_000), user("u" * 15 + "second"))[1] == 0  # 1,023 in common
    assert serve(system(1_000), user("u" * 16 + "third"))[1] == 1_024


def test_prefix_rule_compares_with_every_earlier_request_of_the_same_owner() -> None:
    serve = Cache(PREFIX)
    one, other = (system(1_000), user("1" * 500)), (system(1_000), user("2" * 500))
    serve(*one)
    serve(*other)
    assert serve(*one)[1] == 1_408  # 1,508
    assert serve(*one, owner="you")[1] == 0


def test_a_mark_is_not_content() -> None:
    serve = Cache(PREFIX)
    serve(system(2_000), user("u" * 100))
    marked = (system(2_000, "cache_control"), {**user("u" * 100), "cache_control": {"type": "ephemeral"}})
    assert serve(*marked)[1] == 2_048  # 2,108: all of it


def test_tools_come_first() -> None:
    serve = Cache(PREFIX)
    tools = [{"type": "function", "function": {"name": name, "description": "d" * 1_000}} for name in "ab"]
    serve(user("u" * 2_000), tools=tools)
    assert serve(user("u" * 2_000), tools=tools[::-1])[1] == 0
    assert serve(user("x"), tools=tools)[1] == 2_048


ONE_BY_ONE = CacheRule(step=1, least=1)
few = st.lists(
    st.builds(says, st.sampled_from(["user", "assistant"]), st.text("ab", min_size=1, max_size=4)),
    min_size=1,
    max_size=5,
)


def as_tokens(messages: list[Message]) -> list[object]:
    """Each message's frame as four tokens that only its role decides, then its characters."""
    return [token for m in messages for token in [*((m["role"], i) for i in range(FRAME)), *m["content"]]]


def common(a: list[object], b: list[object]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(few, min_size=1, max_size=8))
def test_prefix_rule_is_the_longest_common_prefix_of_tokens(requests: list[list[Message]]) -> None:
    serve = Cache(ONE_BY_ONE)
    earlier: list[list[object]] = []
    for messages in requests:
        tokens = as_tokens(messages)
        longest = max((common(tokens, other) for other in earlier), default=0)
        assert serve(*messages) == (len(tokens), longest, 0)
        earlier.append(tokens)


# --- Anthropic: at marks, 20 positions back ---


def test_anthropic_caches_nothing_without_a_mark_or_below_1024() -> None:
    serve = Cache(ANTHROPIC)
    for _ in range(2):
        assert serve(system(2_000), user("hello")) == (2_013, 0, 0)
        assert serve(system(1_019, "cache_control"), user("hello")) == (1_032, 0, 0)
    assert serve(system(1_020, "cache_control"), user("hello")) == (1_033, 0, 1_024)


def test_anthropic_writes_up_to_the_last_mark_and_takes_the_rest_as_plain_input() -> None:
    serve = Cache(ANTHROPIC)
    assert serve(system(2_000, "cache_control"), user("hello")) == (2_013, 0, 2_004)
    assert serve(system(2_000, "cache_control"), user("another")) == (2_015, 2_004, 0)


def test_anthropic_keeps_what_stands_before_the_last_mark_that_asks_for_an_hour() -> None:
    serve, whole = Cache(ANTHROPIC), Cache(ANTHROPIC)
    long = system(2_000, "cache_control")
    long["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    assert (serve(long, user("u" * 100, "cache_control")), serve.kept) == ((2_108, 0, 2_108), 2_004)
    assert (serve(long, user("v" * 100, "cache_control")), serve.kept) == ((2_108, 2_004, 104), 0)
    assert (whole(long, user("hello")), whole.kept) == ((2_013, 0, 2_004), 2_004)


def test_anthropic_reads_the_mark_that_moved_on() -> None:
    serve = Cache(ANTHROPIC)
    assert serve(system(2_000), user("u" * 100, "cache_control")) == (2_108, 0, 2_108)
    grown = (system(2_000), user("u" * 100), assistant("a" * 50), user("v" * 100, "cache_control"))
    assert serve(*grown) == (2_266, 2_108, 158)


def test_anthropic_a_changed_block_without_a_surviving_mark_loses_the_cache() -> None:
    bare, kept = Cache(ANTHROPIC), Cache(ANTHROPIC)
    bare(system(2_000), user("u" * 100, "cache_control"))
    kept(system(2_000, "cache_control"), user("u" * 100, "cache_control"))
    assert bare(system(2_000), user("x" * 100, "cache_control")) == (2_108, 0, 2_108)
    changed = (system(2_000, "cache_control"), user("x" * 100, "cache_control"))
    assert kept(*changed) == (2_108, 2_004, 104)


def talk(blocks: int) -> list[Message]:
    """So many blocks of 100 tokens, the last one marked."""
    texts = [f"{i:096}" for i in range(blocks)]
    spoken = [says("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]
    return [*spoken[:-1], says(spoken[-1]["role"], texts[-1], "cache_control")]


def test_anthropic_looks_back_at_20_positions() -> None:
    near, far = Cache(ANTHROPIC), Cache(ANTHROPIC)
    for serve in (near, far):
        assert serve(*talk(15)) == (1_500, 0, 1_500)
    assert near(*talk(34)) == (3_400, 1_500, 1_900)  # blocks 34 to 15
    assert far(*talk(35)) == (3_500, 0, 3_500)  # blocks 35 to 16


def test_anthropic_a_second_mark_looks_back_from_where_it_stands() -> None:
    serve = Cache(ANTHROPIC)
    serve(*talk(15))
    longer = talk(40)
    longer[29] = says("assistant", longer[29]["content"], "cache_control")
    assert serve(*longer) == (4_000, 1_500, 2_500)


def test_anthropic_a_run_of_parallel_calls_or_results_is_one_position() -> None:
    serve = Cache(ANTHROPIC)
    serve(user("u" * 2_000, "cache_control"))
    ids = [f"call{i}" for i in range(30)]
    batch = [calls(*ids), *(result(i) for i in ids)]
    prompt, cached, written = serve(user("u" * 2_000), *batch, user("next", "cache_control"))
    assert (cached, written) == (2_004, prompt - 2_004)


def test_anthropic_does_not_know_the_marks_of_openai() -> None:
    assert Cache(ANTHROPIC)(system(2_000, "prompt_cache_breakpoint"), user("x"))[1:] == (0, 0)


# --- OpenAI from GPT-5.6: breakpoints, one of them by itself ---

POINT = "prompt_cache_breakpoint"
ONLY_EXPLICIT: Any = {"prompt_cache_options": {"mode": "explicit"}}


def test_openai_places_a_breakpoint_after_the_newest_user_message_or_group_of_results() -> None:
    serve = Cache(OPENAI)
    first = (system(2_000), user("u" * 100))
    assert serve(*first) == (2_108, 0, 2_108)
    grown = (*first, calls("a", "b"), result("a"), result("b"))
    assert serve(*grown) == (2_136, 2_108, 28)
    assert serve(*grown, assistant("thinking of an answer")) == (2_161, 2_136, 0)  # never after an assistant
    assert serve(*grown, assistant("a"), user("v")) == (2_146, 2_136, 10)


def test_openai_within_a_group_of_results_there_is_no_boundary() -> None:
    serve = Cache(OPENAI)
    begun = (system(2_000), user("u" * 100), calls("a", "b"), result("a"))
    assert serve(*begun) == (2_130, 0, 2_130)
    assert serve(*begun, result("b")) == (2_136, 0, 2_136)


def test_openai_a_shared_beginning_is_cached_only_where_a_breakpoint_ends_it() -> None:
    bare, marked = Cache(OPENAI), Cache(OPENAI)
    assert bare(system(2_000), user("first")) == (2_013, 0, 2_013)
    assert bare(system(2_000), user("other")) == (2_013, 0, 2_013)
    assert marked(system(2_000, POINT), user("first")) == (2_013, 0, 2_013)
    assert marked(system(2_000, POINT), user("other")) == (2_013, 2_004, 9)


def test_openai_reads_the_leading_system_messages_as_one_where_they_were_written() -> None:
    serve = Cache(OPENAI)
    assert serve(system(2_000), system(10)) == (2_018, 0, 2_018)
    assert serve(system(2_000), system(10), *(user(str(i)) for i in range(30)))[1] == 2_018


def test_openai_explicit_mode_caches_at_marks_only() -> None:
    serve = Cache(OPENAI)
    for _ in range(2):
        assert serve(system(2_000), user("x"), **ONLY_EXPLICIT) == (2_009, 0, 0)
    assert serve(system(2_000, POINT), user("x"), **ONLY_EXPLICIT) == (2_009, 0, 2_004)
    assert serve(system(2_000, POINT), user("y"), **ONLY_EXPLICIT) == (2_009, 2_004, 0)


def test_openai_keeps_all_that_is_written_for_as_long_as_the_request_asks() -> None:
    for ttl, kept in (("30m", 0), ("12h", 2_009)):
        serve = Cache(OPENAI)
        assert serve(system(2_000), user("x"), prompt_cache_options={"ttl": ttl}) == (2_009, 0, 2_009)
        assert serve.kept == kept


def users(count: int, mark: str = "", others: str = "") -> list[Message]:
    """The first of them is large enough to be cached."""
    return [user("u" * 2_000, mark), *(user(str(i), others) for i in range(1, count))]


def test_openai_explicit_marks_have_no_look_back_limit_in_blocks() -> None:
    bare, marked = Cache(OPENAI), Cache(OPENAI)
    for serve in (bare, marked):
        serve(*users(1))
    assert bare(*users(200))[1] == 0
    assert marked(*users(200, POINT))[1] == 2_004


def test_openai_looks_up_twenty_earlier_endings() -> None:
    near, far = Cache(OPENAI), Cache(OPENAI)
    near(*users(1))
    far(*users(1))
    assert near(*users(21))[1] == 2_004
    assert far(*users(22))[1] == 0


def test_openai_looks_up_the_latest_80_marks() -> None:
    near, far = Cache(OPENAI), Cache(OPENAI)
    near(*users(1, POINT), **ONLY_EXPLICIT)
    far(*users(1, POINT), **ONLY_EXPLICIT)
    assert near(*users(80, POINT, POINT), **ONLY_EXPLICIT)[1] == 2_004
    assert far(*users(81, POINT, POINT), **ONLY_EXPLICIT)[1] == 0


def test_openai_writes_four_breakpoints_its_own_included() -> None:
    marked = [user(f"{i}" * 2_000, POINT) for i in range(5)]
    explicit, implicit = Cache(OPENAI), Cache(OPENAI)
    explicit(*marked, **ONLY_EXPLICIT)
    implicit(*marked, assistant("a"), user("own"))
    # of the marks 0 to 4 one mode writes the newest four, the other the newest three and its own
    assert explicit(*marked[:1], **ONLY_EXPLICIT)[1] == 0
    assert explicit(*marked[:2], **ONLY_EXPLICIT)[1] == 2 * 2_004
    assert implicit(*marked[:2], **ONLY_EXPLICIT)[1] == 0
    assert implicit(*marked[:3], **ONLY_EXPLICIT)[1] == 3 * 2_004


# --- which rule, and how much is remembered ---


def test_the_rule_follows_from_prices_and_name() -> None:
    assert rule_for("gpt-4o", Prices()) == PREFIX
    assert rule_for("claude-sonnet-5", Prices()) == PREFIX
    assert rule_for("Claude-Sonnet-5", Prices(breakpoints=True)) == ANTHROPIC
    assert rule_for("anthropic/Claude-Sonnet-5", Prices(breakpoints=True)) == replace(ANTHROPIC, joins_runs=False)
    assert rule_for("gpt-5.6", Prices(breakpoints=True)) == OPENAI


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    read = PromptReader(count, APIS["openai_chat"], capacity=1_200)
    a, b, c, huge = (user(letter * size) for letter, size in (("a", 500), ("b", 500), ("c", 500), ("h", 2_000)))
    for message in (a, b, a, c, a, b, huge, huge):
        read({"messages": [message]})
    assert "".join(text[0] for text in counted) == "abcbhh"


def test_a_message_is_counted_once() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    read = PromptReader(count, APIS["openai_chat"])
    for end in range(1, 20):
        read({"messages": [user(f"message {i}") for i in range(end)]})
    assert sorted(counted) == sorted(f"message {i}" for i in range(19))


# --- entries expire ---


def test_p1_what_was_used_within_its_lifetime_is_read_and_later_written_anew() -> None:
    serve = Cache(ANTHROPIC)
    said = (system(5_000, "cache_control"),)
    assert serve(*said) == (5_004, 0, 5_004)
    for pause in (300.0, 299.0):  # counted from the last use
        serve.now += pause
        assert serve(*said) == (5_004, 5_004, 0)
    serve.now += 301
    assert serve(*said) == (5_004, 0, 5_004)


def test_p1_what_stands_before_a_prefix_that_is_used_is_used_too() -> None:
    serve = Cache(ANTHROPIC)
    first, second = system(5_000, "cache_control"), user("u" * 3_000, "cache_control")
    serve(first, second)
    for _ in range(3):
        serve.now += 200
        assert serve(system(5_000), second)[1] == 8_008
    assert serve(first, user("other"))[1] == 5_004


def test_p1_any_prefix_expires_as_well() -> None:
    serve = Cache(PREFIX)
    said = (system(5_000), user("u" * 500))
    serve(*said)
    serve.now += 3_600
    assert serve(*said)[1] == 5_504 // 128 * 128
    serve.now += 3_601
    assert serve(*said)[1] == 0


def test_p2_any_prefix_lasts_as_long_as_the_newest_request_that_used_it_asks() -> None:
    waits = {"": (False, False), "24h": (True, False), "in_memory": (False, False)}
    for rule, rows in ((PREFIX, waits), (rule_for("gpt-5.4", Prices()), {**waits, "": (True, False)})):
        for wish, stays in rows.items():
            for wait, stay in zip((2 * HOUR, DAY + 1), stays, strict=True):
                ask = Cache(rule)
                ask(system(2_000), user("a"), prompt_cache_retention="24h")
                ask(system(2_000), user("a"), **({"prompt_cache_retention": wish} if wish else {}))
                ask.now += wait
                assert (ask(system(2_000), user("b"))[1] > 0) == stay, (wish, wait)


def lasting(message: Message) -> Message:
    (part,) = message["content"]
    return {**message, "content": [{**part, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}


def test_p2_a_mark_for_an_hour_keeps_what_it_writes_and_lengthens_nothing_that_it_reads() -> None:
    serve, said = Cache(ANTHROPIC), system(5_000, "cache_control")
    assert serve(lasting(said)) == (5_004, 0, 5_004)
    assert serve.kept == 5_004
    serve.now += 3_600
    assert serve(lasting(said)) == (5_004, 5_004, 0)
    serve.now += 3_601
    serve(said)  # for five minutes
    assert (serve(lasting(said))[1], serve.kept) == (5_004, 0)  # read as it is, and billed so
    serve.now += 301
    assert serve(lasting(said))[1] == 0


def test_p2_what_goes_on_from_an_entry_lasts_no_longer_than_that() -> None:
    serve, said = Cache(ANTHROPIC), system(5_000, "cache_control")
    serve(said)
    longer = lasting(user("u" * 3_000, "cache_control"))
    assert (serve(system(5_000), longer)[2], serve.kept) == (3_004, 3_004)
    serve.now += 301
    assert serve(system(5_000), longer)[1] == 0


def test_p2_an_hour_ends_where_a_mark_for_less_uses_it() -> None:
    serve, said = Cache(ANTHROPIC), system(5_000, "cache_control")
    serve(lasting(said))
    assert serve(said)[1] == 5_004
    serve.now += 301
    assert serve(said)[1] == 0
