"""What a server and its agents say to one another: the messages, and the two ends of a connection."""
