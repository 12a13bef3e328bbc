"""Does the model do the same? Sampled turns of recorded sessions, asked with Narrows and without.

spending   what may be asked: the upstream behind a counter of requests and dollars
turns      the turns of sessions, what is sent for each, and which are sampled
asking     the model asked at each sampled turn
figures    agreement against the noise of the model, with intervals
display    the report as text and as a page
command    the command
"""
