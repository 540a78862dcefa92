"""Filters and scores over offers, one file each."""
