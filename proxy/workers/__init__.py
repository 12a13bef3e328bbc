"""Several processes on one port: `narrows serve --workers N`.

Each worker is a whole Narrows. All accept connections from one listening socket, so no port is raced for and a worker
that dies takes no waiting connection with it. The worker that has received a request of a conversation that another one
serves passes the client's connection to that one, with what it has read: the reply, however long its stream, then costs
nothing more, and the next request on this connection is where it belongs.

Bytes are not proxied: a hop of aiohttp costs half of what a small request does, and as much again for each event. A
request is not served by whoever has it: to catch up from the store costs more than to pass it on, the more, the longer
the history is. The store is the bridge where a worker has died, is new, or cannot be reached.

team         what the workers share: the port, a channel to each, who serves, metrics
worker       one worker's side: requests passed on and taken over, metrics, deletions
supervisor   the parent process: starts workers, starts them again, restarts and ends them
"""
