"""What the next step needs and has not in sight."""

import json
from collections.abc import Sequence

import pytest

from policies.model.edits import Edit, Fold, Origin, Replace
from proxy.lab.needs import HiddenNeed, Needs
from tests.kit.talk import Json, call, calls, conversation_of, gives, recalls, runs, says, user
from tests.lab.test_quality import before

STUB = "[narrows: output: ref 1]"


def does(tool: str, **arguments: object) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": [call("call_0", tool, arguments)]}


def needs_of(messages: Sequence[Json], *edits: Edit) -> Needs:
    """What the last of these messages needs under these edits."""
    talk, found = conversation_of(*messages), Needs()
    request, said = before(talk, talk.blocks[-1].turn)
    found.add(request, edits, said)
    return found


def hide(messages: Sequence[Json], at: int, text: str = STUB) -> Replace:
    return Replace(conversation_of(*messages).blocks[at].anchor, text, "test")


def fold(messages: Sequence[Json], first: int, last: int, text: str, origin: Origin | None = None) -> Fold:
    blocks = conversation_of(*messages).blocks
    return Fold(blocks[first].anchor, blocks[last].anchor, text, "test", origin)


def one(found: Needs) -> HiddenNeed:
    (need,) = found.each
    return need


READ = [user("go"), *runs("cat src/a.py", "def parse_line(text):\n    return text.strip()\nlimit 48213")]
# blocks: 0 user, 1 call, 2 result


def test_a_name_in_a_call_and_one_in_prose() -> None:
    said = [*READ, says("now parse_line")]
    in_prose = needs_of(said, hide(said, 2))
    assert (in_prose.actions, in_prose.out_of_sight, in_prose.out_of_sight_in_calls) == (1, 1, 0)
    assert one(in_prose).items == ("parse_line",)
    called = [*READ, calls("grep parse_line b.py")]
    in_call = needs_of(called, hide(called, 2))
    assert (in_call.out_of_sight, in_call.out_of_sight_in_calls, one(in_call).in_calls) == (1, 1, True)
    assert needs_of(called).out_of_sight == 0
    new = [*READ, says("now new_name")]
    assert needs_of(new, hide(new, 2)).out_of_sight == 0


@pytest.mark.parametrize(
    ("stub", "is_needed"),
    [
        ("see parse_lines", True),
        ("see reparse_line", True),
        ("see parse_line.", False),
        ('{"text": "a\\nparse_line"}', False),  # of JSON the escape is no part of the name
    ],
)
def test_a_name_counts_as_a_whole_word(stub: str, is_needed: bool) -> None:
    said = [*READ, says("now parse_line")]
    assert needs_of(said, hide(said, 2, stub)).out_of_sight == is_needed


@pytest.mark.parametrize(("number", "is_needed"), [("48213", True), ("482", False), ("120000", False), ("4821", False)])
def test_numbers_are_needed_whole_long_and_not_round(number: str, is_needed: bool) -> None:
    said = [user("go"), *runs("cat a", "limits 48213, 482, 120000"), says(f"it is {number}")]
    assert needs_of(said, hide(said, 2)).out_of_sight == is_needed


def test_the_end_of_an_element_is_no_path() -> None:
    said = [user("go"), *runs("cat a", "<main>/main</main>"), says("now <main>x</main>")]
    assert needs_of(said, hide(said, 2)).out_of_sight == 0


def test_arguments_are_read_as_what_they_mean() -> None:
    wrote = [user("go"), does("write", path="a.py", content="\tparse_line\n\tname_two", n=48213), gives("ok")]
    for needed in ("name_two", "48213"):
        said = [*wrote, says(f"now {needed}")]
        assert one(needs_of(said, hide(said, 1, '{"path": "a.py", "content": "..."}'))).items == (needed,)
        assert needs_of(said).out_of_sight == 0
    again = [*wrote, does("write", path="b.py", content="\tother_one\n\tname_two")]
    assert one(needs_of(again, hide(again, 1, '{"path": "a.py"}'))).items == ("name_two",)  # neither tname_two


OLD = "    return text.strip()"
PATCH = f"*** Begin Patch\n*** Update File: src/a.py\n@@\n-{OLD}\n+x\n*** End Patch"


@pytest.mark.parametrize(
    "edit",
    [
        does("edit", path="src/a.py", old_string=OLD, new_string="x"),
        does("edit", path="src/a.py", edits=[{"oldText": OLD, "newText": "x"}]),
        does("replace_in_file", path="src/a.py", diff=f"<<<<<<< SEARCH\n{OLD}\n=======\nx\n>>>>>>> REPLACE"),
        does("apply_patch", input=PATCH),
        does("apply_patch", input=f"*** Begin Patch\n*** Update File: src/a.py\n@@\n {OLD}\n+x\n*** End Patch"),
        does("exec", code=f"apply({json.dumps(PATCH)})"),
    ],
)
def test_an_edit_needs_the_lines_of_its_old_text(edit: Json) -> None:
    messages = [*READ, edit]
    found = needs_of(messages, hide(messages, 2, "def parse_line(text):"))
    assert (found.edits, found.edits_out_of_sight, found.out_of_sight_in_calls) == (1, 1, 1)
    assert one(found).quoted
    assert OLD.strip() in one(found).items
    shown = needs_of(messages, hide(messages, 2, f"2\t{OLD}"))
    assert (shown.edits, shown.edits_out_of_sight, shown.out_of_sight) == (1, 0, 0)


