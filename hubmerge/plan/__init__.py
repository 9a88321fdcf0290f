"""The plan of a merge, made from headers alone: every output tensor with its inputs, or every problem."""
