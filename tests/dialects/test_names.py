"""An API is named in its package alone: what it is called, its paths, the headers that no other API has."""

import re

from policies.dialects import DIALECTS
from policies.dialects.dialect import Http
from tests.kit.paths import ROOT

PACKAGES = re.compile(r"(policies/dialects|proxy/lab/provider)/\w+/\w+\.py")
APIS = [api.http for api in DIALECTS.values()]
PATHS = {path for api in APIS for path in (api.path, api.counting_path) if path}
RATES = {api.rate.partition("{")[0] for api in APIS if api.rate != Http.rate}
HEADERS = {name for api in APIS for name in (*api.version, *api.betas, *api.accounts)} | {"x-api-key"} | RATES
NAMES = re.compile("|".join([*DIALECTS, *HEADERS, *(rf"{path}\b(?!/)" for path in PATHS)]), re.IGNORECASE)
TABLE = "policies/dialects/__init__.py"


def test_only_the_table_names_apis_beside_their_packages() -> None:
    paths = [path for folder in ("policies", "proxy") for path in (ROOT / folder).rglob("*.py")]
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    assert [name for name, text in files.items() if NAMES.search(text) and not PACKAGES.fullmatch(name)] == [TABLE]
