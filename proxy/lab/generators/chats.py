"""Plain chats, without tools, as sessions for `narrows replay`: the questions of one person, and answers in prose.

Laws
  The same seed, number of turns, length of answers and of pastes give the same chat, byte for byte.
  Words, names, numbers and lengths vary by the seed, so that nothing can be fitted to them. No text is copied.
  Facts and rules that the person states come up again later: so it shows whether they are still in sight.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from policies.model.tokens import Counter, encoding_for
from proxy.lab.generators.code import word

Json = dict[str, Any]
KIND, MODEL, TURNS, ANSWER = "chat", "gpt-5.4", 60, 780
"""How `narrows generate` names it, whose prices count, and what is usual: turns, and the tokens of an answer."""
_INSTRUCTIONS = "You help one person with their plans. Answer in plain prose, and say so where you are not sure."
_THINGS, _PLACES, _ACTIONS, _QUALITIES, _UNITS, _LINKS = (
    line.split()
    for line in (
        "agenda apartment archive bakery bicycle boat bookshelf budget calendar camera canoe catalogue choir clinic "
        "concert contract course cupboard curtain delivery diary dinner exhibition fence festival garden harvest "
        "invoice journey kitchen ladder lease library mailbox market medicine menu museum newsletter orchard parcel "
        "passport piano playground poster recipe reservation roof sailboat schedule shed sofa survey telescope theatre "
        "ticket trailer translation vineyard wardrobe wedding workshop",
        "airport attic balcony basement bridge canal castle cellar coast corner courtyard farm forest harbour hill "
        "hotel island lake meadow office pier platform quarter river school square station street terrace tower valley "
        "village warehouse",
        "adjust announce arrange borrow bring cancel change clean collect compare confirm count cover deliver describe "
        "divide exchange extend finish fold gather hang insure label lend measure mend mention move open order paint "
        "photograph plan postpone print promise publish repair replace reserve return review sell separate share sort "
        "store translate visit wash weigh wrap",
        "bright calm careful cheap clear cold comfortable complete dark deep different early empty exact fair familiar "
        "famous fast final firm flat fresh gentle heavy honest late light local loose lower modest narrow natural new "
        "noisy old open ordinary patient plain private quiet rare ready rough safe sharp short simple slow smooth "
        "soft solid spare steady steep strong sudden thin tight useful usual warm weak wide",
        "boxes chairs days euros guests hours kilometres kilograms letters litres metres minutes pages pieces plates "
        "rooms steps tables tiles visitors weeks",
        "because while although unless whenever until after before since where",
    )
)
_SENTENCES = (
    "The {quality} part of the {thing} is the one by the {place}, {link} {name} would rather {action} it later.",
    "I would {action} the {thing} first, {link} the {other} is still {quality}.",
    "It takes about {number} {unit} to {action} a {thing} of that kind, and a little more if the {place} is {quality}.",
    "Most people {action} the {thing} too early, and then the {other} turns out to be {quality}.",
    "{name} once mentioned that a {quality} {thing} near the {place} costs more than a {better} one.",
    "There are two ways to {action} it: the {quality} one through the {place}, and the {better} one by way of {name}.",
    "If the {thing} stays {quality}, nobody has to {action} the {other} at all.",
    "A {thing} is only as {quality} as the {place} in which it stands.",
    "You could also {action} the {other} {link} the {thing} is with {name}, which is the {better} choice.",
    "The {other} does not matter much here; the {thing} does, {link} it has to be {quality} in the end.",
    "Between the {place} and the {thing} there is room for {number} {unit}, which is more than it looks.",
    "What remains is the {thing}: {quality}, rather {better}, and easy to {action}.",
    "Ask {name} whether the {place} is {quality} enough, and {action} the {thing} only then.",
    "That depends on the {other}, {link} a {quality} {thing} and a {better} one are not the same thing.",
    "In a {quality} month the {place} holds {number} {unit}, in a {better} one about half of that.",
    "So the {thing} comes first, the {other} second, and whatever {name} wants to {action} can wait.",
)
_QUESTIONS = (
    "How would you {action} the {thing} when the {place} is {quality}?",
    "What do I have to know about a {quality} {thing} before I {action} it?",
    "{name} wants to {action} the {thing}. What could go wrong at the {place}?",
    "Would you rather {action} the {thing} or the {other}, and why?",
    "Tell me how the {thing} and the {other} go together if one of them is {quality}.",
    "I was at the {place} today and saw the {thing}. It looks {quality}. What now?",
    "Which {thing} is the {better} one for a {quality} {place}?",
)
_OPENINGS = (
    "That is a {quality} question, and the {thing} is where I would begin.",
    "In short: {action} the {thing}, and leave the {other} as it is.",
    "There is more to it than the {thing} alone.",
    "Yes, with one exception, which is the {other}.",
)
_EARLY = 8
"""Of so many turns the first states a fact or a rule; of all later ones only some."""
_LATER_FACTS, _LATER_QUESTIONS = 0.04, 0.25
"""The shares of later turns that state another one, and that ask about one."""


@dataclass(frozen=True, slots=True)
class _Fact:
    """A statement of the person, their question about it later, and its answer."""

    statement: str
    question: str
    answer: str


def chat(seed: int, turns: int, answer: int, paste: int = 0) -> Json:
    """A chat of so many turns, whose answers have about so many tokens each, in the form of chat completions. With each
    question the person pastes a text of about `paste` tokens. Raises ValueError without a turn or an answer."""
    if turns < 2 or answer < 40:
        raise ValueError("a chat has 2 turns at least, and answers of 40 tokens")
    random = Random(f"chat {seed}")  # noqa: S311 - the same chat for the same seed, and no secret
    talk = _Talk(random, Counter(encoding_for(MODEL)))
    messages = [{"role": "system", "content": _INSTRUCTIONS}]
    for turn in range(turns):
        question, begin = talk.question(is_early=turn * _EARLY < max(turns, 3 * _EARLY))
        if paste:
            text = talk.answer("This is the text:", int(paste * min(max(random.gauss(1, 0.2), 0.5), 1.5)))
            question = f"{question}\n\n{text}"
        messages.append({"role": "user", "content": question})
        tokens = answer * min(max(random.gauss(1, 0.2), 0.5), 1.5)
        messages.append({"role": "assistant", "content": talk.answer(begin, int(tokens))})
    return {"model": MODEL, "messages": messages}


@dataclass
class _Talk:
    """The matter of one chat: some of all words, names of its own, and the facts so far."""

    random: Random
    count: Counter
    facts: list[_Fact] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = self.random
        self.things, self.places = random.sample(_THINGS, 28), random.sample(_PLACES, 14)
        self.actions, self.qualities = random.sample(_ACTIONS, 24), random.sample(_QUALITIES, 30)
        self.names = [word(random).title() for _ in range(24)]

    def question(self, is_early: bool) -> tuple[str, str]:
        """The next message of the person, and the beginning of its answer."""
        random = self.random
        if is_early or random.random() < _LATER_FACTS:
            self.facts.append(fact := self._fact())
            return f"{fact.statement} {self._filled(random.choice(_QUESTIONS))}", "Noted."
        if random.random() < _LATER_QUESTIONS:
            fact = random.choice(self.facts)
            return fact.question, fact.answer
        return self._filled(random.choice(_QUESTIONS)), self._filled(random.choice(_OPENINGS))

    def answer(self, begin: str, tokens: int) -> str:
        """Paragraphs of about so many tokens; now and then one is a list."""
        paragraphs, rest = [begin], tokens - self.count(begin)
        while rest > 0:
            sentences = list(self._sentences(min(rest, self.random.randint(50, 140))))
            is_list = len(sentences) > 2 and self.random.random() < 0.2
            paragraphs.append("\n".join(f"- {each}" for each in sentences) if is_list else " ".join(sentences))
            rest -= self.count(paragraphs[-1])
        return "\n\n".join(paragraphs)

    def _sentences(self, tokens: int) -> Iterator[str]:
        while tokens > 0:
            yield (sentence := self._filled(self.random.choice(_SENTENCES)))
            tokens -= self.count(sentence)

    def _fact(self) -> _Fact:
        random = self.random
        thing, place, name, action = map(random.choice, (self.things, self.places, self.names, self.actions))
        number, unit = random.randint(100, 9_999), random.choice(_UNITS)
        code = f"{name[:3].upper()}_{random.randint(100, 999)}"
        return random.choice(
            (
                _Fact(
                    f"The {thing} at the {place} has {number} {unit}.",
                    f"How many {unit} did the {thing} at the {place} have?",
                    f"It has {number} {unit}, as you wrote.",
                ),
                _Fact(
                    f"The code of the {thing} is {code}, and {name} knows it too.",
                    f"What was the code of the {thing}?",
                    f"The code is {code}; {name} knows it too.",
                ),
                _Fact(
                    f"Never {action} the {thing} without {name}.",
                    f"May I {action} the {thing} tomorrow?",
                    f"Not without {name}: that is what you laid down.",
                ),
                _Fact(
                    f"Always count the {thing} in {unit}, and {number} of them are the limit.",
                    f"Is the {thing} within the limit?",
                    f"The limit is {number} {unit}, by your own rule.",
                ),
            )
        )

    def _filled(self, template: str) -> str:
        random = self.random
        thing, other = random.sample(self.things, 2)
        quality, better = random.sample(self.qualities, 2)
        text = template.format(
            thing=thing,
            other=other,
            quality=quality,
            better=better,
            place=random.choice(self.places),
            name=random.choice(self.names),
            action=random.choice(self.actions),
            link=random.choice(_LINKS),
            number=random.randint(3, 99) if random.random() < 0.7 else random.randint(100, 4_000),
            unit=random.choice(_UNITS),
        )
        return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
