"""The stream: chunks through the method, counted, merged, rounded once and written, in constant memory."""
