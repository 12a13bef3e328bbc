"""The policies, one file each; none imports another.

To add one
  1  Write `policies/rules/NAME.py` with a `@policy` class `Name(ConfiguredPolicy)`, as in collapse.py. Each parameter
     is one line, with unit and meaning; `__call__` yields edits. `narrows presets` prints the first sentence of the
     module, and `narrows explain` prints `why`.
  2  Put a value of it into a preset in `policies/presets.py`. From then on preset files can name it, too.
  3  Add three golden files to `tests/golden/NAME`, and its rows to the tables of `policies/README.md`.

What a policy sees is in `policies/context.py`, and what it may edit is in `policies/laws.py`: the planner drops offers
that break a law, and carries out the others when that pays.
"""
