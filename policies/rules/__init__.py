"""The policies, one file each; none imports another.

To add one:
  1  Write `policies/rules/NAME.py`: a `@policy` class Name(ConfiguredPolicy) whose fields state unit and meaning, and
     whose `__call__` yields edits. The first sentence of the module is what `narrows presets` prints. collapse.py is
     a short example.
  2  Put a value of it into a preset in `policies/presets.py`; a preset file can name it from then on, too.
  3  Say in `proxy/lab/explain.py` (WHY) why it shortens things, and add three golden files to `tests/golden/NAME`.

What a policy sees is in `policies/context.py`, and what it may edit is in `policies/laws.py`: the planner drops offers
that break a law, and carries out the others when that pays.
"""
