"""The I/O of Narrows. The map, from the ground up; a room imports only what stands above it here:

errors       errors that clients read                          sse       event framing, sans I/O
config/      settings, routes, clients, presets of one's own, keys
identity     who the client is                                 telemetry/ the metrics, the log
event_loop   the fastest event loop there is, and its stops    breaker    what fails is left alone for a while
warmup       what is loaded once a process listens, its garbage, and its free memory
memory/      what outlives a process: SQLite or Redis, cached, written behind requests
requests     what flows: the values that one request becomes      drawing/   what pages are drawn with
upstreams/   where models are served and how they are asked, what they cost, how large their windows are
usage/       what the bills in the store come to, as reports
summaries/   summaries and digests, written in the background
kernel/      requests received, planned, forwarded upstream, and answered
addons/      features beside the kernel: access, limits, billing, archive, telemetry, pages, shadows, compress
workers/     several processes on one port
generation   what follows from the settings: made, used and let go of as one
app          what lasts; with `generation` the only place where objects are made
console/     what people run: the command line, `narrows serve`, and what looks after keys, stores and settings
lab/         what replays, explains, measures and simulates; nothing else imports it

A chat request, from bytes in to bytes out: the docstring of kernel/ tells it stage by stage.
The values that it becomes on this way are in requests.
"""
