"""The way of one request, from bytes in to bytes out; each stage is a function from value to value.

    gateway       a request has come: the door (addons may refuse it or answer it), then the stages below, and what is
                  learned and reported once it is over
    receive       its head and its body, and where it goes
    understand    the body becomes the conversation that it carries, with all that it is planned under, and what
                  upstreams have shown
    plan          what is sent in its place
    prepare       the plan is claimed where the history alone does not decide it, and becomes what goes upstream; the
                  modes (off, observe, the holdout, failing open) stand around it
    send          to the upstream, and once more where that refuses what Narrows can change
    reply         what the client receives; a recall in it is answered, and the next round sent and read the same way
    follow_up     what is remembered once the upstream has answered, and the request of a next round

Beside them: addons (the hooks, and the exchange that they get), admission (how much there may be at once), services
(the parts that addons and exchanges need), cold (large work in a spare process, one owner after the other), deletion;
wire/ is HTTP/1.1 as it comes from clients and returns to them. What is remembered of a conversation is
memory.conversation; the values on the way are in proxy.requests.
"""
