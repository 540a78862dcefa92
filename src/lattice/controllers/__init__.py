"""Loops that read, ask a pure function, and write under the leader's term."""
