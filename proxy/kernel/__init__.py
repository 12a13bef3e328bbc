"""The way of one request, from bytes in to bytes out. `gateway.Flow.run` calls the stages one after the other; each is
in the module of its name.

    gateway.Gateway       the door: addons may refuse the request or answer it. Then Flow runs the stages, and what came
                          of them is reported
    receive.receive       head and body, and where they go: a ClientRequest
    prepare.by_mode       off, observe, the holdout and failing open stand around one Compactor, which calls
      plan.Planner          what is sent in place of the request: a PlannedRequest, for which it calls
        understand.Understanding  the body as a conversation, with all that it is planned under: a RequestContext
      Compactor             claims the plan where the history alone does not decide it: an UpstreamRequest
    send.Sender           to the upstream, and once more where that refuses what Narrows can change
    reply.RecallLoop      what the client receives: a recall in it is held back, answered by policies.restore, and the
                          next round is sent and read in the same way
    follow_up.FollowUp    what is remembered once the upstream has answered, and the request of a next round

Beside them: addons (the hooks, and the exchange that they get), admission (how much there may be at once), services
(the parts that addons and exchanges need), cold (large work in a spare process, one owner after the other), deletion;
wire/ is HTTP/1.1 as it comes from clients and returns to them. What is remembered of a conversation is
memory.conversation; the values on the way are in proxy.requests.
"""
