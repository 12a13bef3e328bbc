"""`narrows load`: many conversations at once through a target, and what they cost it. From the ground up:

plan       what a load is: sessions cut into requests, how fast, how long
salt       texts made anew for each conversation
latencies  histograms that add up
target     what the target reports of itself, before and after
client     a process that holds conversations, and measures
clients    these processes from outside: started, watched, stopped
sink       a cheap upstream
report     what came of it
display    the report as text and as a page
command    the options
"""
