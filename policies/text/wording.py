"""Sentences and words of any text, plainly: what the checks of summaries compare.

Law: linear in the text; every repetition in a pattern has a bound.
"""

import re
import unicodedata
from collections.abc import Iterator

from policies.tools.kinds import word_set

_SENTENCE = re.compile(r"(?<=[.!?])\s+|[\n。！？]+")
_CLAUSE = re.compile(r"[,;:!?()\"“”。，；：！？]|\.(?=\s|$)|\s[-–—]\s")
_WORD = re.compile(r"[\w./'-]{1,80}")
_CHINESE = re.compile(r"[\u3400-\u9fff]{1,200}")
_STOP = word_set(
    "a about after again all also an and any are as at be been but by can could did do does each every for from had "
    "has have he her here him his how i if in into is it its just later may me more must my never no not now of off "
    "on once only or our out over please shall she should so some still such than that the their them then there "
    "these they this those to too under until up us very was we were what when which while who will with would you "
    "your always der die das den dem des ein eine einen einem einer und oder zu zum zur von vom im in ist sind nicht "
    "nie niemals bitte du sie er es mit auf für an am als auch nur immer jetzt musst sollst darfst le la les l un une "
    "des du de d et ou à au aux en ne pas jamais dans sur pour par est sont il elle tu vous que qui el los las una "
    "unos unas y o al del que no nunca por para con es son tú usted"
)
_ENDING = re.compile(r"(?:ations?|tions?|ions?|ings?|als?|ed|es|s|e|ly)\Z")

NOT = re.compile(
    r"\b(?:not|cannot|never|nothing|nobody|none|no|without|avoid\w{0,3}|forbid\w{0,5}|forbidden|prohibit\w{0,4}|banned"
    r"|refus\w{0,4}|disallow\w{0,3}|off[ -]limits|don'?ts?|instead|rather|refrain|except|unless|untouched|excluded"
    r"|reject\w{0,3}|nicht|nie|niemals|kein\w{0,2}|ohne|verboten|untersagt|unzulässig|statt|pas|jamais|sans"
    r"|interdit\w{0,2}|aucune?|nunca|jamás|sin|prohibid[oa]s?|ningun[oa]?)\b|n't\b|\bn'|不|别|勿|未|没|禁止|严禁"
)
"""What turns a clause into its contrary, in lower case."""


def lowered(text: str) -> str:
    """Lower case, with plain apostrophes."""
    return text.lower().replace("’", "'")


def sentences(text: str) -> Iterator[str]:
    """Sentences and lines, without the marks of lists around them."""
    return (stripped for part in _SENTENCE.split(text) if (stripped := part.strip(" \t\r*_#>•-")))


def clauses(sentence: str) -> Iterator[str]:
    return (stripped for part in _CLAUSE.split(sentence) if (stripped := part.strip()))


def words(text: str) -> list[str]:
    """All words of a lowered text, as they stand."""
    return [word for raw in _WORD.findall(text) if (word := raw.strip("./'-"))]


def content(text: str) -> frozenset[str]:
    """The words that carry the meaning of a lowered text, without their endings; of Chinese, pairs of characters."""
    latin = (word for word in words(_CHINESE.sub(" ", text)) if word not in _STOP)
    pairs = (run[i : i + 2] for run in _CHINESE.findall(text) for i in range(len(run) - 1))
    return frozenset(map(stem, latin)) | frozenset(pairs)


def stem(word: str) -> str:
    """A word without its ending, where enough of it remains."""
    short = _ENDING.sub("", word) if len(word) > 4 else word.removesuffix("s")
    return short if len(short) >= 3 else word


_LOOK_ALIKES = str.maketrans("АВЕЅІЈКМНОРСТУХаеѕіјорсухΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABESIJKMHOPCTYXaesijopcyxABEZHIKMNOPTYXo")
_TAGS = 0xE0000
"""Where the characters of tags begin, which nobody sees: each stands for one of ASCII."""


def unmasked(text: str) -> str:
    """The text as a model reads it: without what has no shape, and with letters for those that only look like them."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text)
    letters = (chr(ord(c) - _TAGS) if 0x20 <= ord(c) - _TAGS < 0x7F else c for c in text)
    return "".join(c for c in letters if unicodedata.category(c) != "Cf").translate(_LOOK_ALIKES)
