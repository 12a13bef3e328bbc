"""The shell blocks of the documents, run as a reader would run them, but for what stands in the tables below.

A block marked `sh` is run by `make test`, or by `make laws` where it takes seconds. One marked `sh needs=WORD` is not,
and NEEDS says why.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from policies.money.catalog import prices_for
from proxy.lab.provider import Provider, start
from tests.docs.documents import PAGES, Block, blocks
from tests.kit.paths import ROOT
from tests.kit.redis_servers import PROGRAM, free_ports

NEEDS: Mapping[str, str] = {
    "network": "it installs from a package index",
    "docker": "it needs Docker; `make image-test` and `make deploy-test` try the image and the files of deploy/",
    "minutes": "it takes minutes",
}
PORTS = ("8787", "8788", "8789", "9000", "6399", "4318")
"""Those that blocks name: each is replaced with a free one."""
SESSIONS = ("write_once.json", "follow_up.json")
"""Recordings that stand in `my-sessions`."""
NARROWS = f"""\
#!/bin/bash
port=$NARROWS_PORT
[[ " $* " =~ " --port "([0-9]+) ]] && port=${{BASH_REMATCH[1]}}
listens() {{ (: <>/dev/tcp/127.0.0.1/$port) 2>/dev/null; }}
narrows() {{ exec "{sys.executable}" -m proxy.console.cli "$@"; }}
if [[ $1 != serve && " $* " != *" --sink "* ]] || listens; then narrows "$@"; fi
narrows "$@" </dev/null >>serve.log 2>&1 &
echo $! >>started
until listens; do
    kill -0 $! 2>/dev/null || {{ cat serve.log >&2; wait $!; exit; }}
    sleep 0.05
done
"""
"""The program. What listens goes on in the background, as if the reader had left it in a terminal of its own."""
FIRST, LAST = "set -euo pipefail; sleep() { wait; }", "for job in $(jobs -p); do wait $job; done"
"""What stands before and behind each block: it fails where one of its commands fails."""
BEFORE: Mapping[str, str] = {
    "narrows export CONVERSATION": """
export NARROWS_TENANT=team
NARROWS_HISTORY=true narrows serve --upstream https://api.openai.com/v1 --no-summaries
python ask.py
""",
    "narrows delete --key bob": """
narrows serve --config /etc/narrows/narrows.toml
narrows keys add bob --config /etc/narrows/narrows.toml
""",
}
"""What a reader has done before, by what the block says."""
ASK = """
import json, os, urllib.request
body = json.dumps({"model": "gpt-5.4", "messages": [{"role": "user", "content": "hi"}]}).encode()
headers = {"content-type": "application/json", "authorization": "Bearer sk-1", "x-narrows-conversation": "CONVERSATION"}
url = f"http://127.0.0.1:{os.environ['NARROWS_PORT']}/v1/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
"""


def _takes_long(block: Block) -> bool:
    """Whether it takes seconds: it runs sessions, or many commands."""
    commands = re.findall(r"^narrows (\w+)", block.text, re.MULTILINE)
    return len(commands) > 3 or not {*commands}.isdisjoint({"agree", "load", "replay"})


RUN = [block for block in blocks("sh") if not block.marks]
SHORT, LONG = [block for block in RUN if not _takes_long(block)], [block for block in RUN if _takes_long(block)]
"""Those that `make test` runs, and those that `make laws` runs."""


def files_of(page: Path) -> Iterator[tuple[str, str]]:
    """Files that examples of the page show: their first line is a comment with the file's name."""
    for at in re.finditer(r"^```(?:toml|yaml)\n# (\S+\.\w+)\n((?:.*\n)*?)```$", PAGES[page], re.MULTILINE):
        yield at[1], at[2]


class Reader:
    """Pastes blocks into a shell in a folder of their own, before an upstream on loopback."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.folder = folder
        ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self._replaced = {
            "https://api.openai.com/v1": upstream,
            "https://api.anthropic.com": upstream.removesuffix("/v1"),
            "/etc/": f"{folder}/etc/",
            "/var/lib/": f"{folder}/var/lib/",
            "--duration 5m": "--duration 1s",
            "narrows agree": "narrows agree --yes",
            **ports,
        }
        self._environment = {
            "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "NARROWS_HOST": "127.0.0.1",
            "NARROWS_PORT": ports["8787"],
            "OPENAI_API_KEY": "sk-1",
            "ANTHROPIC_API_KEY": "sk-ant-1",
        }

    def as_here(self, text: str) -> str:
        """The text with names of this machine in place of those of the reader's."""
        pattern = "|".join(rf"\b{each}\b" if each.isdigit() else re.escape(each) for each in self._replaced)
        text = re.sub(pattern, lambda at: self._replaced[at[0]], text)
        assert not [url for url in re.findall(r"://(?:[^\s/@]*@)?([\w.]+)", text) if url != "127.0.0.1"], text
        return text

    async def paste(self, block: Block) -> str:
        """What the block prints; it has to end well."""
        self._prepare(block)
        before = "".join(lines for words, lines in BEFORE.items() if words in block.text)
        script = f"{FIRST}\n{self.as_here(before + block.text)}\n{LAST}\n"
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-c", script),
            cwd=self.folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            out, _ = await asyncio.wait_for(shell.communicate(), 120)
        finally:
            self._end(shell)
        assert shell.returncode == 0, f"{block} is wrong, or marked without `needs=`\n{script}\n{out.decode()}"
        return out.decode()

    def _prepare(self, block: Block) -> None:
        """Programs, and files that the page shows."""
        programs = {
            "narrows": NARROWS,
            "redis-server": f'#!/bin/sh\n"{PROGRAM}" "$@" --daemonize yes --dir . --pidfile redis.pid >&2\n',
        }
        for name, text in programs.items():
            path = self.folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o700)
        (self.folder / "var/lib/narrows").mkdir(parents=True)
        (self.folder / "ask.py").write_text(ASK)
        (self.folder / "my-sessions").mkdir()
        for name in SESSIONS:
            (self.folder / "my-sessions" / name).symlink_to(ROOT / "proxy" / "lab" / "sessions" / name)
        for name, text in files_of(block.page):
            if name.startswith("/"):
                path = Path(self.as_here(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.as_here(text))

    def _end(self, shell: asyncio.subprocess.Process) -> None:
        """End what listens; commands that still run end with their parent."""
        with suppress(ProcessLookupError):
            shell.kill()
        files = [self.folder / "started", self.folder / "redis.pid"]
        for number in [word for file in files if file.exists() for word in file.read_text().split()]:
            with suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)


async def paste(block: Block, folder: Path) -> None:
    """Run a block before the strict provider."""
    async with await start(Provider(prices=prices_for, count=len)) as upstream:
        print(await Reader(folder, upstream.url).paste(block))
