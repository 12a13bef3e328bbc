"""The models of LangChain's packages for OpenAI and Anthropic."""

from common import API, BASE_URL, KEY, MODEL, STREAM
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

OPENAI = {"model": MODEL, "base_url": BASE_URL, "api_key": KEY, "max_retries": 0, "streaming": STREAM}
if API == "openai_chat":
    model = ChatOpenAI(**OPENAI, stream_usage=True)
elif API == "openai_responses":
    include = ["reasoning.encrypted_content"]
    model = ChatOpenAI(**OPENAI, use_responses_api=True, store=False, include=include, output_version="responses/v1")
else:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    base_url = BASE_URL.removesuffix("/v1")
    options = {"model": MODEL, "base_url": base_url, "api_key": KEY, "max_retries": 0, "streaming": STREAM}
    model = ChatAnthropic(**options, max_tokens=4096, thinking=thinking)
