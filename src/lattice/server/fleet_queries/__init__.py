"""fleet_queries."""
