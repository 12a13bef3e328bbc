"""One law under libFuzzer: `python -m tests.fuzz.run LAW [options of libFuzzer] [folders]`. Needs atheris."""

import sys

import atheris

with atheris.instrument_imports(include=["policies", "proxy.sse"]):
    from tests.fuzz.laws import LAWS

if __name__ == "__main__":
    law = LAWS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, law)
    atheris.Fuzz()
