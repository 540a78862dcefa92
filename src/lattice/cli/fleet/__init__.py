"""Fleet queries from the command line, with a server or offline.

Imported by: cli.commands.
May import: errors process_tuning kinds kinds.meta clock manifest_files placement.feed placement.inputs
placement.model placement.queries scheduling.cycle server.fleet_queries server.requests server.resources
cli.client cli.output.
May touch: HTTP connections, files that the user names.
"""
