"""Does the model do the same? Sampled turns of recorded sessions, asked with Narrows and without.

asking    what is sent for each turn, which are sampled, and the model asked behind a counter of requests and dollars
report    agreement against the noise of the model, with intervals, and its text
command   what it would cost, known before anything is paid, and the options
"""
