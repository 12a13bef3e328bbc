"""The I/O of Narrows. The map, from the ground up:

config      every setting, its default and its meaning
telemetry   the log, the metrics, one record per request
sse         event framing and content encodings, sans I/O
store/      what outlives a process: the contract, and SQLite
upstream    the client side: header rules, timeouts, errors
histories   what this process knows of histories, and the store behind it
intake      from bytes to messages, reading only what is new
compaction  prepare(): what goes upstream instead, failing open
downstream  the server side: bodies, framing, last words
handlers    the walk of one request
app         the only place where objects are made
provider/   the built-in strict provider: demo, replay, tests
sessions/   the two recorded sessions that are shipped
recorded, bills, stage, replay    sessions through the real proxy, and what they cost
pictures, explain, demo           what a person looks at
cli         the command
"""
