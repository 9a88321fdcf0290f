"""The command line, one file a command; `main` prints the errors that a command raises."""
