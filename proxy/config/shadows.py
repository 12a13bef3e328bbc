"""Requests that are asked again to see whether the model does the same: the settings, and whether they can work."""

import os

from pydantic import Field

from proxy.config.errors import refused_at

SHARE = Field(
    default=0.0,
    ge=0,
    le=1,
    description="share of shortened requests to send again, to see if the model does the same",
)
KEY_ENV = Field(
    default="", description="the environment variable with the key that pays for that; never a client's credential"
)
ANTHROPIC_KEY_ENV = Field(default="", description="the same for `anthropic_upstream`")
BUDGET = Field(default=5.0, ge=0, description="dollars that these requests may cost on a day (UTC)")


def check(share: float, key_env: str, anthropic_key_env: str, anthropic_upstream: str | None) -> None:
    """Refuse what could not be paid, or would send a key where it does not belong."""
    names = {"agree_key_env": key_env, "agree_anthropic_key_env": anthropic_key_env}
    if share and not any(names.values()):
        reason = "name the environment variable with the key that pays for shadow requests; clients' keys do not"
        raise refused_at([(("agree_key_env",), reason)])
    if anthropic_key_env and anthropic_upstream is None:
        reason = "there is no anthropic_upstream; leave it out: agree_key_env counts for all"
        raise refused_at([(("agree_anthropic_key_env",), reason)])
    for field, name in names.items():
        if name and not os.environ.get(name):
            raise refused_at([((field,), f"the environment variable {name} is empty or not set")])
