/* test_tree_allreduce.c on emulated GPUs, one for each of up to eight ranks, on any machine. */
#define EMULATED 1
#include "cuda/test_tree_allreduce.c"
