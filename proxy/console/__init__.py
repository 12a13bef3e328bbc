"""Commands: one module for each command, loaded by the table in `cli` when it is called.

cli          the table of commands, and the entry point
options      `narrows serve`: its options are the settings; serve runs it, greeting is what it prints
run, env     Narrows for one command; what a client needs to ask it
check, doctor, upstreams
             settings looked at, and what an upstream answers
keys, usage, delete, audit, export
             what is in a store, by `read_store`
presets      which there are, and what each does
arguments, output
             the options, tables and lines that commands share, those of the lab too
"""
