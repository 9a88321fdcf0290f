"""The same merge on an accelerator: the eager pass in torch (passes.py), fed through pinned buffers (engine.py).

Nothing here is imported, and torch neither, unless a run asks for a device (choose.py).
"""
