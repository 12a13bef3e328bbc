"""aider: one session of edits; it takes them from the text of the replies."""

import os
from pathlib import Path

from common import BASE_URL, KEY, MODEL, STREAM, TASKS

os.environ |= {"OPENAI_API_BASE": BASE_URL, "OPENAI_API_KEY": KEY}

from aider.coders import Coder
from aider.io import InputOutput
from aider.models import Model

Path("notes.txt").write_text("words\n")
model = Model(f"openai/{MODEL}")
output = InputOutput(yes=True, pretty=False)
options = {"use_git": False, "stream": STREAM, "map_tokens": 0, "suggest_shell_commands": False}
coder = Coder.create(main_model=model, edit_format="diff", fnames=["notes.txt"], io=output, **options)
for task in TASKS:
    coder.run(task)
