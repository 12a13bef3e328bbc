"""What shortening costs in sight: visible, recallable, to be had again, behind a stub, lost."""

import json

import pytest

from policies.model.conversation import Conversation, Part
from policies.model.edits import Edit, Fold, Replace
from policies.text.stubs import clipped_argument, hidden_output, left_out_turns, repeated_output, way_back
from proxy.lab.quality import Tally, Visibility, needed, quoted, tally
from tests.kit.talk import Json, call, conversation_of, gives, recalls, runs, says, user

EDIT: Json = {
    "role": "assistant",
    "tool_calls": [call("e", "edit", {"path": "src/a.py", "old_string": "the old text", "new_string": "x"})],
}
TALK = conversation_of(
    user("fix 4711"),
    *runs("cat src/a.py", "the old text\nparse_line"),
    EDIT,
    gives("ok", "e"),
    says("parse_line in src/a.py"),
)
# blocks: 0 user, 1 call, 2 result, 3 edit, 4 its result, 5 text


def before(conversation: Conversation, turn: int) -> tuple[Conversation, list[Part]]:
    """The request of a turn, and what is said to it."""
    end = conversation.ends[turn]
    said = [block for block in conversation.blocks[end:] if block.turn == turn and block.kind in ("assistant", "call")]
    parts = [Part(block.kind, block.text, block.path[1:], block.tokens, block.tool) for block in said]
    return Conversation(conversation.blocks[:end], conversation.ends[: turn + 1], conversation.head), parts


def visibility_of(turn: int, *edits: Edit, talk: Conversation = TALK) -> Visibility:
    found = Visibility()
    request, said = before(talk, turn)
    tally(request, edits, said, found)
    return found


def hide(at: int, text: str, talk: Conversation = TALK) -> Replace:
    return Replace(talk.blocks[at].anchor, text, "test")


def fold(first: int, last: int, ref: str) -> Fold:
    return Fold(TALK.blocks[first].anchor, TALK.blocks[last].anchor, left_out_turns(1, "bash", ref), "test")


def test_what_stands_there_is_visible() -> None:
    found = visibility_of(1)
    assert (found.all.used, found.all.visible, found.all.share_visible) == (2, 2, 1.0)
    assert (found.quoted.used, found.quoted.visible) == (1, 1)
    assert found.hidden == 0


@pytest.mark.parametrize(
    ("stub", "where"),
    [
        (way_back("file", TALK.ref(2)), "recoverable_by_recall"),
        (hidden_output("file", TALK.ref(2)), "recoverable_by_recall"),
        (way_back("file", ""), "recoverable_by_running_again"),
        (hidden_output("command", ""), "recoverable_by_running_again"),
        (repeated_output("cat", "cat src/a.py"), "behind_a_stub_without_way_back"),
        (clipped_argument(20, ""), "behind_a_stub_without_way_back"),
        ("short", "lost"),
    ],
)
def test_r1_what_is_hidden_counts_by_what_its_stub_says(stub: str, where: str) -> None:
    found = visibility_of(1, hide(2, stub))
    assert getattr(found.quoted, where) == found.quoted.used == 1
    assert found.hidden == (where == "recoverable_by_recall")


def test_r1_a_stub_that_names_the_reference_of_something_else_is_no_way_to_it() -> None:
    found = visibility_of(1, hide(2, way_back("file", TALK.ref(0))))
    assert (found.quoted.recoverable_by_recall, found.quoted.behind_a_stub_without_way_back, found.hidden) == (0, 1, 0)


def test_r1_what_a_fold_took_is_recallable_where_its_stub_names_the_run() -> None:
    assert visibility_of(1, fold(1, 2, TALK.run_ref(1, 2))).quoted.recoverable_by_recall == 1
    assert visibility_of(1, fold(1, 2, "")).quoted.recoverable_by_running_again == 1
    assert visibility_of(1, fold(1, 2, TALK.run_ref(1, 1))).quoted.recoverable_by_recall == 0


def test_a_pointer_to_a_copy_that_stands_hides_nothing() -> None:
    talk = conversation_of(user("go"), *runs("cat b", "in_both"), *runs("cat a", "in_both"), says("in_both"))
    assert visibility_of(2, hide(4, repeated_output("cat", "cat b"), talk), talk=talk).all.visible == 1


def test_without_a_stub_it_is_lost() -> None:
    found = visibility_of(2, hide(2, "short"))
    assert (found.all.used, found.all.visible, found.all.lost) == (3, 2, 1)
    assert found.all.share_visible == 2 / 3


