"""The settings in groups, a file for each: `narrows serve --help` and the reference show them so.

Law: the first line of a group's class is its heading.
"""
