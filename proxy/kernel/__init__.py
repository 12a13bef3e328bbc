"""Requests received, planned, forwarded upstream, and answered. From the ground up:

wire/             HTTP/1.1 as it is on the wire: listening, receiving, sending, answering
beginnings        earlier requests, found by what a later one begins with
request_parser    a body becomes a conversation; only what is new in it is read
recall_exchanges  put back into what the client sends
learned_window    what an upstream has said of its window
assembly          what a request is planned under, besides its history
turns             large work, one owner after the other, and when it is to stop
cold              a spare process for large histories that are seen for the first time
runs              where a plan is made, and how long that may take
planning          all of these, the store and policies.planning: a request becomes a plan
outgoing          requests as they go upstream: as the client wrote them (always, with `mode = off`), or as planned
prepare           plans, claims and remembers, and fails open
models, upstreams, model_lists, model_lookup   where a model is served
recall_loop       one reply over all its rounds
handlers          what answers each request
"""
