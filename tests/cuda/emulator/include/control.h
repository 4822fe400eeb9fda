/* control.h: what tests tell the emulator, and ask it. Knows nothing of CUDA, so it may stand beside CUDA's own
 * headers. */
#ifndef IV_EMULATOR_CONTROL_H
#define IV_EMULATOR_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Schedules, delays of copies and what a launch finds in shared memory follow from the seed. */
void emu_seed(uint64_t seed);

/* What can happen to a GPU: after so many launches in streams it is lost, or the next launch comes late: by so long at
 * least, and until all other GPUs have done, or given up, what they have; device -1: no more. And that GPUs do not
 * reach one another's memory. */
void emu_trouble(int device, long after_launches, unsigned stalls_ms);
void emu_keep_peers_apart(bool apart);
size_t emu_graph_launches(void); /* since the program began */

/* Mistakes that a kernel could have, made on purpose in the launches that follow, at places that the seed draws. */
typedef enum emu_fault {
    EMU_NO_FAULT,
    EMU_FORGET_WAITS,  /* waits for mbarriers go on at once, half of them */
    EMU_LOSE_ARRIVAL,  /* one arrival at an mbarrier does not happen */
    EMU_FORGET_SYNCS,  /* barriers of threads wait for nobody */
    EMU_RELEASE_EARLY, /* copies say that they are there before they are */
    EMU_FORGET_LAST,   /* the end of the launch before is not waited for, half of the time */
    EMU_FLIP_BIT,      /* one in 64 results of the tensor cores has another lowest bit */
    EMU_FORGET_STORES, /* what the copy engine stores is not waited for, half of the time */
    EMU_FORGET_PEERS   /* other GPUs are not waited for, half of the time */
} emu_fault;
void emu_plant(emu_fault fault);
bool emu_fault_happened(void); /* since it was planted */
size_t emu_stores(void);       /* of the copy engine to global memory, since the program began */

#ifdef __cplusplus
}
#endif

#endif
