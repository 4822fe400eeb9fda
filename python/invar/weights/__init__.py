"""`python -m invar.weights`: the process that takes weights from a trainer for `invar serve`, by torch's own means: pickled tensors, shared
memory, CUDA IPC handles, process groups. The server starts it for the first such request, and reads the tensors from the safetensors file
that it leaves. It needs torch, and neither numpy nor invar's library."""
