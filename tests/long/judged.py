"""What runs in a judge's own environment, for `make judges`: the standard library and the judge, nothing of Narrows.

The judge's session is sent to Narrows at JUDGED_URL with the steps of a coding agent in JUDGED_WORK behind it; an echo
behind Narrows says what was sent upstream. compaction-kit loads `Words`, `Outputs` and `Recalled` as its compactors;
run as a program, this scores distil's corpus with distil's own probes.
"""

import json
import os
import re
import sys
import urllib.request
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

REF = re.compile(r"\bref (\d{6,24}(?:\+\d{1,9})?)")
PAGE = 20_000
"""Characters of one answer."""
RECORD = "turns left out, ref"
Message = dict[str, Any]


class Sight(NamedTuple):
    """What the kit reads of a compactor's answer."""

    text: str


def work() -> dict[str, Any]:
    """`fields` of each request, and `rounds`: the agent's steps, in the parts that follow each other."""
    with open(os.environ["JUDGED_WORK"], encoding="utf-8") as file:
        result: dict[str, Any] = json.load(file)
    return result


def echoed(fields: Message, messages: Sequence[Message]) -> list[Message]:
    """The messages that went upstream for these."""
    body = json.dumps({**fields, "messages": list(messages)}).encode()
    headers = {"Authorization": "Bearer sk-judged", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["JUDGED_URL"] + "/chat/completions", body, headers)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the machine's proxy is for elsewhere
    with opener.open(request, timeout=120) as reply:
        sent: list[Message] = json.loads(json.load(reply)["choices"][0]["message"]["content"])["messages"]
    return sent


def edited(messages: Sequence[Message], sent: Sequence[Message], judged: int | None = None) -> None:
    """Says how many of the messages (of the first `judged`) were not sent as they were. Raises RuntimeError if none."""
    as_sent = [json.dumps(each, sort_keys=True) for each in sent]
    edits = sum(json.dumps(each, sort_keys=True) not in as_sent for each in messages[:judged])
    if not edits:
        raise RuntimeError("Narrows made no edit, so this run does not count")
    sizes = f"{len(json.dumps(messages)):,} bytes in, {sum(map(len, as_sent)):,} out"
    print(f"{edits} of {len(messages[:judged])} messages edited; {sizes}", file=sys.stderr)


def recalled(fields: Message, messages: Sequence[Message], sent: Sequence[Message]) -> dict[str, str]:
    """The text that the recall tool gives back, page by page, for each reference in sight."""
    texts = {}
    for ref in dict.fromkeys(REF.findall("\n".join(map(said, sent)))):
        pages = [""]
        while len(pages) == 1 or len(pages[-1]) == PAGE:
            start = PAGE * (len(pages) - 1)
            asked = {"role": "user", "content": f"recall {ref} chars {start}-{start + PAGE}"}
            pages.append(said(echoed(fields, [*messages, asked])[-1])[:PAGE])
        texts[ref] = "".join(pages)
    return texts


def said(message: Message) -> str:
    calls = (call["function"]["arguments"] for call in message.get("tool_calls") or ())
    return "\n".join([str(message.get("content") or ""), *calls])


class Words:
    """The kit's session as its roles are, so a person's words; a round is more of the agent's steps behind it. The kit
    hands back what was sent as one system message, but no client does: each sends its whole history again."""

    name = "narrows, said by a person"
    with_recalls = False

    def __init__(self) -> None:
        self._work = work()
        self._turns: list[Any] = []

    def compact(self, turns: list[Any], round_num: int = 1) -> Sight:
        self._turns = self._turns or turns
        steps = [step for part in self._work["rounds"][:round_num] for step in part]
        messages = self.history(steps)
        sent = echoed(self._work["fields"], messages)
        edited(messages, sent)
        texts = [said(each) for each in sent]
        if self.with_recalls:
            texts += recalled(self._work["fields"], messages, sent).values()
        return Sight("\n".join(texts))

    def history(self, steps: list[Message]) -> list[Message]:
        return [*({"role": turn.role, "content": turn.text} for turn in self._turns), *steps]


class Outputs(Words):
    """What a person says in the kit's session is a line in the middle of the agent's first outputs instead."""

    name = "narrows, read in outputs"

    def history(self, steps: list[Message]) -> list[Message]:
        lines = [turn.text for turn in self._turns if turn.role == "user"]
        at = [i for i, step in enumerate(self._work["rounds"][0]) if step["role"] == "tool"]
        result = [{"role": "system", "content": self._turns[0].text}, *(dict(step) for step in steps)]
        for number, line in enumerate(lines):
            output = result[1 + at[number % len(at)]]
            before = output["content"].split("\n")
            output["content"] = "\n".join([*before[: len(before) // 2], line, *before[len(before) // 2 :]])
        return result


class Recalled(Outputs):
    """The same, with what the recall tool answers for each reference in sight."""

    name = "narrows, read in outputs, recalled"
    with_recalls = True


def trajectory(turns: Sequence[Any], steps: list[Message]) -> tuple[list[Message], list[tuple[Any, int]]]:
    """distil's run as a client sends it, with the steps behind it; and where its probed blocks stand."""
    messages: list[Message] = [{"role": "system", "content": "\n".join(b.text for b in turns[0].blocks[:2])}]
    places = []
    for turn in turns:
        for block in turn.blocks:
            if block.stability.value != "volatile":
                continue
            if block.kind.value in ("tool_output", "retrieved"):
                call = {"name": block.kind.value, "arguments": json.dumps({"id": block.id})}
                calls = [{"id": f"call_{block.id}", "type": "function", "function": call}]
                messages.append({"role": "assistant", "content": None, "tool_calls": calls})
                messages.append({"role": "tool", "tool_call_id": f"call_{block.id}", "content": block.text})
            else:
                role = "user" if block.kind.value == "user" else "assistant"
                messages.append({"role": role, "content": block.text})
            places.append((block, len(messages) - 1))
    return messages + steps, places


def in_place_of(message: Message, sent: Sequence[Message]) -> tuple[str, str]:
    """What is in sight of a message, and the text with the references to it: its own where it was sent in some form,
    else the records of left out turns, of which only lines that are its own are in sight."""
    for each in sent:
        same = (each["role"], each.get("tool_call_id")) == (message["role"], message.get("tool_call_id"))
        if same and (RECORD not in said(each)) and (message["role"] == "tool" or said(each) == said(message)):
            return said(each), said(each)
    records = "\n".join(text for text in map(said, sent) if RECORD in text)
    return "\n".join(line for line in records.split("\n") if line and line in said(message)), records


def distil() -> None:
    """The corpus of `distil retention` with Narrows in the place of distil's compressor, in the form it prints."""
    retention, given = import_module("distil.retention"), work()
    report = retention.RetentionReport()
    steps = [step for part in given["rounds"] for step in part]
    for entry in import_module("distil.corpus").load_corpus():
        messages, places = trajectory(entry.trajectory.turns, steps)
        sent = echoed(given["fields"], messages)
        try:
            edited(messages, sent, len(messages) - len(steps))
        except RuntimeError as error:
            print(f"{entry.domain}: {error}", file=sys.stderr)
            continue
        answers = recalled(given["fields"], messages, sent)
        for block, at in places:
            shown, stub = in_place_of(messages[at], sent)
            back = "\n".join(answers[ref] for ref in REF.findall(stub))
            report.probes.append(retention.probe_block(block, shown, {block.id: back}, domain=entry.domain))
    print(retention.format_report(report))


if __name__ == "__main__":
    distil()
