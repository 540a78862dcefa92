"""The whole control plane in one process, in virtual time: real controllers, elections, verbs and agents over fakes that fail."""
