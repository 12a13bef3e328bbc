# Narrows as an image: the wheel, its dependencies and Python, run by a user without rights.
# Nothing is downloaded when it runs: vocabularies and prices come inside the packages.

# The base by digest: `docker buildx imagetools inspect python:3.11-slim-bookworm` says what it is today.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build

# Another package index: --build-arg PIP_INDEX_URL=URL. It is not in the final image.
ARG PIP_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src

# pip works on the environment from outside, so that the image has none in it.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/narrows

# The dependencies alone first: they are installed again only when they change. Every file has the hash of its lock file.
COPY requirements.lock deploy/build.lock ./
RUN /opt/pip/bin/pip install --only-binary :all: --require-hashes -r build.lock \
    && /opt/pip/bin/pip --python /opt/narrows/bin/python3 install --only-binary :all: --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY deploy/build_hook.py ./deploy/
COPY policies ./policies
COPY proxy ./proxy
RUN /opt/pip/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /tmp/wheels . \
    && /opt/pip/bin/pip --python /opt/narrows/bin/python3 install --no-deps --no-index /tmp/wheels/*.whl


FROM ${BASE}

# The user is given by number, so that an orchestrator can see that it is not root. Narrows writes to /data alone.
RUN groupadd --gid 10001 narrows \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin narrows \
    && install --directory --owner narrows --group narrows --mode 0700 /data
COPY --from=build /opt/narrows /opt/narrows

ENV PATH=/opt/narrows/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    NARROWS_HOST=0.0.0.0 \
    NARROWS_PORT=8787 \
    NARROWS_STORE=sqlite:////data/narrows.db

USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8787

# Asks at NARROWS_PORT: change the port there, not with a flag or in a file.
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 CMD ["python3", "-c", \
    "import http.client as h, os; c = h.HTTPConnection('127.0.0.1', int(os.environ['NARROWS_PORT']), timeout=2); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]

# As process 1 it receives SIGTERM itself, and lets replies finish for `grace` (25) seconds: docker stop --time 30.
ENTRYPOINT ["narrows"]
CMD ["serve"]
