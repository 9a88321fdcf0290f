"""Models pinned by commit and read from headers alone, the bytes of their tensors, and the files beside these.

base          what is known of a model before a weight is read
open          makes it; header, config, adapter_config and ancestry parse its files, remedies say what is missing
views         base and agents as the merge sees them, through fp8, lora, same_tensors and vocabulary
reader        elements of any tensor; derived computes those that no file holds
shard_cache   shards of the Hub within a disk budget; block_reader reads those that exceed it
folder        files on this machine
companions    the files beside the weights, made safe to copy by config; staged lays a model out to be loaded
synthetic     models that take no disk; dataset_rows reads data sets, buffers reuse memory
"""
