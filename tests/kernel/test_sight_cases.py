"""N2, N4 and N5 as people meet them: a text comes once, other work follows, and then a step needs that text. Each case
is a session of Claude Code's shape, all of whose requests go through a Narrows with the default preset, at the listed
prices of a model. The answer "File unchanged" has tests of its own in tests/kernel/test_rereads.py.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pytest

from policies.model.tokens import Counter
from proxy.lab.generators.code import Project
from tests.kit.apis import APIS, Api, text_of
from tests.kit.histories import Json
from tests.kit.prefixes import ask, grow, moved, sent
from tests.kit.recalling import call
from tests.kit.stage import Exchange, Stage

CLIENTS = pytest.mark.parametrize(
    ("api", "model"),
    [(APIS["openai_chat"], "gpt-5.4"), (APIS["anthropic_messages"], "claude-opus-5-5")],
    ids=["chat", "messages"],
)
REWRITTEN = pytest.mark.parametrize(
    ("api", "model"),
    [(APIS["openai_chat"], "gpt-5.4"), (APIS["anthropic_messages"], "gpt-5.4")],
    ids=["chat", "messages"],
)
"""At prices at which rewrites of what was read long ago pay within these sessions."""
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("Agent", "Bash", "Edit", "Grep", "ListMcpResourcesTool", "Read", "WebFetch")
]
ROOT = "/home/dev/shop"
RANDOM, PROJECT = Random("cases"), Project(Random("sight"), repetition=0.0)
WORDS, COUNT = PROJECT.words, Counter("o200k_base")
_STUB = re.compile(r"\[narrows:[^\]]*\bref \d{6,24}")


# --- sessions ---


def turn(*made: tuple[str, Json, str], text: str | None = None) -> list[Json]:
    """One reply with these calls (tool, arguments, result), and their results."""
    calls = [call(f"call_{at}", tool, **arguments) for at, (tool, arguments, _) in enumerate(made)]
    results = ({"role": "tool", "tool_call_id": f"call_{at}", "content": text} for at, (*_, text) in enumerate(made))
    return [{"role": "assistant", "content": text, "tool_calls": calls}, *results]


def bash(command: str, output: str) -> list[Json]:
    return turn(("Bash", {"command": command, "description": "Run it"}, output))


def numbered(text: str) -> str:
    """As Claude Code shows a file."""
    return "\n".join(f"{number}\t{line}" for number, line in enumerate(text.split("\n"), 1))


def prose(words: int) -> str:
    return " ".join(RANDOM.choices(WORDS, k=words))


def among(number: int, needed: str) -> str:
    """So many lines of prose, one of them this."""
    others = [f"- {prose(12)}" for _ in range(number - 1)]
    return "\n".join([*others[: number // 2], needed, *others[number // 2 :]])


def work(turns: int) -> list[Json]:
    """Turns that have nothing to do with a case: reads of other files, test runs, and looks at older commits."""
    random, project, messages = Random(turns), Project(Random("else"), repetition=0.1), list[Json]()
    for number in range(turns):
        file = project.file(random.randint(400, 1_200), COUNT)
        tests = "\n".join(
            f"tests/{file.path}::test_{name} PASSED [{random.randint(1, 99)}%]" for name in file.names * 4
        )
        reading = turn(("Read", {"file_path": f"{ROOT}/lib/{file.path}"}, numbered(file.text)), text=project.sentence())
        others = bash(f"pytest -v tests/{file.path}", tests), bash(f"git show HEAD~{number}", file.text)
        messages += random.choice((reading, *others))
    return messages


def session(*parts: Sequence[Json]) -> list[Json]:
    """A session that has come so far."""
    system = "You are a coding agent in the terminal of the person who asks. " * 30
    begin = [{"role": "system", "content": system}, {"role": "user", "content": "Work through the review."}]
    return [*begin, *(message for part in parts for message in part)]


# --- what is looked at ---


@dataclass(frozen=True)
class Request:
    """A request as the model reads it."""

    api: Api
    exchange: Exchange

    def texts(self) -> Iterator[tuple[str, str]]:
        """Of each message what it says, and the call that it makes or answers."""
        calls = dict[str, str]()
        for message in sent(self.api, self.exchange):
            made = message.get("tool_calls") or ()
            calls |= {each["id"]: _called(**each["function"]) for each in made}
            yield text_of(message), calls.get(message.get("tool_call_id", ""), "")
            yield from (("", calls[each["id"]]) for each in made)

    def shows(self, needed: str) -> bool:
        return any(needed in said or needed in called for said, called in self.texts())

    def points_at(self, name: str) -> bool:
        """Whether a stub with a reference names it, or stands for the output of a call that does."""
        return any(_STUB.search(said) and (name in said or name in called) for said, called in self.texts())


def _called(name: str, arguments: str) -> str:
    return "\n".join([name, *map(str, json.loads(arguments).values())])


async def play(stage: Stage, api: Api, model: str, *parts: Sequence[Json]) -> list[Request]:
    """All requests of a session, up to that which answers its newest message."""
    app, messages = await stage.start(preset=None, models=None, floor=None), session(*parts)
    played = await grow(stage, app, api, messages, model=model, tools=TOOLS)
    played.append(await ask(stage, app, api, messages, model=model, tools=TOOLS))
    assert {exchange.status for exchange in played} == {200}
    assert moved(api, played) == []
    assert played[-1].mode == "compacted"
    return [Request(api, exchange) for exchange in played]


# --- what has to stay ---

RULE = "14. Notes of a release go to notes/<date>.md in the present tense, and never name a ticket."
SKILL = f"---\nname: release-notes\ndescription: How notes are written\n---\n# Release notes\n{among(60, RULE)}"
STEP = "11. `src/ledger/rounding.py` line 214: round half to even before the tax is added, not after."
REPORT = f"## Report\nThe review is complete. {prose(60)}\n{among(50, STEP)}\nNothing else stands out."
FAILURE = (
    "ERROR tests/ledger/test_rounding.py::test_half_cent - decimal.InvalidOperation: quantize result has too many "
    "digits for current context: Decimal('18446744073709551.6155') at currency CHF, step 7"
)
PASSED = [f"tests/{each}/test_{each}.py::test_{prose(1)} PASSED" for each in RANDOM.choices(WORDS, k=260)]
OUTPUT = "\n".join([*PASSED[:200], FAILURE, *PASSED[200:], "make: *** [Makefile:12: test] Error 1"])

HELD: dict[str, tuple[list[Json], int, str]] = {
    "skill": (turn(("Read", {"file_path": "/home/dev/.claude/skills/notes/SKILL.md"}, numbered(SKILL))), 45, RULE),
    "report": (turn(("Agent", {"subagent_type": "Explore", "prompt": "Review it all."}, REPORT)), 45, STEP),
    "error": (bash("make test", OUTPUT), 25, FAILURE),
}
"""The messages that bring a text, the turns of other work behind them, and what is needed then."""


@CLIENTS
@pytest.mark.parametrize("case", HELD)
async def test_n2_n5_what_is_in_force_stays_in_sight(stage: Stage, api: Api, model: str, case: str) -> None:
    brought, turns, needed = HELD[case]
    *_, newest = await play(stage, api, model, brought, work(turns))
    assert newest.shows(needed)


# --- what may go where a stub says what it is ---

FOLDERS: dict[str, Sequence[str]] = {f"./{RANDOM.choice(WORDS)}/{word}": RANDOM.sample(WORDS, 9) for word in WORDS[:40]}
FOLDERS |= {"./src/tax": ["rates", "vat_return_2019"], "./tools": WORDS[:5]}
LISTING = "\n\n".join(f"{at}:\n" + "\n".join(f"{each}.py" for each in names) for at, names in FOLDERS.items())
LINK = "https://data.example.org/v2/rates/export?base=CHF&since=2026-03-01&cursor=b2Zmc2V0PTQw"
PAGE = f"# Rates\n{among(70, f'- The newest quarter: [download]({LINK})')}"
SERVERS = json.dumps(
    [{"server": f"{word}-{RANDOM.randint(2, 99)}", "name": f"{word}_lookup", "about": prose(14)} for word in WORDS[:50]]
    + [{"server": "ledger-eu-west", "name": "post_entry", "about": prose(14)}],
    indent=1,
)
WEB = "https://data.example.org/v2/rates"

FOUND: dict[str, tuple[list[Json], str, str]] = {
    "path": (bash("ls -R src tools", LISTING), "vat_return_2019.py", "ls -R src tools"),
    "link": (turn(("WebFetch", {"url": WEB, "prompt": "Find the export."}, PAGE)), LINK, WEB),
    "server": (turn(("ListMcpResourcesTool", {}, SERVERS)), "ledger-eu-west", "ListMcpResourcesTool"),
    "error": (bash("make test", OUTPUT), FAILURE, "make test"),
}
"""The messages that bring a text, what is needed of it, and what a stub has to name."""


@CLIENTS
async def test_n2_a_document_stays_in_sight_for_as_long_as_files_do(stage: Stage, api: Api, model: str) -> None:
    documents = [
        f"{PAGE}\n{prose(400)}\n{option}" for option in ("Option `rate_limit_burst`", "Field `per_tenant_cap`")
    ]
    reads = turn(*(("WebFetch", {"url": f"{WEB}/{at}", "prompt": "Read"}, text) for at, text in enumerate(documents)))
    *_, newest = await play(stage, api, model, reads, work(14))
    assert all(newest.shows(line) for text in documents for line in text.split("\n"))


@CLIENTS
@pytest.mark.parametrize("turns", [8, 45])
@pytest.mark.parametrize("case", FOUND)
async def test_n4_what_was_found_is_in_sight_or_a_stub_names_where(
    stage: Stage, api: Api, model: str, turns: int, case: str
) -> None:
    brought, needed, name = FOUND[case]
    *_, newest = await play(stage, api, model, brought, work(turns))
    assert newest.shows(needed) or newest.points_at(name)


# --- search hits that are worked off one by one ---

HITS = [
    (f"{ROOT}/src/{word}/{prose(1)}.py", RANDOM.randint(40, 900), f"rate = get_rate({word!r})") for word in WORDS[:40]
]


def worked_off() -> list[Json]:
    """A search, and a read and an edit for each of its hits."""
    found = "\n".join(f"{path}:{line}:    {text}" for path, line, text in HITS)
    messages = turn(("Grep", {"pattern": "get_rate", "path": f"{ROOT}/src", "output_mode": "content"}, found))
    for path, line, text in HITS:
        around = "\n".join(f"{number}\t    {prose(8)}" for number in range(line - 30, line + 30))
        edit = {"file_path": path, "old_string": text, "new_string": text.replace("get_rate", "rate_of")}
        messages += turn(("Read", {"file_path": path, "offset": line - 30, "limit": 60}, around))
        messages += turn(("Edit", edit, f"The file {path} has been updated successfully."))
    return messages


HIT_TURNS = range(1, 2 * len(HITS), 2)
"""The requests whose answers begin with a hit."""


@CLIENTS
async def test_n4_of_forty_hits_each_is_in_sight_when_its_turn_comes_or_a_stub_names_the_search(
    stage: Stage, api: Api, model: str
) -> None:
    played = await play(stage, api, model, worked_off(), work(10))
    for at, (path, line, text) in zip(HIT_TURNS, HITS, strict=True):
        assert played[at].shows(f"{path}:{line}:    {text}") or played[at].points_at("get_rate")


# --- files that are edited long after they were read ---

FILES = {f"{ROOT}/{file.path}": file.text.rstrip() for file in (PROJECT.file(2_400, COUNT) for _ in range(6))}
PATH = [*FILES][2]
READS = turn(*(("Read", {"file_path": path}, numbered(FILES[path])) for path in FILES), text="I read them first.")


def hidden_lines(request: Request, path: str) -> list[str]:
    return [line for line in FILES[path].split("\n") if not request.shows(line)]


@CLIENTS
async def test_n2_a_file_is_in_sight_when_it_is_edited_35_turns_after_it_was_read(
    stage: Stage, api: Api, model: str
) -> None:
    *_, newest = await play(stage, api, model, READS, work(34))
    assert hidden_lines(newest, PATH) == []


@REWRITTEN
async def test_n2_the_text_of_a_file_is_back_in_sight_once_an_edit_of_it_failed(
    stage: Stage, api: Api, model: str
) -> None:
    old = "    return total  # in cents"
    failed = f"<tool_use_error>String to replace not found in file.\nString: {old}</tool_use_error>"
    edit = turn(("Edit", {"file_path": PATH, "old_string": old, "new_string": f"{old}, rounded"}, failed))
    *_, before, newest = await play(stage, api, model, READS, work(90), edit)
    assert hidden_lines(before, PATH)
    assert hidden_lines(newest, PATH) == []
