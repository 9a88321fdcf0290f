"""Text from strangers and for people: Markdown that stays text, plain YAML, the words of messages."""
