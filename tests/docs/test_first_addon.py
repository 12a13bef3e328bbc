"""The addon of CONTRIBUTING.md, as a reader would add it."""

import re
import sys
from types import ModuleType

import pytest

from proxy import generation
from tests.docs.test_readme import CONTRIBUTING
from tests.kit.stage import Stage

(CODE,) = re.findall(r"^```python\n(.*?)^```$", CONTRIBUTING, re.MULTILINE | re.DOTALL)


async def test_the_first_addon_counts_requests_by_the_hour(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = re.findall(r"`proxy/(addons/hours/addon)\.py`", CONTRIBUTING)
    for name in ("proxy.addons.hours", f"proxy.{file.replace('/', '.')}"):
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
    exec(CODE, module.__dict__)  # noqa: S102 - it is our own document
    others = (name for name in generation.INNER if name != "hours")  # a reader may have added it
    monkeypatch.setattr(generation, "INNER", (*others, "hours"))
    app = await stage.start()
    for _ in range(2):
        await stage.ask(app, [{"role": "user", "content": "Hi."}])
    assert sum(app.services.opened["hours"].counts.values()) == 2
