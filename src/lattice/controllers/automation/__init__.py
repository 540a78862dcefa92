"""Automation rules and their webhooks.

Imported by: app controllers controllers.services.
May import: errors kinds kinds.meta lifecycle placement.inputs presence store controllers.runtime.
May touch: the store through controllers.runtime.context, outgoing HTTP.
"""
