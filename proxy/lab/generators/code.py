"""Generated source files: their names, numbers, sizes and repetitions follow from a seed.

Laws
  The same random numbers give the same files. Each file can be parsed as Python.
  Nothing is taken from another project.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from policies.context import TokenCounter

_ONSETS, _VOWELS, _CODAS, _ACTIONS, _NOUNS, _TYPES = (
    line.split()
    for line in (
        "b br c cl d dr f g gr h j k l m n p pl qu r s st t tr v w",
        "a e i o u ai ea io ou",
        "n r l s t m x nd rk st",
        "apply build check collect count decode drop find fold join load merge parse rank resolve scan sort",
        "batch bucket channel cursor entry frame index ledger limit node order page queue record route slot table",
        "int float str bool",
    )
)
_SENTENCES = (
    "{Action} every {noun} that {name} still holds.",
    "A {noun} is kept until {name} has seen {number} of them.",
    "Callers pass {name}; the {noun} behind it is read once.",
    "Returns {number} where no {noun} of {name} is left.",
    "{name} comes first, because a {noun} may name it.",
    "The {noun} is in units of {number}, as {name} counts.",
)
_STATEMENTS = (
    "{name} = {other}.get({text!r}, {number})",
    "{name} += len({other}) * {number}",
    "if {name} > {number}:\n    {other} = {action}_{noun}({name})",
    "for {noun} in {other}:\n    {name}.append(({noun}, {number}))",
    "assert {name} != {number}, {text!r}",
    "while {other} and {name} < {number}:\n    {other}.pop()",
    "{name} = [{noun} for {noun} in {other} if {noun} != {number}]",
    'if not {other}:\n    raise ValueError(f"{text}: {{{name}}}")',
    "{other}[{text!r}] = {name} % {number}",
    "log.debug({text!r}, {name}, {number})",
    "# {sentence}",
)


@dataclass(frozen=True)
class SourceFile:
    path: str
    text: str
    names: tuple[str, ...]


@dataclass
class Project:
    """A project whose files are made one after the other. `repetition` is the share of a file that stands in others."""

    random: Random
    repetition: float
    shared: list[str] = field(init=False)
    """Functions that stand in several files, word for word."""
    words: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        self.words = [word(self.random) for _ in range(160)]
        self.shared = [self._function(self._name()) for _ in range(self.random.randint(6, 14))]
        self.folders = self.random.sample(self.words, 6)

    def file(self, tokens: int, count: TokenCounter) -> SourceFile:
        random = self.random
        stem = f"{random.choice(_NOUNS)}_{word(random)}"
        path = f"{random.choice(self.folders)}/{random.choice(self.folders)}/{stem}{random.randint(2, 99)}.py"
        parts = [self._head()]
        names = list[str]()
        while (missing := tokens - count("\n\n\n".join(parts))) > 60:
            if random.random() < self.repetition:
                parts.append(random.choice(self.shared))
            elif random.random() < 0.2:
                names.append(self._name().title().replace("_", ""))
                parts.append(self._class(names[-1]))
            else:
                names.append(f"{random.choice(_ACTIONS)}_{self._name()}")
                parts.append(self._function(names[-1], lines=min(random.randint(4, 22), missing // 14)))
        return SourceFile(path, "\n\n\n".join(parts) + "\n", tuple(names))

    def sentence(self) -> str:
        return self._filled(self.random.choice(_SENTENCES))

    def _head(self) -> str:
        random = self.random
        imports = sorted(
            {f"from {random.choice(self.folders)} import {self._name()}" for _ in range(random.randint(2, 7))}
        )
        constants = [f"{self._name().upper()} = {self._number()}" for _ in range(random.randint(1, 8))]
        return "\n".join([f'"""{self.sentence()} {self.sentence()}"""', "", *imports, "", *constants])

    def _class(self, name: str) -> str:
        fields = [
            f"    {self._name()}: {self.random.choice(_TYPES)} = {self._number()}"
            for _ in range(self.random.randint(2, 9))
        ]
        return "\n".join(["@dataclass", f"class {name}:", f'    """{self.sentence()}"""', "", *fields])

    def _function(self, name: str, lines: int = 9) -> str:
        arguments = ", ".join(f"{self._name()}: {self.random.choice(_TYPES)}" for _ in range(self.random.randint(1, 4)))
        body = [self._filled(self.random.choice(_STATEMENTS)) for _ in range(max(lines, 1))]
        indented = "\n".join(f"    {line}" for statement in body for line in statement.split("\n"))
        head = f'def {name}({arguments}) -> {self.random.choice(_TYPES)}:\n    """{self.sentence()}"""'
        return f"{head}\n{indented}\n    return {self._name()}"

    def _filled(self, template: str) -> str:
        action = self.random.choice(_ACTIONS)
        return template.format(
            action=action,
            Action=action.title(),
            noun=self.random.choice(_NOUNS),
            name=self._name(),
            other=self._name(),
            number=self._number(),
            text=" ".join(self.random.choices(self.words, k=self.random.randint(1, 4))),
            sentence=self.sentence() if "{sentence}" in template else "",
        )

    def _name(self) -> str:
        """A name of two or three words: some of a project's names are everywhere, most are rare."""
        random = self.random
        first = self.words[min(int(random.expovariate(1 / 40)), len(self.words) - 1)]
        return "_".join([first, random.choice(_NOUNS), *random.sample(self.words, random.randint(0, 1))])

    def _number(self) -> int:
        return self.random.choice((self.random.randint(0, 9), self.random.randint(10, 99_999)))


def word(random: Random) -> str:
    """A word that can be spoken, and that no language has but by chance."""
    syllables = (random.choice(_ONSETS) + random.choice(_VOWELS) for _ in range(random.randint(1, 2)))
    return "".join(syllables) + random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS)
