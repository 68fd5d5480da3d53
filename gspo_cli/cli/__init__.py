"""The command line: thin commands that parse, call one function of the package and print."""
