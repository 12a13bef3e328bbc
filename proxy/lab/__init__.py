"""Replaying, explaining, measuring and simulating. Nothing else imports it: `console/cli` loads its commands by name.

provider/   the strict provider that stands in for a real one, and judges what is valid
sessions/   recorded sessions that come with Narrows
generators/ sessions made by rule
replay/     sessions through a real Narrows: its environment, the runs, the bills, and reports compared
agree/      a model asked whether it does the same
load/       many conversations at once through a target, and what they cost it
explain     the dry run of one request; breakdown, quality and needs measure sizes, and what stays in sight
demo        the first minute of a newcomer
pages       the pages of a request and of replayed sessions
terminal    bars to scale, and where a report goes: terminal, JSON, a file with a page
arguments   the options that its commands share
"""