def test_r3_what_was_recalled_is_visible_and_makes_nothing_less_rare() -> None:
    talk = conversation_of(
        user("fix 4711"),
        *runs("cat src/a.py", "the old text\nparse_line"),
        *recalls(TALK.ref(2), "parse_line\n" * 9),
        says("parse_line"),
    )
    stub = hide(2, way_back("file", talk.ref(2)), talk)
    found = visibility_of(2, stub, talk=talk)
    assert (found.all.visible, found.rare.visible, found.hidden) == (1, 1, 0)


def test_r1_a_model_needs_few_texts_and_the_newest_of_equals() -> None:
    talk = conversation_of(
        user("go"),
        *runs("cat a", "aa_aa bb_bb cc_cc"),
        *runs("cat b", "bb_bb dd_dd"),
        *runs("cat c", "dd_dd and no more"),
        says("aa_aa bb_bb cc_cc dd_dd"),
    )
    edits = [hide(at, way_back("file", talk.ref(at)), talk) for at in (2, 4, 6)]
    request, said = before(talk, 3)
    assert [hidden.ref for hidden in needed(request, edits, said)] == [talk.ref(2), talk.ref(6)]
    assert [hidden.ref for hidden in needed(request, edits[1:], said)] == [talk.ref(6)]
    assert visibility_of(3, *edits, talk=talk).hidden == 2


def test_what_begins_in_one_text_and_ends_in_the_next_is_no_use_of_either() -> None:
    across = call("e", "edit", {"path": "notes", "old_string": "end of one\nstart of two", "new_string": ""})
    edit: Json = {"role": "assistant", "tool_calls": [across]}
    talk = conversation_of(user("end of one"), user("start of two"), edit)
    assert visibility_of(0, talk=talk).quoted.used == 0


def test_what_is_used_often_is_not_rare() -> None:
    talk = conversation_of(user("aa_bb " * 4), *runs("ls", "cc_dd"), says("aa_bb cc_dd"))
    found = visibility_of(1, talk=talk)
    assert (found.all.used, found.rare.used) == (2, 1)


def test_nothing_used_is_all_visible() -> None:
    assert Tally().share_visible == 1.0
    assert visibility_of(0).all.used == 0


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"old_string": "a b", "path": "x"}, ["a b"]),
        ({"old_str": "   "}, []),
        ({"command": "sed -i 's/the long old text/x/' f.py"}, ["the long old text"]),
        ({"command": "sed -i 's|/usr/lib/python|x|' f.py"}, ["/usr/lib/python"]),
        ({"command": "sed -i 's/short/x/' f.py"}, []),
        ({"command": "python - <<'E'\ns.replace('the old line\\n', 'b')\nE"}, ["the old line\n"]),
        ({"command": "cat f.py"}, []),
        ({}, []),
    ],
)
def test_the_old_text_of_an_edit(arguments: Json, found: list[str]) -> None:
    assert [*quoted("tool", json.dumps(arguments))][:1] == found


PATCH = """*** Begin Patch
*** Update File: src/a.py
@@ def parse
-    first = line.split()
-    return first
+    return line
 the end
-- a list of one
*** End Patch"""
DIFF = """--- a/src/a.py
+++ b/src/a.py
@@ -1,2 +1 @@
-    first = line.split()
 the end
--- a/src/b.py
+++ b/src/b.py
@@ -7 +7 @@
-short
-another line of b
+none"""


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"path": "x", "oldText": "a b", "newText": "c"}, ["a b"]),
        ({"path": "x", "old-content": "a b"}, ["a b"]),
        ({"path": "x", "edits": [{"oldText": "a b", "newText": "x"}, {"oldText": "c d"}]}, ["a b", "c d"]),
        ({"path": "x", "edits": json.dumps([{"old_str": "a b"}, {"oldStr": "c d"}])}, ["a b", "c d"]),
        ({"path": "x", "edits": "no list"}, []),
        ({"patch": PATCH}, ["    first = line.split()\n    return first", "- a list of one"]),
        ({"diff": DIFF}, ["    first = line.split()", "short\nanother line of b"]),
        ({"command": f"git apply <<'E'\n{DIFF}\nE"}, ["    first = line.split()", "short\nanother line of b"]),
        ({"content": "- a list of words\n- and another entry"}, []),
        ({"diff": "------- SEARCH\na b\n  c\n=======\nx\n+++++++ REPLACE"}, ["a b\n  c"]),
        ({"diff": "<<<<<<< SEARCH\na b\n=======\nx\n>>>>>>> REPLACE\n<<<<<<< SEARCH\nno divider"}, ["a b"]),
        (
            {"input": f"const patch = {json.dumps(PATCH)};"},
            ["    first = line.split()\n    return first", "- a list of one"],
        ),
    ],
)
def test_edits_quote_in_lists_and_patches_too(arguments: Json, found: list[str]) -> None:
    assert [*quoted("tool", json.dumps(arguments))] == found


