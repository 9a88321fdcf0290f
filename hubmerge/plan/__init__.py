"""Every output tensor with its inputs, or every problem: from headers alone."""
