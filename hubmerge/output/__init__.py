"""What lies around the weights of a merge."""