def test_a_patch_need_not_be_json() -> None:
    assert [*quoted("apply_patch", PATCH)] == ["    first = line.split()\n    return first", "- a list of one"]


def test_a_patch_quotes_the_lines_that_it_finds_its_place_by_where_they_are_asked_for() -> None:
    old = [*quoted("apply_patch", PATCH, context=True)]
    assert old == ["    first = line.split()\n    return first", "the end\n- a list of one"]


def later(*messages: Json) -> Conversation:
    """A talk in which six turns of other work stand before these messages."""
    work = [message for n in range(6) for message in runs(f"ls d{n}", f"file{n}")]
    read = runs("cat a.py", "intro\n  def parse_line(text):\nother_name = 1")
    return conversation_of(user("go"), *read, *work, *messages)


def test_a_name_in_a_stub_is_visible_but_no_sight_of_what_is_at_risk() -> None:
    talk = later(says("parse_line and other_name"))
    stub = f"{way_back('file', talk.ref(2))} names: parse_line, other_name"
    found = visibility_of(7, hide(2, stub, talk), talk=talk)
    assert (found.rare.used, found.rare.visible) == (2, 2)
    assert (found.at_risk_rare.used, found.at_risk_rare.recoverable_by_recall) == (2, 2)
    kept = visibility_of(7, hide(2, f"{stub}\ndef parse_line(text):", talk), talk=talk)
    assert (kept.at_risk_rare.visible, kept.at_risk_rare.recoverable_by_recall) == (1, 1)
    assert visibility_of(7, talk=talk).at_risk_rare.visible == 2


def test_what_stood_in_the_last_five_turns_is_not_at_risk() -> None:
    talk = later(*runs("grep -n parse", "parse_line"), says("parse_line and other_name"))
    found = visibility_of(8, talk=talk)
    assert (found.rare.used, found.at_risk_rare.used) == (2, 1)


def test_old_text_counts_by_its_lines_where_it_stands_as_none() -> None:
    old = "  def parse_line(text):\n    return text.strip()\n  x = 1"
    edit: Json = {"role": "assistant", "tool_calls": [call("e", "edit", {"path": "a.py", "oldText": old})]}
    read = runs("cat -n a.py", "1\t  def parse_line(text):\n2\t    return text.strip()\n3\t  x = 1")
    talk = conversation_of(user("go"), *read, edit)
    found = visibility_of(1, talk=talk)
    assert (found.quoted.used, found.quoted_lines.used, found.quoted_lines.visible) == (0, 2, 2)
    assert found.at_risk_quoted_lines.used == 0
    talk = later(edit)
    found = visibility_of(7, hide(2, way_back("file", talk.ref(2)), talk), talk=talk)
    assert (found.at_risk_quoted_lines.used, found.at_risk_quoted_lines.recoverable_by_recall) == (1, 1)


def test_old_text_that_stands_in_the_arguments_of_a_call_is_visible() -> None:
    old = 'return "a text"'
    written = call("w", "write", {"path": "a.py", "content": f"{old}\n"})
    edit: Json = {"role": "assistant", "tool_calls": [call("e", "edit", {"path": "a.py", "oldText": old})]}
    write: Json = {"role": "assistant", "tool_calls": [written]}
    talk = conversation_of(user("go"), write, gives("ok", "w"), *runs("cat a.py", old), edit)
    found = visibility_of(2, hide(4, repeated_output("", ""), talk), talk=talk)
    assert (found.quoted.used, found.quoted.visible) == (1, 1)


@pytest.mark.parametrize(
    "hostile",
    [
        *("s/" + "\\a" * 5000, "replace('" * 5000, "s/" * 50_000, "s|a" * 50_000),
        *('\\"*** Begin Patch' * 50_000, '"*** Begin Patch' * 50_000, "\n<<<<<<< SEARCH" * 50_000),
    ],
)
def test_x9_hostile_edits_end(hostile: str) -> None:
    """The first took time that doubled with every two characters."""
    assert isinstance([*quoted("tool", json.dumps({"command": f"tee x {hostile}"}))], list)
