"""`main`: the table of commands and how errors end them.

Imported by: __main__.
May import: errors cli.output.
May touch: standard streams, exit code.
"""
