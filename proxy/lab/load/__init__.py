"""`narrows load`: many conversations at once through a target, and what they cost it. From the ground up: plan, client
(the processes that measure), sink (a cheap upstream), report, command."""
