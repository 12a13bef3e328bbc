"""What shortening costs in sight: visible, recoverable, lost."""

import json

import pytest

from policies.edits import Edit, Fold, Replace
from policies.quality import Sight, Tally, look, quoted, sight
from policies.stubs import MARK
from tests.policies.talk import Json, call, conversation_of, gives, runs, says, user

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


def seen(turn: int, *edits: Edit) -> Sight:
    found = sight()
    look(TALK, turn, edits, found)
    return found


def test_what_stands_there_is_visible() -> None:
    found = seen(1)
    assert (found.all.used, found.all.visible, found.all.share) == (2, 2, 1.0)
    assert (found.quoted.used, found.quoted.visible) == (1, 1)


def test_behind_a_stub_it_is_recoverable() -> None:
    found = seen(1, Replace(TALK.blocks[2].anchor, f"{MARK} read it again]", "test"))
    assert (found.quoted.visible, found.quoted.recoverable, found.quoted.lost) == (0, 1, 0)


def test_without_a_stub_it_is_lost() -> None:
    found = seen(2, Replace(TALK.blocks[2].anchor, "short", "test"))
    assert (found.all.used, found.all.visible, found.all.lost) == (3, 2, 1)
    assert found.all.share == 2 / 3


def test_what_a_fold_took_is_recoverable() -> None:
    fold = Fold(TALK.blocks[1].anchor, TALK.blocks[2].anchor, f"{MARK} 1 turn]", "test")
    assert (seen(1, fold).quoted.recoverable, seen(1, fold).quoted.lost) == (1, 0)


def test_what_is_used_often_is_not_rare() -> None:
    talk = conversation_of(user("aa_bb " * 4), *runs("ls", "cc_dd"), says("aa_bb cc_dd"))
    found = sight()
    look(talk, 1, (), found)
    assert (found.all.used, found.rare.used) == (2, 1)


def test_nothing_used_is_all_visible() -> None:
    assert Tally().share == 1.0
    assert seen(0).all.used == 0


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


@pytest.mark.parametrize("hostile", ["s/" + "\\a" * 5000, "replace('" * 5000, "s/" * 50_000, "s|a" * 50_000])
def test_x9_hostile_edits_end(hostile: str) -> None:
    """The first took time that doubled with every two characters."""
    assert isinstance([*quoted("tool", json.dumps({"command": f"tee x {hostile}"}))], list)
