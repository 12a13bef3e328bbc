"""The pure core of Narrows: values in, values out. No asyncio, sockets, clock, files or randomness.

    from policies.compact import compact
    shorter = compact(body).body

The map, from the ground up
  rawjson       where a value stands inside raw JSON          edits        Replace, Fold, Insert: what is done, as data
  conversation  Block, Conversation, anchors, turns           context      Prices, Budget, Memory, the Policy signature
  tokens        exact counts and their calibration            prices       what a model costs, and its window
  caches        how prompt caches match, and how long they keep
  measures      sizes, windows of the newest, triggers        settled      where the work at hand begins
  terms         paths, identifiers, numbers in a text         tools/       what kind of output this is
  stubs         the wording of what stands for the hidden     excerpt      a text cut to a budget
  digests/      an output made short by what it is            sections     a file in three parts
  dedupe collapse clip offload digest abridge summarize trim  one policy each; none imports another
  transcript    turns as a summariser reads them              verdict, staleness  whether a summary may be used
  economics     rent or buy at every edit point, the guard    laws, marks  what is protected; cache marks of ours
  presets       named lists of policies                       pipeline     plan()
  recall        the recall tool, and what it answers          restore      recall exchanges put back
  prefix        what became of the prompt's prefix            quality      what shortening costs in sight
  dialects/     one package for each API's JSON               caching      what the cache means for one request
  compact       all of it in one call

The laws
  1  Nothing to do: the client's own bytes. Something to do: only the touched leaves change.
  2  What was sent once is sent the same way for ever, but at a declared checkpoint that pays for itself.
  3  Nothing is lost: what is hidden stands in the request the client sent, and every stub names a way back.
  4  What was valid stays valid; what was invalid goes on as it came.
  5  System text, the first and newest user message, the newest turns and opaque items are not edited, but for what a
     preset declares (context.Exceptions).
  6  Fail open: trouble in here never stops a request (kept by proxy/).
  7  Honest money: what is reported is the bill, by the provider's own usage (kept by proxy/).
"""
