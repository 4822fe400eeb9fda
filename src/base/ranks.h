/* ranks.h: how many tensor-parallel ranks a model can have, independent of their transport. */
#ifndef IV_BASE_RANKS_H
#define IV_BASE_RANKS_H

enum { IV_RANKS_MAX = 8 }; /* a sum over K has up to as many leaves: numerics/tree.h */

#endif
