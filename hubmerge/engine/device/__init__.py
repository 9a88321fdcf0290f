"""The same merge on an accelerator: the definition in torch, fed through pinned buffers (engine.py).

Nothing here is imported, and torch neither, unless a run asks for a device (choose.py).
"""
