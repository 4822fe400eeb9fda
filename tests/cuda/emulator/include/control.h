/* control.h: the tests' interface to the emulator. Independent of CUDA, so it can be included with CUDA's own
 * headers. */
#ifndef IV_EMULATOR_CONTROL_H
#define IV_EMULATOR_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The seed determines schedules, delays of copies and the initial contents of shared memory. */
void emu_seed(uint64_t seed);

/* Trouble with a GPU: after this many launches in streams it is lost, or its next launch is late: by this long at
 * least, and until all other GPUs have finished or timed out; device -1: none. And GPUs that cannot access one
 * another's memory. */
void emu_trouble(int device, long after_launches, unsigned stalls_ms);
void emu_keep_peers_apart(bool apart);
void emu_memory(size_t bytes);   /* that GPUs say they have; 0: plenty */
size_t emu_graph_launches(void); /* since the program began */

/* Synchronization bugs planted in the following launches, at places chosen by the seed. */
typedef enum emu_fault {
    EMU_NO_FAULT,
    EMU_FORGET_WAITS,  /* half of the mbarrier waits return at once */
    EMU_LOSE_ARRIVAL,  /* one arrival at an mbarrier is lost */
    EMU_FORGET_SYNCS,  /* thread barriers do not wait */
    EMU_RELEASE_EARLY, /* copies signal completion before they land */
    EMU_FORGET_LAST,   /* half of the waits for the preceding launch return at once */
    EMU_FLIP_BIT,      /* one in 64 tensor-core results has a flipped lowest bit */
    EMU_FORGET_STORES, /* half of the waits for TMA stores return at once */
    EMU_FORGET_PEERS,  /* half of the waits for other GPUs return at once */
    EMU_FORGET_FENCES  /* half of the proxy fences do nothing */
} emu_fault;
void emu_plant(emu_fault fault);
bool emu_fault_happened(void); /* since it was planted */
size_t emu_stores(void);       /* TMA stores to global memory since the program began */

/* A tensor-core step as the emulator computes it. */
float emu_tensor_step(int is_f16, const uint16_t a[16], const uint16_t b[16], float c);

#ifdef __cplusplus
}
#endif

#endif
