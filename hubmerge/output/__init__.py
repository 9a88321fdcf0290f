"""What lies around the weights of a merge, and what is shown of models."""
