"""The APIs: one package for each, which says everything about it. To add one: a package, and a row."""

from collections.abc import Mapping

from policies.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from policies.dialects.common import Added as Added
from policies.dialects.common import ChoiceResult as ChoiceResult
from policies.dialects.common import Consent as Consent
from policies.dialects.common import Fault as Fault
from policies.dialects.common import Reply as Reply
from policies.dialects.common import Request as Request
from policies.dialects.dialect import Dialect as Dialect
from policies.dialects.openai_chat import OPENAI_CHAT
from policies.dialects.openai_responses import OPENAI_RESPONSES
from policies.dialects.splitting import TooManyError as TooManyError
from policies.money.prices import Usage as Usage

DEFAULT = OPENAI_CHAT.name
DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC_MESSAGES)
}


def dialect_of(body: object) -> str:
    """The API of a body, by its shape: for those who have a request, or a recorded session, and no path. A body that is
    valid in two APIs means the same in both; it is taken for the one that stands first."""
    fields: Mapping[str, object] = body if isinstance(body, Mapping) else {}
    return next((name for name, api in DIALECTS.items() if api.looks_like(fields)), DEFAULT)
