"""The documents, and the program that writes the reference among them from the code."""
