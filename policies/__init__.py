"""The pure core of Narrows: values in, values out. No asyncio, sockets, clock, files or randomness.

    from policies.compact import compact
    shorter = compact(body).body

The map, from the ground up; a folder imports only what stands above it here
  model/      what a request is: blocks and their indexes, edits, tokens, names, parameters, raw JSON
  tools/      what kind of output a tool has
  money/      what a request costs: prices and budgets, caches and places of marks, the ledger, bills and baselines
  keep        what people want left as it is: patterns for tools, paths and texts
  sight       how far back the calls of the model reach, and the window that follows
  context     what a policy sees and must respect
  text/       how shortened text reads: stubs, excerpts, transcripts, checks of summaries
  digests/    an output made short by what it is                                recall  the recall tool and its answers
  laws        what no policy may do
  rules/      the policies: dedupe reuse tidy collapse clip offload abridge digest recap summarize trim
  presets     named lists of policies
  planning/   plan(): replay a history step by step, decide what changes and why; folds, cache marks of ours; answers
              that point at a hidden text; the watch on what was out of sight
  dialects/   one package for each API's JSON
  restore     recall exchanges put back into a request
  assemble    the planner's input for one request: what it brings, what its provider charges, what is configured
  render      from a plan to the body that is sent
  compact     all of it in one call                      shorten  the same for messages that somebody else sends

The laws
  1  Nothing to do: the client's own bytes. Something to do: only the touched leaves change.
  2  What was sent once is sent the same way for ever, but at a declared checkpoint that pays for itself.
  3  Nothing is lost: what is hidden stands in the request the client sent, and every stub names a way back.
  4  What was valid stays valid; what was invalid goes on as it came.
  5  System text, the first and newest user message, the newest turns and opaque items are not edited, but for what a
     preset declares (context.Exceptions). Outputs that arrive may be edited at once where that loses nothing: all of it
     stays in sight, there or above in the same request (`Replace.lossless`). Definitions of tools stay, unless people
     ask for less (tools.deferral). One edit makes an output longer: an answer
     that says a file is unchanged, and points at a result that is hidden, gets that text (planning.rereads).
  6  Fail open: trouble in here never stops a request (kept by proxy/).
  7  Honest money: what is reported is the bill, by the provider's own usage (kept by proxy/).
"""
