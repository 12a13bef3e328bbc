"""LiteLLM's proxy before an address: it forwards the headers of clients that begin with x-."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

asked, model = sys.argv[1:]
KEY = os.environ["AGENT_KEY"]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
anthropic = model.startswith("claude")
parameters = {
    "model": f"{'anthropic' if anthropic else 'openai'}/{model}",
    "api_base": asked.removesuffix("/v1") if anthropic else asked,
    "api_key": KEY,
}
config = {
    "model_list": [{"model_name": model, "litellm_params": parameters}],
    "general_settings": {"forward_client_headers_to_llm_api": True, "master_key": KEY},
    "litellm_settings": {"num_retries": 0, "add_user_information_to_llm_headers": True},
}
file = Path(tempfile.mkdtemp(), "config.yaml")
file.write_text(json.dumps(config))  # JSON is YAML
program = str(Path(sys.executable).with_name("litellm"))
words = [program, "--config", str(file), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
server = subprocess.Popen(words, stdout=sys.stderr)
while server.poll() is None:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=1).read()
        break
    except OSError:
        time.sleep(0.3)
if server.poll() is not None:
    sys.exit("LiteLLM ended before it listened")
print(f"base_url http://127.0.0.1:{port}/v1", flush=True)
try:
    server.wait()
finally:
    server.terminate()
