"""Filter, score, pick over a table of candidates; knows no kind."""
