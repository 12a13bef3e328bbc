"""Several processes on one port: `narrows serve --workers N`.

Each worker is a whole Narrows with a socket of its own on the port, and the system spreads connections over them. The
store is the bridge: a conversation may meet another worker with each request. What one has decided is stored before the
client has the reply, so the next one reads it, and goes on from a snapshot.

listening    the sockets of the workers, and why there may be none
worker       one worker's side: the parent's orders, and what workers ask each other
metrics      the metrics of all workers in one page
supervisor   the parent process: starts workers, starts them again, restarts and ends them
"""
