"""What replays, explains, draws and simulates. Nothing that serves requests imports it.

provider/   the strict provider that stands in for a real one, and judges what is valid
sessions/   recorded sessions that come with Narrows
generators/ sessions made by rule
replay/     sessions through a real Narrows: its environment, the runs, the report, and reports compared
load/       many conversations at once through a target, and what they cost it
reports/    results drawn as text for a terminal, or as a page
explain     the dry run of one request; breakdown, quality and needs measure sizes, and what stays in sight
audit, demo, preset_descriptions
results     how values are printed as JSON and added up
commands    the options of all commands but `serve`, and what they do
"""
