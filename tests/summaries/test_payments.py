"""With whose credential a model is asked: what is a plain API key, and for whom a key of the gateway's is spent."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from proxy.config import Settings
from proxy.config.upstreams import is_public
from proxy.identity.credential import CredentialStates, is_allowed, is_plain_key, seconds_of
from proxy.summaries.payments import NOTHING, Payment, Payments

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJl"
TOKENS: Mapping[str, Mapping[str, str]] = {
    "claude code": {"Authorization": "Bearer sk-ant-oat01-abc", "anthropic-beta": "oauth-2025-04-20"},
    "claude code without its beta": {"Authorization": "Bearer sk-ant-oat01-abc"},
    "claude code as a key": {"x-api-key": "sk-ant-oat01-abc"},
    "the beta alone": {"Authorization": "Bearer abc", "anthropic-beta": "claude-code-20250219,oauth-2025-04-20"},
    "behind a tab": {"Authorization": "Bearer\tsk-ant-oat01-abc"},
    "in quotes": {"Authorization": 'Bearer "eyJhbGciOiJSUzI1NiJ9.e30.x"'},
    "beside a key": {"x-api-key": "sk-ant-api03-abc", "Authorization": "Bearer sk-ant-oat01-abc"},
    "sign in with chatgpt": {"Authorization": f"Bearer {JWT}", "ChatGPT-Account-ID": "a"},
    "a json web token": {"authorization": f"bearer {JWT}"},
    "azure entra": {"api-key": JWT},
    "codex with an opaque token": {"Authorization": "Bearer abc", "chatgpt-account-id": "a"},
    "google": {"Authorization": "Bearer ya29.a0Af"},
    "github": {"Authorization": "Bearer ghu_abc"},
    "github oauth": {"Authorization": "Bearer gho_abc"},
    "copilot": {"Authorization": "Bearer tid=abc;exp=1;sku=x"},
    "copilot with a personal token": {"Authorization": "Bearer github_pat_x", "Copilot-Integration-Id": "vscode-chat"},
    "hugging face": {"Authorization": "Bearer hf_oauth_abc"},
    "coding plans": {"Authorization": "Bearer sk-sp-abc"},
    "signed": {"Authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu/bedrock/aws4_request, Signature=1"},
}
KEYS: Mapping[str, Mapping[str, str]] = {
    "openai": {"Authorization": "Bearer sk-proj-abc"},
    "anthropic": {"x-api-key": "sk-ant-api03-abc", "anthropic-beta": "context-1m-2025-08-07"},
    "anthropic as bearer": {"Authorization": "Bearer sk-ant-api03-abc"},
    "google": {"Authorization": "Bearer AIzaSyA"},
    "openrouter": {"Authorization": "Bearer sk-or-v1-abc"},
    "groq": {"Authorization": "Bearer gsk_abc"},
    "xai": {"Authorization": "Bearer xai-abc"},
    "azure": {"api-key": "0123456789abcdef"},
    "github models": {"Authorization": "Bearer github_pat_abc"},
    "hugging face": {"Authorization": "Bearer hf_abc"},
    "litellm": {"Authorization": "Bearer sk-1234"},
    "anything": {"Authorization": "Bearer lm-studio"},
    "basic": {"Authorization": "Basic c2VjcmV0"},
    "none": {},
    "empty": {"Authorization": "Bearer "},
}


@pytest.mark.parametrize("name", TOKENS)
def test_w3_a_token_of_a_sign_in_is_no_key(name: str) -> None:
    assert not is_plain_key(make_mocked_request("POST", "/v1/messages", headers=TOKENS[name]))


@pytest.mark.parametrize("name", KEYS)
def test_w3_everything_else_is_a_key(name: str) -> None:
    assert is_plain_key(make_mocked_request("POST", "/v1/messages", headers=KEYS[name]))


def payments(**settings: Any) -> Payments:
    return Payments(Settings(upstream="http://127.0.0.1:1/v1", **settings), CredentialStates(), b"secret")


@pytest.mark.parametrize(
    ("settings", "is_key", "client"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"summary_credential": "client-any"}, False, True),
        ({"summaries": False}, True, False),
        ({"summaries": False, "summary_credential": "client-any"}, False, False),
    ],
)
def test_w3_the_clients_credential(settings: Mapping[str, Any], is_key: bool, client: bool) -> None:
    assert payments(**settings).allowed("key", is_key).client == client
    assert payments(**settings).possible("key", is_key).client == client


LISTED = sha256(b"key").hexdigest()


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"host": "localhost"}, True),
        ({"host": "0.0.0.0"}, False),  # noqa: S104
        ({"host": "gateway.example"}, False),
        ({"host": "0.0.0.0", "tenant": "ours"}, False),  # noqa: S104
        ({"host": "0.0.0.0", "summary_allow": [LISTED]}, True),  # noqa: S104
        ({"host": "0.0.0.0", "summary_allow": [LISTED.upper()]}, True),  # noqa: S104
        ({"host": "0.0.0.0", "summary_allow": ["*"]}, True),  # noqa: S104
        ({"host": "0.0.0.0", "summary_allow": ["0" * 64]}, False),  # noqa: S104
        ({"summary_allow": ["0" * 64]}, False),
        ({"summaries": False, "summary_allow": ["*"]}, False),
    ],
)
def test_w3_x4_the_gateways_key(settings: Mapping[str, Any], allowed: bool) -> None:
    """Of one of several keys in a credential, too; only once the upstream has accepted it, and not refused since."""
    made = payments(**settings)
    for credential in ("key", "other\nkey"):
        assert made.allowed(credential, True).gateway == allowed
        assert not made.possible(credential, True).gateway
        made.states.note(made.owner(credential), 200)
        assert made.possible(credential, True).gateway == allowed
        made.states.note(made.owner(credential), 401)
        assert not made.possible(credential, True).gateway
    assert made.possible("stranger", True, is_here=True).gateway == made.settings.summaries


def test_w3_off_is_off() -> None:
    made = payments(summaries=False)
    made.states.note(made.owner("key"), 200)
    assert made.possible("key", True, is_here=True) == made.allowed("key", True) == NOTHING != Payment()


def test_w3_who_listens_for_others() -> None:
    assert [is_public(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [False] * 4
    assert [is_public(host) for host in ("0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "box")] == [True] * 5  # noqa: S104
    assert not is_allowed("", [LISTED])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *(("5", 5.0), ("0", 0.0), ("1.5", 1.5)),
        *((each, None) for each in (None, "", "-1", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT")),
    ],
)
def test_w3_retry_after(value: str | None, seconds: float | None) -> None:
    assert seconds_of(value) == seconds