def test_old_text_that_the_history_never_held_is_no_need() -> None:
    messages = [*READ, does("edit", path="src/a.py", old_string="never seen before", new_string="x")]
    found = needs_of(messages, hide(messages, 2))
    assert (found.edits, found.share_edits_out_of_sight) == (0, None)


def test_a_line_stands_in_a_result_that_is_json_too() -> None:
    read = runs("cat a", json.dumps({"output": 'print("a line of code")'}))
    messages = [user("go"), *read, does("edit", path="a", old_string='print("a line of code")', new_string="")]
    assert (needs_of(messages).edits, needs_of(messages).edits_out_of_sight) == (1, 0)
    assert needs_of(messages, hide(messages, 2)).edits_out_of_sight == 1


def test_what_was_recalled_is_in_sight_and_no_part_of_what_is_needed() -> None:
    said = [*READ, *recalls("1", "def parse_line(text):"), says("now parse_line")]
    assert needs_of(said, hide(said, 2)).out_of_sight == 0
    folded = fold(said, 1, 4, "a record")
    assert one(needs_of(said, folded)).place == "bash cat src/a.py"


def test_each_need_is_placed_in_the_newest_text_with_its_distance_and_its_stub() -> None:
    said = [user("go"), *runs("cat a", "aa_aa bb_bb"), *runs("cat b", "bb_bb"), *runs("ls", "no"), says("aa_aa bb_bb")]
    found = needs_of(said, hide(said, 2, "first"), hide(said, 4, "s" * 400))
    assert [(need.items, need.turns_ago, need.request, need.stub) for need in found.each] == [
        (("aa_aa",), 3, 4, "first"),
        (("bb_bb",), 2, 4, "s" * 300),
    ]
    assert (found.hidden_texts, found.median_turns_ago) == (2, 2.5)


LONG = "cd /srv/project && make test TARGET=one VERBOSE=1 REPORT=here"
STRIPPED = "make test TARGET=one VERBOSE=1 REPORT=here"


@pytest.mark.parametrize(
    ("made", "stub", "connects"),
    [
        (calls("cat src/a.py"), "read src/a.py, ref 7", True),
        (calls("cat src/a.py"), "read data.py, ref 7", False),
        (calls("cat src/a.py"), "read lib/a.py, ref 7", False),
        (calls("cat src/a.py"), "read: a.py, b.py", True),
        (does("read", path="/repo/src/a.py"), "read src/a.py", True),
        (does("read", path="/repo/../repo/src/a.py"), "read /repo/../repo/src/a.py", True),
        (calls(LONG), f"`{STRIPPED[:40]}...`", True),
        (calls(LONG), "`cd /srv/project && make lint`", False),
        (does("get_order", id="4711x"), "get_order 4711x, ref 7", True),
        (does("get_order", id="4711x"), "get_orders 4711x, ref 7", False),
        (does("get_order", id="4711x"), "get_order, ref 7", False),
        (does("list_orders"), "list_orders, ref 7", True),
        (does("exec", code="run(1)"), "exec: run(2), exec: other(1)", False),
        (does("exec", code=json.dumps(PATCH)), "edited: src/a.py", True),
        (does("exec", code=json.dumps(PATCH)), "edited: src/b.py", False),
    ],
)
def test_a_stub_connects_where_it_names_what_is_hidden(made: Json, stub: str, connects: bool) -> None:
    said = [user("go"), made, gives("parse_line"), says("now parse_line")]
    assert one(needs_of(said, fold(said, 1, 2, stub))).connects is connects


def test_the_call_in_front_of_a_stub_connects_too_as_long_as_it_stands() -> None:
    for made in (calls("cat src/a.py"), does("get_order", id="x")):
        said = [user("go"), made, gives("parse_line"), says("now parse_line")]
        assert one(needs_of(said, hide(said, 2))).connects
    said = [user("go"), calls("cat src/a.py"), gives("parse_line"), says("now parse_line")]
    assert not one(needs_of(said, hide(said, 2), hide(said, 1, '{"command": "left out"}'))).connects


def test_what_a_person_wrote_has_no_call_that_connects() -> None:
    said = [user("fix parse_line"), says("ok"), user("go on"), says("now parse_line")]
    need = one(needs_of(said, hide(said, 0)))
    assert (need.place, need.connects) == ("user", False)


def test_all_runs_that_a_summary_stands_for_have_its_text() -> None:
    origin = Origin("s", "m", "summarize", "1", 0.0, "")
    said = [user("go"), *runs("cat a", "aa_aa"), user("on"), *runs("cat b", "bb_bb"), says("now bb_bb")]
    found = needs_of(said, fold(said, 1, 2, "read a and b", origin), fold(said, 4, 5, "", origin))
    assert (one(found).stub, one(found).connects) == ("read a and b", True)


def test_nothing_needed_is_no_share() -> None:
    found = Needs()
    assert (found.share_out_of_sight, found.share_out_of_sight_in_calls) == (0.0, 0.0)
    assert (found.share_edits_out_of_sight, found.share_connected, found.median_turns_ago) == (None, None, None)
