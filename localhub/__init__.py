"""An embedded Hub on loopback, for the demo and the tests.

`server` speaks the wire protocol of the Hugging Face Hub well enough that the unmodified client works against
it; `process` runs it as a child; `seed` fills it. docs/localhub.md lists what it does and what it does not.
"""
