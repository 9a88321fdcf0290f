"""The command line, a file for commands that share their work; `main` prints the errors that a command raises."""
