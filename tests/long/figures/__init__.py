"""The measured tables of the READMEs, in one command: `make figures SESSIONS="one.json other.json"`.

kinds       what kind of session a recording is, by its shape alone
simulated   sessions without sockets: the same planner and the same cache arithmetic, for many presets at once
runs        all runs that the tables need, on all cores, remembered by the revision of the code
tables      the tables, and their places in the READMEs
windows     `make windows`: what summaries do in windows of several sizes
"""
