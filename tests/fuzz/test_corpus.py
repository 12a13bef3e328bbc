"""The laws of the fuzzer hold of every input in `corpus/`: what was found once stays mended."""

import pytest

from tests.fuzz.laws import LAWS
from tests.kit.paths import ROOT

CORPUS = ROOT / "tests" / "fuzz" / "corpus"


@pytest.mark.parametrize("law", LAWS)
def test_what_the_fuzzer_found_keeps_the_laws(law: str) -> None:
    inputs = sorted((CORPUS / law).iterdir())
    assert inputs
    for path in inputs:
        LAWS[law](path.read_bytes())
