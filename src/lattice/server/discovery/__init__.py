"""Discovery, OpenAPI v2 and v3, CustomResourceDefinitions.

Imported by: app cli.commands server.
May import: errors kinds kinds.meta server.fleet_queries server.requests server.resources.
May touch: values only.
"""
