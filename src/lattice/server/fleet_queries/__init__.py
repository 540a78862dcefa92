"""The query process beside the server: schema, protocol, snapshot feed, dry run, apply of a plan.

Imported by: app cli.fleet server server.discovery.
May import: errors process_tuning kinds kinds.meta clock metrics placement.feed placement.inputs
placement.model placement.queries server.access server.requests server.resources store.
May touch: a child process, the store through server.resources.
"""
