"""Filters and scores of node scheduling, one file each; they do not know one another."""
