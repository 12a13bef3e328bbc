"""`make clients-test`: real clients, each at work through a real `narrows serve` before the strict built-in provider.

table     a row for each client: how it is installed, what it runs, in which API
programs  what agents with a configuration of their own are given
install   environments of their own below .clients, made once
task      what the provider's script has a client do, turn by turn
passing   what stands between client and Narrows, and looks at every byte of every reply
leg       one client at work, from the files it looks at to the faults that are found
scripts/  one program for each library, with one tool that runs a command

Law: a leg fails alone. Each runs in a process of its own, where possible in a network namespace that has nothing but
loopback, and what cannot be tried is named with its reason.
"""
