"""How clients of Responses write their requests. The only marks that they could set are of a cache without need."""

from policies.dialects.openai_responses import OPENAI_RESPONSES
from proxy.lab.provider.client import ANYTHING, ClientApi

CLIENT = ClientApi(
    OPENAI_RESPONSES,
    options={"store": False, "stream": True},
    tool=lambda name: {"type": "function", "name": name, "parameters": ANYTHING, "strict": False},
)
