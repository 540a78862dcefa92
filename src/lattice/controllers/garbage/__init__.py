"""Delete dependents of deleted owners, content of deleted namespaces, expired events and join tokens.

Imported by: app controllers controllers.services.
May import: errors kinds kinds.meta clock metrics store controllers.runtime.
May touch: the store through controllers.runtime.context.
"""
