"""The I/O of Narrows. The map, from the ground up:

config/     every setting, its default and its meaning; where it comes from; one's own presets; rules
keyring     the keys that encrypt what is at rest
telemetry   the log, the metrics, one record per request
sse         event framing and content encodings, sans I/O
routes      which API is spoken where, and what is done there
store/      what outlives a process: the contract; SQLite, Redis
upstream    the client side: header rules, timeouts, errors
histories   what this process knows of histories, and the store behind it
intake      from bytes to messages, reading only what is new
outgoing    a request in hand, its plan, and the body the plan makes of it
kept/       what is kept for people: hidden texts, outputs of tools, logs of conversations
writing/    summaries and digests: who is asked and what they are told, judged and recorded, each once among replicas;
            rolling: summaries on a request's way; digests: those of single outputs; breaker and journal help
recalls     recall exchanges, put back into requests and remembered
planning    a request's conversation, what is known of it, and the plan that follows
compaction  prepare(): what goes upstream instead, failing open
retrieval   a reply over all its rounds: recall calls answered, the upstream asked on
pages/      Narrows' own pages: health, metrics, conversations, what is kept
downstream  the server side: heads, framing, last words; bodies; choices: preset and mode of a request
walk        the walk of one request
handlers    what answers each: a walk, a page, a refusal
app         the only place where objects are made
provider/   the built-in strict provider: demo, replay, tests
forms       how a client of each API writes its requests
sessions/   the three recorded sessions that are shipped
replay/     sessions through the real proxy, and what they cost
sizes, shelf, explain, demo, audit, pictures/    what a person looks at, in a terminal or on a page
cli         the command; checks: what its words may be
"""
