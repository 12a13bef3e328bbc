"""Whether a summary turns a prohibition into its contrary: "never touch X" became "touch X".

A prohibition is read from a sentence that forbids something outright ("never", "do not", "must not"), as a verb and the
words of its object. A clause of a summary reverses it where it has that verb as it stands, and all these words, without
a negation; not where it only asks or reports, and not where a person said the same without the negation.

What is not seen: prohibitions with a condition ("unless", "before", "without"), those without a verb ("no sudo"), other
words for the same ("leave X alone", "edit" for "touch"), other languages than English, German, French, Spanish and
Chinese, and there all but the plainest forms.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policies.text.wording import NOT, clauses, content, lowered, sentences, words
from policies.tools.kinds import word_set

_MOST = 2_000
"""Prohibitions that are looked at, the newest ones."""
_RANGE = 200
"""Characters of a prohibition in which a condition counts."""
_OBJECT = 4
"""Words of the object that must be there, the first ones."""

_FORBIDS = tuple(
    (re.compile(pattern), at in (3, 4, 5))  # with the endings of French and Spanish verbs
    for at, pattern in enumerate(
        (
            r"(?:^|[.,;:!?(]\s{0,3}|\b(?:please|and|but|or|you|so|also|ok|okay|then|do) )(?:never|do not|don't|dont"
            r"|never ever|do not ever) (?:ever |please |just )?(?P<verb>[a-z]{3,20})"
            r" (?P<object>[^.;:!?\n,()]{1,120}(?:\.\w[^.;:!?\n,()]{0,80})?)",
            r"\b(?:must not|mustn't|shall not|not allowed to|forbidden to|may not|(?:you|we) (?:can't|cannot|should not"
            r"|shouldn't)|(?:must|should) never|told (?:\w{1,12} )?not to) (?P<verb>[a-z]{3,20})"
            r" (?P<object>[^.;:!?\n,()]{1,120}(?:\.\w[^.;:!?\n,()]{0,80})?)",
            r"\b(?:nie|niemals|nicht|keinesfalls) (?P<object>(?:die|der|das|den|dem|in|an|am"
            r"|auf) [^.;:!?\n,()]{1,60}?) (?P<verb>\w{2,20}en)\b(?=[.!,;\n]|$)",
            r"\b(?:ne |n')(?P<verb>\w{4,20}) (?:pas|jamais) (?P<object>[^.;:!?\n,()]{1,120})",
            r"\bne (?:pas|jamais) (?P<verb>\w{2,20}(?:er|ir|re)) (?P<object>[^.;:!?\n,()]{1,120})",
            r"\b(?:no|nunca|jamás) (?P<verb>\w{2,20}(?:es|as|a|e|ar|er|ir)) (?P<object>(?:el|la|los|las|un|una|en"
            r"|al) [^.;:!?\n,()]{1,120})",
            r"(?:不要|别|不得|禁止|不准|不可以|切勿|请勿|严禁)(?P<verb>[\u3400-\u9fff]{2})(?P<object>[\u3400-\u9fff]{2,12})",
        )
    )
)
_ROMANCE = re.compile(r"(?:ez|er|es|ar|as|ir|en|e|a)\Z")
_CONDITION = re.compile(
    r"\b(?:unless|until|till|except|before|without|only|when|while|if|more than|yet|außer|bevor|ohne|wenn|sauf|avant"
    r"|sans|salvo|antes|sin|si)\b|除非|之前"
)
_NO_PROHIBITION = word_set(
    "forget hesitate stop worry mind know think want need have care bother matter miss find see tell get reach resolve"
)
_ASKS = re.compile(
    r"\b(?:whether|if|why|how|asks?|asked|asking|would|might|attempt\w{0,3}|tried|proposal|proposed|dropped|reverted"
    r"|undone|question|ob|si)\b|是否"
)


@dataclass(frozen=True, slots=True)
class _Prohibition:
    verb: str
    object: frozenset[str]


def reverses(text: str, sources: Sequence[str], people: Sequence[str]) -> str:
    """The first clause that says to do what is forbidden; empty where there is none."""
    forbidden = {rule: None for source in (*sources, *people) for rule in _prohibitions(lowered(source))}
    by_verb: dict[str, list[frozenset[str]]] = {}
    for rule in list(forbidden)[-_MOST:]:
        by_verb.setdefault(rule.verb, []).append(rule.object)
    for clause in _affirmed(lowered(text)):
        meant = content(clause)
        for verb in _verbs(clause) & by_verb.keys():
            for named in by_verb[verb]:
                if named <= meant and not _allowed(verb, named, people):
                    return clause
    return ""


def _prohibitions(text: str) -> Iterator[_Prohibition]:
    for sentence in sentences(text):
        for forbids, bends in _FORBIDS:
            for match in forbids.finditer(sentence):
                verb, named = match["verb"], _named(match["object"])
                if (
                    named
                    and verb not in _NO_PROHIBITION
                    and not _CONDITION.search(sentence, match.start(), match.start() + _RANGE)
                ):
                    yield _Prohibition(_unbent(verb) if bends else verb, named)


def _named(text: str) -> frozenset[str]:
    """The first words that carry meaning of what is forbidden."""
    all_words: list[str] = []
    for word in [text] if "\u3400" <= text[0] <= "\u9fff" else words(text):
        all_words += sorted(content(word))
    return frozenset(all_words[:_OBJECT])


def _affirmed(text: str) -> Iterator[str]:
    """The clauses that say something without a negation, in lines that no heading denies."""
    denied = False
    for line in text.splitlines():
        head, colon, rest = line.strip(" \t*_#>•-").partition(":")
        if colon and not rest.strip():  # a heading of the lines below it
            denied = bool(NOT.search(head))
            continue
        if not line.strip():
            denied = False
        short = bool(colon) and len(words(head)) <= 4
        if denied or (short and NOT.search(head)):
            continue
        for sentence in sentences(line):
            for clause in clauses(sentence):
                if not NOT.search(clause) and not _ASKS.search(clause) and not sentence.endswith("?"):
                    yield clause


def _verbs(clause: str) -> frozenset[str]:
    """What may be a verb of the clause, as prohibitions write it."""
    chinese = (clause[i : i + 2] for i in range(len(clause) - 1) if "\u3400" <= clause[i] <= "\u9fff")
    latin = words(clause)
    return frozenset((*latin, *map(_unbent, latin), *chinese))


def _unbent(verb: str) -> str:
    """A French or Spanish verb without its ending."""
    return f"{_ROMANCE.sub('', verb)}-"


def _allowed(verb: str, named: frozenset[str], people: Sequence[str]) -> bool:
    """Whether a person said the same without a negation."""
    clauses_of_people = (clause for message in people for clause in _affirmed(lowered(message)))
    return any(verb in _verbs(clause) and named <= content(clause) for clause in clauses_of_people)
