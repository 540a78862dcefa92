"""Speed and memory, measured: `make bench` prints a table and stores it in bench/results."""
