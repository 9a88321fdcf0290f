"""What is shown of models and merges: values that the command line, the pages and the API render alike."""
