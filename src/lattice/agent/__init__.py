"""The node side: it runs what it was told to run, and says how that is."""
