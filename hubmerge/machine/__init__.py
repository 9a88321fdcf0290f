"""What this machine has: cores and memory, the extras that are installed, and its disk with its errors."""
